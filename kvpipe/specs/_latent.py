"""What the two latent (MLA) caches share: one row a token, from which K and V are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.plugins import SPECS
from kvpipe.specs._geometry import check_fields, count, dtype_of
from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import KVCacheSpec, PageArray, SpecContext, cdiv
from kvpipe.specs.bounds import Bound

# fp8_ds_mla: 512 fp8 numbers, 4 float32 scales and 64 bfloat16 of rope a token.
FP8_DS_MLA = "fp8_ds_mla"
FP8_DS_MLA_BYTES = 656
# Pages of rows that are not packed, where the model says that its pages are aligned at all.
PLAIN_ALIGNMENT = 512


@dataclass(frozen=True, kw_only=True)
class LatentSpec(AttentionSpec):
    """head_size: numbers of one row, latent and rope together (512 + 64). There is no V.

    cache_dtype: the configured word (`auto` resolved); layers under another word are not merged.
    alignment: bytes to whose multiple the page is rounded up; the difference is page padding.
    """

    optional_fields: ClassVar[tuple[str, ...]] = (
        "num_kv_heads", "dtype", "tokens_per_state", "block_size", "packed_bytes", "alignment",
    )  # fmt: skip

    is_latent: ClassVar[bool] = True
    # Sizes of a bound -> the kind of latent rows under it.
    forms: ClassVar[Mapping[tuple[str, ...], str]] = {(): "mla", ("sliding_window",): "sliding_mla"}

    num_kv_heads: int = 1
    cache_dtype: str | None = None
    alignment: int | None = None

    def __post_init__(self) -> None:
        if self.cache_dtype == FP8_DS_MLA and self.state_content_bytes is None:
            object.__setattr__(self, "state_content_bytes", FP8_DS_MLA_BYTES)
        super().__post_init__()
        if self.alignment and self.page_size_padded is None:
            aligned = cdiv(self.real_page_size_bytes, self.alignment) * self.alignment
            if aligned != self.real_page_size_bytes:
                object.__setattr__(self, "page_size_padded", aligned)

    @classmethod
    def from_geometry(cls, geometry: Mapping[str, Any], context: SpecContext) -> Self:
        """A row with a `dtype` of its own (an indexer's) is not stored as the run's cache_dtype.

        block_size: tokens of this layer's own blocks, whatever the run's are. packed_bytes: of a
        row under fp8_ds_mla; alignment: of its page, there (see PLAIN_ALIGNMENT)."""
        check_fields(cls.kind, geometry, ("head_size", *cls.more_fields), cls.optional_fields)
        number = partial(count, cls.kind, geometry)
        numbers: dict[str, Any] = {name: number(name) for name in cls.more_fields}
        own = geometry.get("dtype") is not None
        packed = context.cache_dtype == FP8_DS_MLA
        if "alignment" in geometry:
            numbers["alignment"] = number("alignment") if packed else PLAIN_ALIGNMENT
        if packed and not own:
            numbers["state_content_bytes"] = number("packed_bytes", FP8_DS_MLA_BYTES)
        return cls(
            block_size=number("block_size", context.block_size),
            num_kv_heads=number("num_kv_heads", 1),
            head_size=number("head_size"),
            tokens_per_state=number("tokens_per_state", 1),
            dtype=dtype_of(cls.kind, geometry, "uint8" if packed else context.dtype),
            cache_dtype=None if own else context.cache_dtype,
            **numbers,
        )

    def page_arrays(self) -> tuple[PageArray, ...]:
        if self.state_content_bytes is not None:
            return (self._rows("latent", "uint8", self.state_content_bytes),)
        return (self._rows("latent", self.dtype, self.head_size),)

    def under(self, bound: Bound, form: type[KVCacheSpec]) -> KVCacheSpec:
        """Rows stay rows: as the latent form of that bound, where there is one."""
        kind = self.forms.get(tuple(bound.sizes))
        if kind is None or bound == self.bound:
            return self
        latent: type[LatentSpec] = SPECS.get(kind)
        return self.retyped(
            latent, cache_dtype=self.cache_dtype, alignment=self.alignment, **bound.sizes
        )

    def shard(self, tp: int) -> Self:
        """Every rank needs the whole row: it is replicated under any tensor parallelism."""
        return self
