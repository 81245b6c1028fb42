"""Fixtures that several tests share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        default=None,
        help="folder with other golden files of the same schema (default: the copy in tests/golden)",
    )


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str], list[dict[str, Any]]]:
    """golden("bind") -> the cases of bind.json, from --golden-dir or the compressed copy."""
    folder = request.config.getoption("--golden-dir")

    def load(name: str) -> list[dict[str, Any]]:
        if folder is not None:
            text = (Path(folder) / f"{name}.json").read_text(encoding="utf-8")
        else:
            with gzip.open(GOLDEN / f"{name}.json.gz", "rt", encoding="utf-8") as file:
                text = file.read()
        cases: list[dict[str, Any]] = json.loads(text)["cases"]
        return cases

    return load
