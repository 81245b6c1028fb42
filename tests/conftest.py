"""Options and fixtures that several test files share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        default=str(GOLDEN),
        metavar="DIR",
        help="folder with plan_vllm017, plan_vllm033, specs and bind, each .json or .json.gz",
    )


@cache
def golden_cases(folder: str, name: str) -> list[dict[str, Any]]:
    plain = Path(folder) / f"{name}.json"
    packed = Path(folder) / f"{name}.json.gz"
    text = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return cases


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str], list[dict[str, Any]]]:
    """golden("bind") -> the cases of that file, from --golden-dir or the compressed copy."""
    folder = request.config.getoption("--golden-dir")
    return lambda name: golden_cases(folder, name)
