"""The example runs, its kernels write where attention reads, and it would notice if not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kvpipe.backends.kernels.compile import find_compiler
from kvpipe.backends.write import WritePlan

EXAMPLE = Path(__file__).parents[2] / "examples/kernel_decode.py"
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("kernel_decode", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_attention_through_kv_cache_reads_what_the_kernels_wrote(example, capsys):
    example.main()
    told = capsys.readouterr().out
    assert told.startswith("kv_host_fast_") and "77 tokens, 6 layers" in told
    assert "differs from plain lists by " in told


def test_a_write_that_went_elsewhere_would_show(example, monkeypatch):
    honest = WritePlan.__call__

    def shifted(self, k, slots, v=None):
        honest(self, k, slots.flip(0), v)

    monkeypatch.setattr(WritePlan, "__call__", shifted)
    with pytest.raises(AssertionError):
        example.main()
