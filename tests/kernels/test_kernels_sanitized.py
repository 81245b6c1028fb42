"""The kernel suite once more with AddressSanitizer and UBSan compiled into the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvpipe.backends.kernels.compile import find_compiler

HERE = Path(__file__).parent
SANITIZE = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
SUITES = ("test_kernels_against_torch.py", "test_kernels_bounds.py", "test_kernels_fp8.py")


def environment(cache: Path, *flags: str) -> dict[str, str]:
    """Python itself is not sanitized: the runtime must be there before its allocations."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"{compiler} has no libasan")
    return {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "CXXFLAGS": " ".join((SANITIZE, *flags)),
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # One malloc an object, so that an overrun does not land in a neighbour of the same arena.
        "PYTHONMALLOC": "malloc",
    }


def run(arguments: list[str], cache: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(cache, *flags),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_the_suite_is_clean_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    done = run(
        ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(HERE / s) for s in SUITES)],
        tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout


ONE_WRITE = """
import torch
from kvpipe.backends.host import HostBackend
from kvpipe.backends.base import Buffer
from kvpipe.layouts.base import ArrayView
view = ArrayView(layer="l", array="k", buffer=0, dtype="uint8", per_token=True, offset=0,
                 shape=(4, 16, 1, 64), strides=(1024, 64, 64, 1))
buffer = Buffer(num_bytes=4096, data=torch.zeros(4096, dtype=torch.uint8))
backend = HostBackend(HostBackend.Options(name="host", build="exact"))
backend.write_kv(buffer, view, torch.ones(1, 1, 64, dtype=torch.uint8), torch.tensor([64]))
print(backend.errors._record.tolist()[0])
"""


@pytest.mark.full
def test_without_the_bounds_check_the_sanitizer_finds_the_overrun(tmp_path):
    """That the run above is clean proves something only if this one is not."""
    checked = run(["-c", ONE_WRITE], tmp_path)
    assert checked.returncode == 0 and checked.stdout == "1\n", checked.stderr
    unchecked = run(["-c", ONE_WRITE], tmp_path, "-DKV_NO_CHECK")
    assert unchecked.returncode != 0
    assert "heap-buffer-overflow" in unchecked.stderr and "kv_cache.cu" in unchecked.stderr
