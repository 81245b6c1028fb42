"""What the kernels become on seven GPU architectures, read from the machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import sass
from sass import ARCHITECTURES, Kernel

from kvpipe.backends.kernels.compile import find_compiler, host_library, load

pytestmark = pytest.mark.skipif(
    sass.toolchain() is None,
    reason="pip install nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.5.37",
)

PER_COMMIT = (90,)
COPIES = [f"kv_{operation}_v{width}"
          for operation in ("write", "gather", "fill", "copy", "pack", "unpack")
          for width in (16, 4, 2, 1)]  # fmt: skip
FORMATS, NUMBERS, LANES = ("fp8_e4m3", "fp8_e5m2"), ("float16", "bfloat16", "float32"), (8, 1)
QUANTISERS = [f"kv_write_{n}_{f}_v{w}" for n, f, w in product(NUMBERS, FORMATS, LANES)]
DEQUANTISERS = [f"kv_gather_{f}_{n}_v{w}" for f, n, w in product(FORMATS, NUMBERS, LANES)]
PARTS = product(("scores", "values"), (*NUMBERS, *FORMATS), LANES)
ATTENTION = [f"kv_{operation}_{dtype}_v{width}" for operation, dtype, width in PARTS]
ALL = {*COPIES, *QUANTISERS, *DEQUANTISERS, *ATTENTION, "kv_combine", "kv_slot_mapping"}


@pytest.fixture(
    params=[
        a if a in PER_COMMIT else pytest.param(a, marks=pytest.mark.full) for a in ARCHITECTURES
    ],
    ids=lambda arch: f"sm_{arch}",
)
def arch(request: pytest.FixtureRequest) -> int:
    return request.param


@cache
def _compiled(arch: int, folder: Path) -> dict[str, Kernel]:
    return sass.kernels(sass.cubin(arch), folder)


@pytest.fixture
def compiled_for(arch: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    return _compiled(arch, tmp_path_factory.getbasetemp())


def faults(kernel: Kernel, arch: int) -> Iterator[str]:
    """Everything that should not be in this kernel's machine code."""
    if kernel.count(r"(LDL|STL)(\..*)?"):
        yield "spills registers to local memory"
    if kernel.count(r"(LD|ST|ATOM)(\..*)?"):
        yield "addresses memory generically: a pointer lost its address space"
    if kernel.count(r"BAR(\..*)?") or kernel.count(r"(LDS|STS)(\..*)?"):
        yield "uses shared memory or a barrier"
    # The exceptions: 1 / scale, once a thread, before the loop; and one division a row of combine.
    allowed = "rcp_rn_ftz_f32_slowpath" if kernel.name in QUANTISERS else "nothing"
    allowed = "div_rn_ftz_f32_slowpath" if kernel.name == "kv_combine" else allowed
    for call in kernel.calls:
        if not call.endswith(allowed):
            yield f"calls {call}"
    if len(kernel.calls) > 1:
        yield f"{len(kernel.calls)} calls"


def test_every_kernel_is_compiled(compiled_for):
    assert set(compiled_for) == ALL


def test_no_spills_no_generic_addresses_no_barriers_no_calls(compiled_for, arch):
    found = {name: list(faults(kernel, arch)) for name, kernel in compiled_for.items()}
    assert not {name: what for name, what in found.items() if what}


def test_rows_move_in_128_bit_vectors(compiled_for):
    for operation in ("write", "gather", "copy", "pack", "unpack"):
        kernel = compiled_for[f"kv_{operation}_v16"]
        assert kernel.count(r"LDG\..*128.*") >= 1, kernel.name
        assert kernel.count(r"STG\..*128.*") >= 1, kernel.name
    assert compiled_for["kv_fill_v16"].count(r"STG\..*128.*") >= 1


def test_keys_and_values_are_read_in_vectors_of_eight(compiled_for):
    for name in ATTENTION:
        if name.endswith("_v8"):
            load = r"LDG\..*64.*" if "fp8" in name else r"LDG\..*128.*"
            assert compiled_for[name].count(load) >= 1, name


def test_eight_numbers_are_quantised_from_128_bit_loads(compiled_for):
    for name in QUANTISERS:
        if name.endswith("_v8"):
            kernel, wide = compiled_for[name], 2 if "float32" in name else 1
            assert kernel.count(r"LDG\..*128.*") == wide, name
            assert kernel.count(r"STG\..*64.*") == 1, name


def test_eight_numbers_are_dequantised_to_128_bit_stores(compiled_for):
    for name in DEQUANTISERS:
        if name.endswith("_v8"):
            kernel, wide = compiled_for[name], 2 if "float32" in name else 1
            assert kernel.count(r"STG\..*128.*") == wide, name


def test_fp8_is_converted_by_the_hardware_where_there_is_some(compiled_for, arch):
    for name in QUANTISERS:
        converts = compiled_for[name].count(r"F2FP\.SATFINITE.*")
        assert (converts > 0) == (arch >= 89), name


def test_kernels_stay_small(compiled_for, arch):
    """Unrolled row loops or a 64-bit division would double these. From sm_100 on a row's scores are
    unrolled twice as far (848 instructions; 472 on sm_90)."""
    assert compiled_for["kv_write_v16"].size <= 256
    scores = {name for name in compiled_for if name.startswith("kv_scores_")}
    most = max(kernel.size for name, kernel in compiled_for.items() if name not in scores)
    assert most <= 560
    most = max(compiled_for[name].size for name in scores)
    assert most <= (900 if arch >= 100 else 560)


@pytest.mark.full
def test_the_software_conversion_can_be_compiled_for_every_architecture(tmp_path):
    soft = sass.kernels(sass.cubin(90, ("-DKV_SOFT_FP8",)), tmp_path)
    assert not any(kernel.count(r"F2FP\.SATFINITE.*") for kernel in soft.values())


def test_the_checks_see_what_they_look_for():
    broken = Kernel("kv_write_v16", ["$__internal_0_$__cuda_sm20_div_u64"])
    broken.opcodes.update(["LDL.64", "STG.E", "LD.E.128", "BAR.SYNC"])
    assert len(list(faults(broken, 90))) == 4


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_the_host_exports_the_same_kernels():
    library = load(host_library("exact"))
    assert all(getattr(library, f"{name}_launch") for name in ALL)
    source = sass.SOURCE.read_text()
    assert not re.findall(r"^KV_KERNEL\((?!kv_slot_mapping|kv_combine)", source, re.M)
