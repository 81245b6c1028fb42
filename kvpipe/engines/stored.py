"""The layers of one rank as engines with pools of their own tell them apart.

Full: every token stays. Windows: the last W tokens, by W. States: the same bytes however long the
request. What else a layer may be (chunks, first tokens kept, the K and V of an encoder's output,
rows that stand for several tokens) nobody has read in these engines: it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import DTYPE_BYTES, CacheLayer, KVCacheSpec, PageArray
from kvpipe.specs.packed_types import PACKED, packed_bytes


@dataclass(frozen=True, kw_only=True)
class StoredRow:
    """What one layer stores for one token. num_bytes: in the dtype of the request. numbers: K, V
    or the latent row, as counts of numbers by array name."""

    name: str
    arrays: tuple[PageArray, ...]
    is_latent: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(array.num_bytes(1) for array in self.arrays)

    def bytes_as(self, cache_dtype: str) -> int:
        """Under the word of the request: a packed type has its own size for each array."""
        if cache_dtype not in PACKED:
            return self.num_bytes
        rows = (array.num_heads * array.width for array in self.arrays)
        return sum(packed_bytes(numbers, cache_dtype) for numbers in rows)

    @property
    def numbers(self) -> int:
        return sum(array.num_heads * array.width for array in self.arrays)


@dataclass(frozen=True, kw_only=True)
class StoredState:
    """The arrays of one recurrent layer: a convolution's, and what it scans."""

    name: str
    arrays: tuple[PageArray, ...]

    def num_bytes(self, ssm_dtype: str | None = None) -> int:
        """ssm_dtype: of all but the convolution's (None: as in the request)."""
        return sum(
            prod(array.shape)
            * DTYPE_BYTES[array.dtype if _is_conv(array) else ssm_dtype or array.dtype]
            for array in self.arrays
        )

    @property
    def numbers(self) -> int:
        return sum(prod(array.shape) for array in self.arrays)

    @property
    def conv_numbers(self) -> int:
        return sum(prod(array.shape) for array in self.arrays if _is_conv(array))

    @property
    def conv_bytes(self) -> int:
        return sum(array.num_bytes(1) for array in self.arrays if _is_conv(array))


def _is_conv(array: PageArray) -> bool:
    return array.name.startswith("conv")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """windows: W -> the rows of its layers."""

    full: tuple[StoredRow, ...]
    windows: dict[int, tuple[StoredRow, ...]]
    states: tuple[StoredState, ...]

    @property
    def has_latent(self) -> bool:
        return any(row.is_latent for row in self.full)

    @property
    def is_empty(self) -> bool:
        return not (self.full or self.windows or self.states)


def stored(layers: Sequence[CacheLayer], engine: str) -> Stored:
    """ConfigError where a layer is none of the three. Layers that share another's cache store
    nothing."""
    full: list[StoredRow] = []
    windows: dict[int, list[StoredRow]] = {}
    states: list[StoredState] = []
    for layer in layers:
        if layer.shares_with is not None:
            continue
        spec = layer.spec
        if spec.is_state:
            states.append(StoredState(name=layer.name, arrays=spec.page_arrays()))
        elif (window := _window(layer, engine)) is None:
            full.append(_row(layer))
        else:
            windows.setdefault(window, []).append(_row(layer))
    if not (full or windows or states):
        raise ConfigError(Problem("model", f"layers that store something ({engine})", "none"))
    return Stored(
        full=tuple(full),
        windows={window: tuple(rows) for window, rows in windows.items()},
        states=tuple(states),
    )


def _row(layer: CacheLayer) -> StoredRow:
    spec = layer.spec
    return StoredRow(name=layer.name, arrays=spec.page_arrays(), is_latent=spec.is_latent)


def _window(layer: CacheLayer, engine: str) -> int | None:
    """W of a window; None where every token stays."""
    spec = layer.spec
    problem = _unread(spec)
    if problem:
        raise ConfigError(
            Problem(
                "engine.name",
                f"an engine that is planned with {problem}: engine=kvpipe or engine=vllm",
                f"'{engine}', whose rules for them are not known here (layer {layer.name})",
            )
        )
    if spec.keeps_every_token or spec.bound is None:
        return None
    return spec.bound.sliding_window


def _unread(spec: KVCacheSpec) -> str:
    """What a layer is beside full attention and plain windows; "" where it is one of these."""
    if not spec.holds_blocks:
        return "an encoder's layers"
    if spec.bound is None:
        return "the K and V of an encoder's output"
    if any(array.tokens_per_row > 1 for array in spec.page_arrays()):
        return "rows that stand for several tokens"
    if spec.frees_tokens and list(spec.bound.sizes) != ["sliding_window"]:
        return f"layers bounded by {' and '.join(spec.bound.sizes)}"
    return ""
