"""docs/peers.md: kvpipe's column is exact, and what its script makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import peers  # noqa: E402


def test_the_page_of_peers_is_current() -> None:
    assert peers.PAGE.read_text(encoding="utf-8") == peers.page()


@pytest.mark.parametrize("name", peers.table()["models"])
def test_kvpipes_bytes_of_a_request_are_the_exact_ones(name: str) -> None:
    preset, length, exact, _ = peers.table()["models"][name]
    assert peers.payload_bytes(preset, length) == exact


def test_every_tool_has_a_figure_for_every_model() -> None:
    measured = peers.table()
    assert all(len(row[3]) == len(measured["tools"]) for row in measured["models"].values())
    assert len(measured["seconds"]) == len(measured["tools"])
