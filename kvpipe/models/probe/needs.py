"""What a model keeps between steps, layer by layer, as transformers keeps it.

The one description that both views are made from. H KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvpipe.specs.mamba import StateArray


@dataclass(frozen=True, kw_only=True)
class KVNeed:
    """K [H, D] and V [H, D] of every token. window: tokens a query may see, itself included (None:
    all), and chunked: whether it is a chunk instead. latent: K is an MLA latent, V its rope part,
    which an engine stores as one row."""

    num_heads: int
    head_size: int
    head_size_v: int
    dtype: str
    window: int | None = None
    chunked: bool = False
    latent: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerNeeds:
    """Of one model layer. states: convolution states first, with as many columns as the kernel.
    num_states: separate (convolution, recurrent) pairs of this layer. in_modules: states that the
    model keeps in its modules instead of in its cache. shares_with: the layer whose K/V this one
    reads. indexer: numbers of a sparse-attention key a token."""

    index: int
    attention: KVNeed | None = None
    cross: KVNeed | None = None
    states: tuple[StateArray, ...] = ()
    num_states: int = 0
    in_modules: tuple[StateArray, ...] = ()
    indexer: int = 0
    shares_with: int | None = None


def state_name(kind: str, number: int) -> str:
    """conv, conv_1, conv_2: of a layer with several states of a kind."""
    return f"{kind}_{number}" if number else kind


def dtype_name(dtype: Any) -> str:
    """torch.bfloat16 -> "bfloat16"; as kvpipe's specs spell it."""
    name = str(dtype).removeprefix("torch.")
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(name, name)
