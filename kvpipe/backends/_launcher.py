"""What a plan needs of a backend whose work is done by kv_cache.cu, wherever the kernels run.

A plan (`write`, `gather`, `attention`) turns strides into the arguments of a launch; a Launcher
prepares launches and owns what outlives them: the error record, the scales, the plans themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from kvpipe.backends._errors import ErrorRecord
from kvpipe.backends.base import Array, Buffer
from kvpipe.backends.torch_ import TorchBackend

P = TypeVar("P")
_MAX_PLANS = 4096
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments. words: one 64-bit word a parameter; shape: grid x, y, z and
    block x, y, z. Both may be changed between runs."""

    run: Callable[[], object]
    words: Any
    shape: Any


class Launcher(TorchBackend):
    """Memory and views are the torch backend's."""

    # One thread moves a whole row: the longer the better. A GPU wants many short ones.
    long_rows: ClassVar[bool] = False

    def _start(self) -> None:
        """The persistent state of the kernels; subclasses call it when the device is chosen."""
        self.errors = ErrorRecord(self.torch, self.device, self.synchronize)
        self._plans: dict[Any, Any] = {}
        self._scales: dict[str, Array] = {}

    @abstractmethod
    def prepare(self, kernel: str, words: Sequence[int], shape: Sequence[int]) -> Launch:
        """A launch of `kernel` that can be repeated."""

    def synchronize(self) -> None:
        """Return when every launch of every stream is done. On a CPU they always are."""

    def check(self) -> None:
        self.errors.check()

    def adopt(self, tensor: Array) -> Buffer:
        """A buffer over memory the caller owns (an engine's own cache tensor); nothing is copied.

        tensor: contiguous, any dtype, on this backend's device. The buffer keeps it alive.
        """
        here = tensor.device.type == self.device.type
        if not tensor.is_contiguous() or not here:
            raise ValueError(
                f"adopt: a contiguous tensor on {self.device} wanted, got strides "
                f"{list(tensor.stride())} on {tensor.device}"
            )
        data = tensor.reshape(-1).view(self.torch.uint8)
        return Buffer(num_bytes=data.numel(), data=data)

    def scales_at(self, scales: Sequence[float]) -> int:
        """Address of two float32 on the device; the same one for the same scales, for ever."""
        pair = [float(scales[0]), float(scales[-1])]
        key = repr(pair)  # NaN is a scale one may ask for, and is not equal to itself
        if key not in self._scales:
            tensor = self.torch.tensor(pair, dtype=self.torch.float32, device=self.device)
            self._scales[key] = tensor
        return int(self._scales[key].data_ptr())

    def table(self, block_table: Any) -> Array:
        """int32 on the device. An id that int32 cannot hold becomes the largest one, which is past
        the end of every array, and so is reported: never the id that its low bits happen to be."""
        torch = self.torch
        table = torch.as_tensor(block_table, device=self.device)
        if table.dtype is torch.int32:
            return table
        return table.clamp(-1, _INT32_MAX).to(torch.int32)

    def remembered(self, key: Any, make: Callable[[], P]) -> P:
        """Plans are small and hold no memory, but a process may see many buffers."""
        if key not in self._plans:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = make()
        plan: P = self._plans[key]
        return plan
