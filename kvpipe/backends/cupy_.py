"""`backend=cupy`: the CUDA kernels on an NVIDIA GPU, compiled by NVRTC through CuPy.

The cache is one `cupy.cuda.Memory`: a raw cudaMalloc outside CuPy's pool, which can then neither
split nor count it. torch sees it through DLPack as uint8 (CuPy has no bfloat16 and no fp8), and
every dtype is a torch view of that. CuPy keeps compiled kernels in ~/.cupy/kernel_cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.backends._launch import KernelBackend
from kvpipe.backends._launcher import Launch
from kvpipe.backends.base import Buffer, MemoryInfo
from kvpipe.backends.cuda_driver import cuda_device
from kvpipe.backends.kernels import SOURCE
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.errors import DoesNotFit, Problem

NVRTC_OPTIONS = ("-std=c++17",)
_CUDA_ERROR_MEMORY_ALLOCATION = 2


class CupyBackend(KernelBackend):
    class Options(BaseModel):
        """device: index of the GPU among those that are visible."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        device: Annotated[int, Field(ge=0)] = 0

        @property
        def gpu_index(self) -> int:
            return self.device

    name = "cupy"

    def __init__(
        self,
        options: Options | None = None,
        *,
        cupy: Any = None,
        device: Any = None,
        current_stream: Callable[[], Any] | None = None,
    ) -> None:
        """cupy, device, current_stream: CuPy, torch's device and torch's current stream on it;
        tests without a GPU put a stand-in here that executes the launches on the CPU."""
        super().__init__()
        self.index = options.device if options else 0
        self.cupy = cupy or import_module("cupy")
        self.device = device or self.torch.device("cuda", self.index)
        self._current_stream = current_stream or self._torch_stream
        self._streams: dict[int, Any] = {}
        self._module = self.cupy.RawModule(
            code=SOURCE.read_text(), options=NVRTC_OPTIONS, backend="nvrtc"
        )
        self._start()

    @classmethod
    def problems(cls) -> list[Problem]:
        """The first thing that is missing, in the order in which one would install it."""
        missing = TorchBackend.problems()
        if missing:
            return missing
        expected, got, knob = _first_missing()
        return [Problem("backend", expected, got, knob)] if expected else []

    def describe(self) -> dict[str, str]:
        """build: CuPy, NVRTC, the architecture compiled for, and the source's own hash."""
        with self.cupy.cuda.Device(self.index) as device:
            name = self.cupy.cuda.runtime.getDeviceProperties(self.index)["name"]
            major, minor = self.cupy.cuda.nvrtc.getVersion()
            arch = device.compute_capability
        digest = sha256(SOURCE.read_bytes()).hexdigest()[:12]
        return {
            "backend": self.name,
            "device": name.decode() if isinstance(name, bytes) else str(name),
            "build": f"cupy {self.cupy.__version__} nvrtc {major}.{minor} sm_{arch} {digest}",
        }

    # --- memory -----------------------------------------------------------------------------------
    def memory_info(self) -> MemoryInfo:
        free, total = self.cupy.cuda.Device(self.index).mem_info
        return MemoryInfo(total_bytes=total, free_bytes=free, source="cudaMemGetInfo")

    def allocate(self, num_bytes: int) -> Buffer:
        if num_bytes == 0:
            empty = self.torch.empty(0, dtype=self.torch.uint8, device=self.device)
            return Buffer(num_bytes=0, data=empty)
        with self.cupy.cuda.Device(self.index), self._stream():
            memory = self._raw_memory(num_bytes)
            start = self.cupy.cuda.MemoryPointer(memory, 0)
            start.memset_async(0, num_bytes)
            array = self.cupy.ndarray((num_bytes,), dtype=self.cupy.uint8, memptr=start)
            # The capsule holds the array, the array its memory: it lives as long as a torch view.
            return Buffer(num_bytes=num_bytes, data=self.torch.from_dlpack(array))

    def _raw_memory(self, num_bytes: int) -> Any:
        try:
            return self.cupy.cuda.Memory(num_bytes)
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != _CUDA_ERROR_MEMORY_ALLOCATION:
                raise
            free = self.memory_info().free_bytes
            raise DoesNotFit(
                f"allocation: {num_bytes:,} bytes asked for, {free:,} free on the GPU; "
                "backend=meta plans without memory",
                needed_bytes=(num_bytes,),
                available_bytes=(free,),
                stage="allocation",
            ) from error

    def to_host(self, packed: Any) -> Any:
        """Into page-locked memory, which one DMA can fill."""
        host = self.torch.empty(
            packed.shape, dtype=self.torch.uint8, pin_memory=packed.device.type == "cuda"
        )
        return host.copy_(packed)

    # --- launches -------------------------------------------------------------------------------
    def prepare(self, kernel: str, words: Sequence[int], shape: Sequence[int]) -> Launch:
        here = self.cupy.cuda.Device(self.index)
        with here:  # a module is loaded into the context of the current device
            function = self._module.get_function(kernel)
        kept, grid = list(words), list(shape)

        def run() -> None:
            # A Python int becomes a 64-bit argument in CuPy: what every kernel parameter is.
            with here, self._stream():
                function(tuple(grid[:3]), tuple(grid[3:]), tuple(kept))

        return Launch(run=run, words=kept, shape=grid)

    def synchronize(self) -> None:
        self.cupy.cuda.Device(self.index).synchronize()

    def _torch_stream(self) -> Any:
        return self.torch.cuda.current_stream(self.device)

    def _stream(self) -> Any:
        """torch's current stream as CuPy's: kernels run in order with the tensors they work on."""
        stream = self._current_stream()
        address = stream.cuda_stream
        if address not in self._streams:
            external = self.cupy.cuda.Stream.from_external
            if not hasattr(stream, "__cuda_stream__"):  # torch before the stream protocol
                stream, external = address, self.cupy.cuda.ExternalStream
            self._streams[address] = external(stream)
        return self._streams[address]


def _first_missing() -> tuple[str, str, str]:
    """What is expected, what was found, what to do; empty strings when everything is here."""
    other = "or choose backend=host"
    install = f"pip install 'kvpipe[cuda13]' (cuda12 for older drivers), {other}"
    if find_spec("cupy") is None:
        return "CuPy to be installed", "no cupy", install
    if cuda_device() is None:
        return "an NVIDIA GPU and its driver", "no libcuda.so.1 or no device", other[3:]
    import cupy
    import torch

    if not cupy.cuda.is_available():
        version = cupy.cuda.runtime.driverGetVersion()
        wanted = cupy.cuda.runtime.runtimeGetVersion()
        return f"a driver for CUDA {wanted // 1000}", f"one for {version // 1000}", install
    try:
        cupy.cuda.nvrtc.getVersion()
    except RuntimeError:  # cuda.pathfinder's DynamicLibNotFoundError is one
        return "NVRTC, which compiles the kernels", "no libnvrtc", install
    if torch.version.cuda is None:
        return "a CUDA build of PyTorch", torch.__version__, f"install torch for CUDA, {other}"
    return "", "", ""


PLUGIN = CupyBackend
