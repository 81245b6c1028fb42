"""These tests need the extra `hf`; without it they are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpipe.models.probe.releases import transformers_problems

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if problems := transformers_problems():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=str(problems[0])))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and on a busy machine lose a hundredfold."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
