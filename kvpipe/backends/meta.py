"""`backend=meta`: a device that owns no memory. Everything can be planned, nothing can be stored.

The tutorial of this folder: a backend is a class with a name, `Options`, and the operations of
base.py. Here every operation is accepted and moves nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from kvpipe.backends.base import Backend, Buffer, MemoryInfo
from kvpipe.backends.host_memory import host_memory


class MetaBackend(Backend):
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    name = "meta"
    owns_memory: ClassVar[bool] = False

    def __init__(self, options: Options | None = None) -> None:
        self.options = options

    def describe(self) -> dict[str, str]:
        return {"backend": self.name, "device": "none", "build": "none"}

    def memory_info(self) -> MemoryInfo:
        """Of the host: a device that is planned for but absent says its own size elsewhere."""
        return host_memory()

    def allocate(self, num_bytes: int) -> Buffer:
        return Buffer(num_bytes=num_bytes, data=None)

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    array = fill = write_kv = gather = gather_heads = attend = copy_blocks = slot_mapping = pack = (
        unpack
    ) = _nothing


PLUGIN = MetaBackend
