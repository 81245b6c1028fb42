"""`allocation=buffers`: one uint8 buffer a tensor of the address map; views are made when asked."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.backends.base import Backend, Buffer
from kvpipe.cache.buffers import KVBuffers
from kvpipe.errors import DoesNotFit
from kvpipe.stages.allocation.base import Allocation, AllocationRequest

INIT_BYTE = {"zero": 0, "poison": 0xFF}


class Buffers(Allocation):
    class Options(BaseModel):
        """init: zero, or poison (0xFF, NaN in every float dtype: a read before a write shows)."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        init: Literal["zero", "poison"]

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: AllocationRequest, backend: Backend) -> KVBuffers:
        """DoesNotFit when the device has too little, before anything is taken."""
        _check_free(sum(request.addresses.buffers), backend)
        byte = INIT_BYTE[self.options.init]
        return KVBuffers(
            addresses=request.addresses,
            backend=backend,
            buffers=tuple(_filled(backend.allocate(n), byte) for n in request.addresses.buffers),
            init_byte=byte,
        )


def _check_free(num_bytes: int, backend: Backend) -> None:
    """All buffers together: a host hands out pages that it does not have, one buffer at a time."""
    if not backend.owns_memory:
        return
    free = backend.memory_info().free_bytes
    if num_bytes > free:
        raise DoesNotFit(
            f"allocation: the cache takes {num_bytes:,} bytes, {free:,} are free on "
            f"{backend.describe()['device']}; backend=meta plans without memory",
            needed_bytes=(num_bytes,),
            available_bytes=(free,),
            stage="allocation",
        )


def _filled(buffer: Buffer, byte: int) -> Buffer:
    """`allocate` zeroes; any other byte covers the padding between pages too."""
    if byte and buffer.data is not None:
        buffer.data.fill_(byte)
    return buffer


PLUGIN = Buffers
