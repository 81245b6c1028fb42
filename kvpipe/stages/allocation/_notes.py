"""What a reader of an address map should know: layers that lie otherwise than their layout says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpipe.cache.addresses import LayerAddresses
from kvpipe.layouts.base import Layout


def restrided(
    layers: Sequence[LayerAddresses], chosen: Mapping[str, Layout | None], alike: set[str]
) -> tuple[str, ...]:
    moved = [
        layer.layer
        for layer in layers
        if (layout := chosen[layer.layer]) is not None
        and layout.tensor_order[0] != "B"
        and layer.layer not in alike
    ]
    if not moved:
        return ()
    return (
        f"{len(moved)} attention layers are re-strided: K and V of a block lie in its own page, "
        "because other layers split the same bytes differently, or lie beside it in a slot (first: "
        f"{moved[0]})",
    )


def split_apart(layers: Sequence[LayerAddresses]) -> tuple[str, ...]:
    """Blocks that kernels read as several of their own."""
    found = {layer.layer: layer.views[0] for layer in layers if layer.views[0].ids_apart}
    if not found:
        return ()
    sizes = ", ".join(f"{rows} tokens" for rows in sorted({v.shape[1] for v in found.values()}))
    first, view = next(iter(found.items()))
    return (
        f"{len(found)} attention layers are read in kernel blocks of {sizes}, smaller than their "
        f"blocks: other layers' pages lie between, so that {view.ids_apart} ids of {first} reach "
        "from one block to the next (address_map: ids_apart)",
    )
