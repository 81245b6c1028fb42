"""The kernels' four executions on a CPU, and the device where there is one."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
from fake_cupy import FakeCupy, FakeStream  # noqa: E402

from kvpipe.backends.cupy_ import CupyBackend  # noqa: E402
from kvpipe.backends.host import HostBackend  # noqa: E402
from kvpipe.backends.kernels.compile import BUILDS, find_compiler, host_library  # noqa: E402

# Two threads on a busy machine wait for each other longer than either works.
torch.set_num_threads(1)

EXECUTIONS = (*BUILDS, "cupy_stand_in")


@pytest.fixture(scope="session")
def compiled() -> None:
    """All three builds at once: three compilers take as long as one where three cores are free."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler (c++, g++ or clang++)")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(host_library, BUILDS))


@cache
def make_backend(execution: str):
    if execution == "gpu":
        return CupyBackend()
    if execution == "cupy_stand_in":
        stream = FakeStream(7)
        return CupyBackend(
            cupy=FakeCupy(), device=torch.device("cpu"), current_stream=lambda: stream
        )
    return HostBackend(HostBackend.Options(name="host", build=execution))


# The last thread first: for code that depends on the order, in the full tier.
_EACH = [pytest.param(e, marks=pytest.mark.full) if e == "reverse" else e for e in EXECUTIONS]


@pytest.fixture(params=[*_EACH, pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest, compiled: None):
    if request.param == "gpu":
        missing = CupyBackend.problems()
        if missing:
            pytest.skip(f"no GPU: {missing[0]}")
    backend = make_backend(request.param)
    yield backend
    backend.errors._record.zero_()
