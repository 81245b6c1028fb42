"""A stand-in for the part of CuPy that backend=cupy touches, on a machine without a GPU.

A machine has several devices, a current one, and streams whose launches may be held back until
somebody waits for the device (`FakeStream(deferred=True)`).

`RawModule` does not compile: it hands every launch, exactly as CuPy would receive it, to the exact
emulation of the same source. So the backend's grids, blocks, argument lists, streams and memory
handling are executed, whereas NVRTC and the device are not.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import torch

from kvpipe.backends.kernels import SOURCE
from kvpipe.backends.kernels.compile import host_library, load

MAX_THREADS, MAX_GRID = 1024, (2**31 - 1, 65535, 65535)


class FakeStream:
    """torch's stream and CuPy's at once; `entered` counts the launches made inside it."""

    def __init__(self, cuda_stream: int = 0, deferred: bool = False) -> None:
        self.cuda_stream, self.entered, self.active = cuda_stream, 0, False
        self.deferred, self.waiting = deferred, []

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def __enter__(self) -> FakeStream:
        self.entered, self.active = self.entered + 1, True
        return self

    def __exit__(self, *error: object) -> None:
        self.active = False


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class FakeCupy:
    """One instance is one machine: `total_bytes` of device memory, `launches` as they came."""

    __version__ = "0.fake"
    uint8 = "uint8"

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.library = load(host_library("exact"))
        self.total_bytes, self.used_bytes = total_bytes, 0
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        self.launched_on: list[int] = []
        self.streams: list[FakeStream] = []
        self.current_device = 0
        machine = self

        class Memory:
            def __init__(self, size: int) -> None:
                if machine.used_bytes + size > machine.total_bytes:
                    raise CUDARuntimeError(2)
                machine.used_bytes += size
                self.size = size
                self.tensor = torch.full((size,), 0xA5, dtype=torch.uint8)  # never zero by chance

            def __del__(self) -> None:
                if hasattr(self, "size"):
                    machine.used_bytes -= self.size

        class Device:
            compute_capability = "90"

            def __init__(self, index: int) -> None:
                self.index, self.before = index, []
                self.mem_info = (machine.total_bytes - machine.used_bytes, machine.total_bytes)

            def __enter__(self) -> Device:
                self.before.append(machine.current_device)
                machine.current_device = self.index
                return self

            def __exit__(self, *error: object) -> None:
                machine.current_device = self.before.pop()

            def synchronize(self) -> None:
                for stream in machine.streams:
                    while stream.waiting:
                        stream.waiting.pop(0)()

        def from_external(stream: FakeStream) -> FakeStream:
            stream.device = machine.current_device
            assert stream.__cuda_stream__()[1] == stream.cuda_stream
            machine.streams.append(stream)
            return stream

        def external_stream(address: int) -> FakeStream:
            machine.streams.append(FakeStream(address))
            return machine.streams[-1]

        self.cuda = SimpleNamespace(
            Memory=Memory,
            MemoryPointer=MemoryPointer,
            Device=Device,
            Stream=SimpleNamespace(from_external=from_external),
            ExternalStream=external_stream,
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                getDeviceProperties=lambda index: {"name": b"Fake GPU"},
            ),
        )

    def RawModule(self, *, code: str, options: tuple[str, ...], backend: str) -> FakeModule:
        assert code == SOURCE.read_text() and backend == "nvrtc" and "-std=c++17" in options
        return FakeModule(self)

    def ndarray(self, shape: tuple[int], *, dtype: str, memptr: MemoryPointer) -> FakeArray:
        assert dtype == "uint8" and shape == (memptr.memory.size,)
        return FakeArray(memptr)


class MemoryPointer:
    def __init__(self, memory, offset: int) -> None:
        assert offset == 0
        self.memory = memory

    def memset_async(self, value: int, size: int) -> None:
        self.memory.tensor[:size] = value


class FakeArray:
    """Exports its memory by DLPack, as cupy.ndarray does, and keeps it alive likewise."""

    def __init__(self, pointer: MemoryPointer) -> None:
        self.pointer = pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.pointer.memory.tensor.__dlpack_device__()

    def __dlpack__(self, **options: object) -> object:
        # CuPy's capsule holds the array and so the memory; torch's holds the tensor: tie the two.
        self.pointer.memory.tensor.owner = self.pointer.memory
        return self.pointer.memory.tensor.__dlpack__(**options)


class FakeModule:
    def __init__(self, machine: FakeCupy) -> None:
        self.machine = machine

    def get_function(self, name: str):
        function = getattr(self.machine.library, f"{name}_launch")
        loaded_on = self.machine.current_device

        def kernel(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...]) -> None:
            assert len(grid) == len(block) == 3 and all(type(n) is int for n in grid + block)
            assert all(0 < n <= most for n, most in zip(grid, MAX_GRID, strict=True)), grid
            assert block[0] * block[1] * block[2] <= MAX_THREADS, block
            # CuPy turns a Python int into an int64 and a float into a float64.
            assert all(type(arg) is int and -(2**63) <= arg < 2**63 for arg in args), args
            assert self.machine.current_device == loaded_on, "a module of another device"
            self.machine.launches.append((name, grid, block))
            self.machine.launched_on.append(loaded_on)
            words = (ctypes.c_uint64 * len(args))(*args)
            shape = (ctypes.c_uint32 * 6)(*grid, *block)

            def launch() -> None:
                assert function(words, len(args), shape, 1) == 0, "wrong number of arguments"

            (stream,) = [each for each in self.machine.streams if each.active]
            assert getattr(stream, "device", loaded_on) == loaded_on, "a stream of another device"
            stream.waiting.append(launch) if stream.deferred else launch()

        return kernel
