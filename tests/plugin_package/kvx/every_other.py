"""attention=kvx_every_other: a cache with one head less than full attention, as a what-if."""

from dataclasses import dataclass, fields
from typing import ClassVar

from kvpipe.specs.full import FullAttentionSpec


@dataclass(frozen=True, kw_only=True)
class EveryOtherSpec(FullAttentionSpec):
    kind: ClassVar[str] = "kvx_every_other"

    @classmethod
    def what_if(cls, spec, options):
        if spec.is_state:
            return spec
        values = {field.name: getattr(spec, field.name) for field in fields(spec)}
        return cls(**{**values, "num_kv_heads": max(1, spec.num_kv_heads // 2)})
