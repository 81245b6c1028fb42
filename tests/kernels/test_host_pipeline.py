"""The whole pipeline on backend=host leaves the bytes that backend=torch leaves."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from test_host_build import find_compiler

import kvpipe

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
SMALL = ("cache.kv_cache_memory_bytes=4MiB", "scheduler.max_num_batched_tokens=256",
         "binding.verify.max_rows=64", "binding.verify.max_length=70")  # fmt: skip
LAYOUTS = sorted(path.stem for path in (ROOT / "conf/layout").glob("*.yaml"))
PLACEMENTS = sorted(path.stem for path in (ROOT / "conf/placement").glob("*.yaml"))
LETTERS = set("lbnhc")  # placements that fix every axis take kv_packed (or mla) only


PYTHIA, DEEPSEEK = ("model=pythia_70m",), ("model=deepseek_v2_lite",)


def choices() -> list[object]:
    """Every layout on each commit; every placement, fp8 and states in the full tier."""
    layouts = [(*(DEEPSEEK if layout == "mla" else PYTHIA), f"layout={layout}")
               for layout in LAYOUTS]  # fmt: skip
    rest = [(*request, "cache.cache_dtype=fp8_e4m3") for request in layouts]
    for placement in PLACEMENTS:
        layout = "kv_packed" if set(placement) <= LETTERS else "flashinfer_nhd"
        rest.append((*PYTHIA, f"placement={placement}", f"layout={layout}"))
    rest += [("model=lfm2",), ("model=gemma3_1b",)]
    return [
        *(pytest.param(request, id=" ".join(request)) for request in layouts),
        *(pytest.param(r, id=" ".join(r), marks=pytest.mark.full) for r in rest),
    ]


@cache
def digest(request: tuple[str, ...], backend: str) -> str:
    result = kvpipe.run([*request, *SMALL, f"backend={backend}"])
    report = result.bound[0].verify
    assert report.rows > 0 and report.passed and report.digest_of == "buffers"
    assert result.backend.describe()["backend"] == backend
    return report.digest


@pytest.mark.parametrize("request_", choices())
def test_host_and_torch_leave_the_same_bytes(request_: tuple[str, ...]):
    assert digest(request_, "host") == digest(request_, "torch")


def test_different_layouts_leave_different_bytes():
    """Or the digests above would be of something else."""
    one, other = ((*PYTHIA, f"layout={name}") for name in ("flash_attn", "flash_attn_hnd"))
    assert digest(one, "host") != digest(other, "host")
