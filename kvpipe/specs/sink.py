"""Full attention whose first tokens are kept as attention sinks (arXiv:2309.17453)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import Self

from kvpipe.specs.full import FullAttentionSpec


@dataclass(frozen=True, kw_only=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """sink_len: tokens at the front that are never dropped; carried along, it costs no bytes."""

    kind: ClassVar[str] = "sink"
    takes_scaled_rows: ClassVar[bool] = False
    optional_fields: ClassVar[tuple[str, ...]] = ("head_size_v", "dtype", "sink_len")

    sink_len: int | None = None

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls.example(3, sink_len=4), cls.example(16, sink_len=1)]


PLUGIN = SinkFullAttentionSpec
