"""Full attention whose first tokens are kept as attention sinks (arXiv:2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpipe.specs.full import FullAttentionSpec


@dataclass(frozen=True, kw_only=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """sink_len: tokens at the front that are never dropped; carried along, it costs no bytes."""

    kind: ClassVar[str] = "sink"
    optional_fields: ClassVar[tuple[str, ...]] = ("head_size_v", "dtype", "sink_len")

    sink_len: int | None = None


PLUGIN = SinkFullAttentionSpec
