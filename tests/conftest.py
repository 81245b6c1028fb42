"""Options and fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from golden_files import GOLDEN, golden_cases


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        default=str(GOLDEN),
        metavar="DIR",
        help="folder with plan_vllm017, plan_vllm033, specs and bind, each .json or .json.gz",
    )


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str], list[dict[str, Any]]]:
    """golden("bind") -> the cases of that file, from --golden-dir or the compressed copy."""
    folder = request.config.getoption("--golden-dir")
    return lambda name: golden_cases(folder, name)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One start of chromium for all tests that look at pages."""
    from browser import started

    with started() as made:
        yield made
