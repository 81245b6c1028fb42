"""backend=cupy without a GPU: its memory, streams, arguments and what it says is missing."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest
import torch
from fake_cupy import FakeCupy, FakeStream

from kvpipe.backends import cupy_
from kvpipe.backends.cupy_ import CupyBackend
from kvpipe.errors import DoesNotFit
from kvpipe.layouts.base import ArrayView

VIEW = ArrayView(
    layer="l", array="k", buffer=0, dtype="bfloat16", per_token=True, offset=0,
    shape=(4, 16, 2, 64), strides=(4096, 256, 128, 2),
)  # fmt: skip


@pytest.fixture
def machine(compiled) -> FakeCupy:
    return FakeCupy(total_bytes=1 << 20)


def backend_on(machine: FakeCupy, stream=None) -> CupyBackend:
    stream = stream or FakeStream(3)
    return CupyBackend(cupy=machine, device=torch.device("cpu"), current_stream=lambda: stream)


def test_memory_is_one_raw_allocation_zeroed_and_seen_by_torch(machine):
    backend = backend_on(machine)
    buffer = backend.allocate(16384)
    assert machine.used_bytes == 16384 and not buffer.data.any()
    assert buffer.data.dtype == torch.uint8
    typed = backend.array(buffer, VIEW)
    assert typed.dtype == torch.bfloat16 and typed.data_ptr() == buffer.data.data_ptr()


def test_memory_lives_as_long_as_a_torch_view_of_it(machine):
    backend = backend_on(machine)
    typed = backend.array(backend.allocate(16384), VIEW)
    gc.collect()
    assert machine.used_bytes == 16384
    typed[0, 0, 0, 0] = 1
    del typed
    gc.collect()
    assert machine.used_bytes == 0


def test_memory_that_the_device_refuses_does_not_fit(machine):
    backend = backend_on(machine)
    with pytest.raises(DoesNotFit, match=r"2,097,152 bytes asked for, 1,048,576 free on the GPU"):
        backend.allocate(1 << 21)


def test_memory_info_is_the_devices(machine):
    backend = backend_on(machine)
    kept = backend.allocate(4096)
    info = backend.memory_info()
    assert (info.total_bytes, info.source) == (1 << 20, "cudaMemGetInfo")
    assert info.free_bytes == (1 << 20) - 4096
    del kept


def test_an_empty_buffer_takes_nothing(machine):
    assert backend_on(machine).allocate(0).data.numel() == 0 and machine.used_bytes == 0


def test_a_callers_tensor_is_adopted_without_a_copy(machine):
    backend = backend_on(machine)
    theirs = torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16)
    buffer = backend.adopt(theirs)
    assert buffer.num_bytes == 16384 and machine.used_bytes == 0
    backend.write_kv(buffer, VIEW, torch.ones(1, 2, 64).bfloat16(), torch.tensor([17]))
    assert theirs[1, 1].sum() == 128 and theirs.sum() == 128
    with pytest.raises(ValueError, match="a contiguous tensor on cpu wanted"):
        backend.adopt(theirs.transpose(0, 1))


def test_launches_are_ordered_on_torchs_current_stream(machine):
    streams = [FakeStream(5), FakeStream(9)]
    current = iter([streams[0], streams[0], streams[1]])
    backend = CupyBackend(
        cupy=machine, device=torch.device("cpu"), current_stream=lambda: next(current)
    )
    table, one = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    for _ in range(3):
        backend.slot_mapping(table, one, one, 16)
    assert [stream.entered for stream in streams] == [2, 1]
    assert machine.streams == streams  # one CuPy stream a torch stream, made once


def test_another_gpu_than_the_first_gets_its_own_module_streams_and_memory(machine):
    options, stream = CupyBackend.Options(name="cupy", device=1), FakeStream(3)
    backend = CupyBackend(
        options, cupy=machine, device=torch.device("cpu"), current_stream=lambda: stream
    )
    buffer = backend.allocate(16384)
    backend.write_kv(buffer, VIEW, torch.ones(1, 2, 64).bfloat16(), torch.tensor([17]))
    backend.gather(buffer, VIEW, torch.tensor([1], dtype=torch.int32), 16, 16)
    backend.fill([buffer], [VIEW], torch.tensor([0]), 1)
    assert set(machine.launched_on) == {1} and len(machine.launched_on) >= 3
    assert machine.current_device == 0  # the caller's device is current again


def test_an_error_of_another_stream_is_neither_missed_nor_cleared_away(machine):
    """Both streams hold their launches back, as a GPU does; `check` runs on the second."""
    streams = [FakeStream(5, deferred=True), FakeStream(9, deferred=True)]
    current = [streams[0]]
    backend = CupyBackend(
        cupy=machine, device=torch.device("cpu"), current_stream=lambda: current[0]
    )
    buffer = backend.adopt(torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16))
    new, slots = torch.ones(1, 2, 64).bfloat16(), [torch.tensor([64]), torch.tensor([65])]
    for current[0], each in zip(streams, slots, strict=True):
        backend.write_kv(buffer, VIEW, new, each)
    with pytest.raises(IndexError, match="slot 64, the last one is 63; 2 out of range"):
        backend.check()
    backend.check()


def test_a_stream_without_the_stream_protocol_is_known_by_its_address(machine):
    backend = backend_on(machine, stream=SimpleNamespace(cuda_stream=77))
    one = torch.zeros(1, dtype=torch.int64)
    backend.slot_mapping(torch.zeros(1, 1, dtype=torch.int32), one, one, 16)
    assert [stream.cuda_stream for stream in machine.streams] == [77]


def test_k_and_v_go_in_one_launch_with_a_thread_for_every_16_bytes(machine):
    backend = backend_on(machine)
    buffer = backend.adopt(torch.zeros(2, 4, 16, 2, 64, dtype=torch.bfloat16))
    rows = torch.ones(40, 2, 64).bfloat16()
    from dataclasses import replace

    targets = [(buffer, VIEW), (buffer, replace(VIEW, array="v", offset=16384))]
    backend.write_kv_pair(targets, [rows, rows], torch.arange(40))
    # Both heads are one row of 256 bytes: 16 lanes, 16 rows a block of 256 threads.
    assert machine.launches == [("kv_write_v16", (3, 2, 1), (16, 16, 1))]


@pytest.mark.parametrize(
    ("shift", "offset", "width", "kernel"),
    [
        (0, 0, 64, "kv_write_v16"),
        (1, 0, 64, "kv_write_v2"),
        (2, 0, 64, "kv_write_v4"),
        (8, 2, 64, "kv_write_v2"),
        (0, 4, 64, "kv_write_v4"),
        (0, 0, 66, "kv_write_v4"),
        (0, 0, 65, "kv_write_v2"),
    ],
)
def test_vectors_are_no_wider_than_addresses_and_rows_allow(machine, shift, offset, width, kernel):
    """x86 forgives a misaligned vector, a GPU does not. shift: numbers; offset: bytes."""
    backend = backend_on(machine)
    buffer = backend.adopt(torch.zeros(4096, dtype=torch.uint8))
    row = width * 2
    view = ArrayView(
        layer="l", array="k", buffer=0, dtype="bfloat16", per_token=True, offset=offset,
        shape=(2, 4, 1, width), strides=(4 * row, row, row, 2),
    )  # fmt: skip
    rows = torch.ones(shift + 2 * width, dtype=torch.bfloat16)[shift:].view(2, 1, width)
    backend.write_kv(buffer, view, rows, torch.tensor([0, 7]))
    assert machine.launches[-1][0] == kernel
    backend.gather(buffer, view, torch.tensor([1], dtype=torch.int32), 4, 4)
    stored = {"kv_write_v2": 2, "kv_write_v4": 4, "kv_write_v16": 16}[kernel]
    assert int(machine.launches[-1][0].removeprefix("kv_gather_v")) >= stored


@pytest.mark.parametrize(("shift", "lanes"), [(0, 8), (1, 1), (8, 8), (4, 1)])
def test_numbers_are_quantised_one_by_one_where_rows_are_misaligned(machine, shift, lanes):
    backend = backend_on(machine)
    buffer = backend.adopt(torch.zeros(4096, dtype=torch.uint8))
    view = ArrayView(
        layer="l", array="k", buffer=0, dtype="fp8_e4m3", per_token=True, offset=0,
        shape=(2, 4, 1, 64), strides=(256, 64, 64, 1),
    )  # fmt: skip
    rows = torch.ones(shift + 64, dtype=torch.bfloat16)[shift:].view(1, 1, 64)
    backend.write_kv(buffer, view, rows, torch.tensor([3]))
    assert machine.launches[-1][0] == f"kv_write_bfloat16_fp8_e4m3_v{lanes}"


@pytest.mark.parametrize(("offset", "width"), [(0, 8), (16, 8), (2, 1), (8, 1)])
def test_attention_loads_vectors_only_where_every_row_is_aligned(machine, offset, width):
    backend = backend_on(machine)
    buffer = backend.adopt(torch.zeros(32768, dtype=torch.uint8))
    view = ArrayView(
        layer="l", array="k", buffer=0, dtype="bfloat16", per_token=True, offset=offset,
        shape=(4, 4, 2, 64), strides=(1024, 256, 128, 2),
    )  # fmt: skip
    table, spans = torch.tensor([[1]], dtype=torch.int32), torch.tensor([[0, 4]])
    target = (buffer, view)
    backend.attend(target, target, torch.ones(1, 4, 64), table, spans, 4, 0.125)
    names = [name for name, _, _ in machine.launches[-3:]]
    of = f"bfloat16_v{width}"
    assert names == [f"kv_scores_{of}", f"kv_values_{of}", "kv_combine"]


def test_an_unaligned_staging_tensor_is_unpacked_in_narrow_vectors(machine):
    backend = backend_on(machine)
    buffer = backend.adopt(torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16))
    packed = torch.arange(4097, dtype=torch.int32).to(torch.uint8)[1:]
    backend.unpack([buffer], [VIEW], [2], packed)
    assert machine.launches[-1][0] == "kv_unpack_v1"
    assert torch.equal(backend.pack([buffer], [VIEW], [2]), packed)


def test_many_blocks_stay_inside_cudas_grid(machine):
    backend = backend_on(machine)
    buffer = backend.adopt(torch.zeros(70000, dtype=torch.uint8))
    view = ArrayView(
        layer="l", array="s", buffer=0, dtype="uint8", per_token=False, offset=0,
        shape=(70000, 1), strides=(1, 1),
    )  # fmt: skip
    backend.fill([buffer], [view], torch.arange(70000), 7)
    assert machine.launches[-1][1] == (1, 65535, 1)
    assert (buffer.data == 7).all()


def test_the_description_names_device_compiler_and_source(machine):
    told = backend_on(machine).describe()
    assert told["backend"] == "cupy" and told["device"] == "Fake GPU"
    assert told["build"].startswith("cupy 0.fake nvrtc 13.0 sm_90 ")
    assert len(told["build"].split()[-1]) == 12


# --- what is missing, one line each ------------------------------------------------------------


def problem(monkeypatch, *, cupy=None, device=True, cuda="13.0") -> str:
    real = cupy_.find_spec
    monkeypatch.setattr(cupy_, "find_spec", lambda name: cupy if name == "cupy" else real(name))
    monkeypatch.setattr(cupy_, "cuda_device", lambda: object() if device else None)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    if cupy is not None:
        monkeypatch.setitem(sys.modules, "cupy", cupy)
    problems = CupyBackend.problems()
    assert len(problems) <= 1
    return str(problems[0]) if problems else ""


def installed(*, available=True, nvrtc=True):
    def version():
        if not nvrtc:
            raise RuntimeError("libnvrtc not found")
        return (13, 0)

    runtime = SimpleNamespace(driverGetVersion=lambda: 12080, runtimeGetVersion=lambda: 13020)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: available,
            runtime=runtime,
            nvrtc=SimpleNamespace(getVersion=version),
        )
    )


def test_without_cupy_the_extra_is_named(monkeypatch):
    assert problem(monkeypatch) == (
        "backend: expected CuPy to be installed, got no cupy; "
        "pip install 'kvpipe[cuda13]' (cuda12 for older drivers), or choose backend=host"
    )


def test_without_a_driver_one_line_says_so(monkeypatch):
    assert problem(monkeypatch, cupy=installed(), device=False) == (
        "backend: expected an NVIDIA GPU and its driver, got no libcuda.so.1 or no device; "
        "choose backend=host"
    )


def test_an_old_driver_is_told_which_cuda_it_lacks(monkeypatch):
    line = problem(monkeypatch, cupy=installed(available=False))
    assert line.startswith("backend: expected a driver for CUDA 13, got one for 12; pip install")


def test_without_nvrtc_the_extra_is_named(monkeypatch):
    line = problem(monkeypatch, cupy=installed(nvrtc=False))
    assert "expected NVRTC, which compiles the kernels, got no libnvrtc; pip install" in line


def test_torch_for_the_cpu_is_not_enough(monkeypatch):
    line = problem(monkeypatch, cupy=installed(), cuda=None)
    assert "expected a CUDA build of PyTorch" in line and "choose backend=host" in line


def test_nothing_is_missing_where_everything_is_here(monkeypatch):
    assert problem(monkeypatch, cupy=installed()) == ""
