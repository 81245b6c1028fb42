"""Where every byte of a cache lies: KVCacheConfig, layout, placement -> AddressMap. Integers only.

Uniform (one group of equal attention pages, and a placement that puts all layers in one buffer):
vLLM's `allocate_uniform_kv_caches`, in its six steps. Otherwise one buffer a tensor of the plan,
each shared by one layer of every group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from kvpipe.cache.addresses import AddressMap, GroupAddresses, LayerAddresses
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import Layout, LayoutChoice, PagePlace
from kvpipe.layouts.state import state_views
from kvpipe.plugins import REGISTRIES
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec
from kvpipe.stages.allocation._kernel_blocks import KernelBlocks
from kvpipe.stages.allocation._notes import restrided, split_apart
from kvpipe.stages.allocation._overlays import split_alike
from kvpipe.stages.allocation._slots import Slot, layer_slots
from kvpipe.stages.allocation.placements import LETTERED, lettered_place, one_buffer
from kvpipe.stages.allocation.soundness import check_sound


def address_map(
    config: KVCacheConfig,
    shared_layers: Iterable[tuple[str, str]] = (),
    layout: str | LayoutChoice = "auto",
    placement: str = "auto",
    *,
    kernel_block_size: int | None = None,
    any_kernel_block: bool = True,
    splits_apart_pages: bool = True,
) -> AddressMap:
    """The addresses of one rank's cache; ConfigError naming what cannot be.

    layout: a name, or a layout plugin with its options. auto is flash_attn for K and V (kv_packed
    under a lettered placement) and mla for latent rows; a named one must suit every attention
    layer. placement: auto is cross_layer where the model is uniform, per_tensor elsewhere (vLLM
    takes the cross-layer buffer only when a KV connector asks for it; nothing is lost by it, so
    here it is the default). kernel_block_size: tokens, of attention groups (None: the layout's
    option; auto: the largest that the layout's kernels take and that divides the block).
    any_kernel_block: CPU kernels take any size. splits_apart_pages: a page may be split where other
    layers' pages lie between it and the next, at a whole number of kernel blocks.
    """
    asked: LayoutChoice = REGISTRIES["layout"].get(layout)() if isinstance(layout, str) else layout
    known = tuple(asked.candidates(movable=placement in LETTERED))
    if kernel_block_size is None:
        kernel_block_size = asked.kernel_block_size
    shared = tuple((layer, target) for layer, target in shared_layers)
    kernel = KernelBlocks(kernel_block_size, any_kernel_block, splits_apart_pages)
    return _addresses(config, shared, known, placement, kernel)


@lru_cache(maxsize=32)  # jobs of a sweep often share a cache, and change what uses it
def _addresses(
    config: KVCacheConfig,
    shared_layers: tuple[tuple[str, str], ...],
    known: tuple[Layout, ...],
    placement: str,
    kernel: KernelBlocks,
) -> AddressMap:
    chosen = _choose_layouts(config, known)
    if placement in LETTERED:
        result = _lettered(config, chosen, placement, kernel)
    elif placement == "cross_layer" or (placement == "auto" and not _not_uniform(config, chosen)):
        if reason := _not_uniform(config, chosen):
            raise ConfigError(
                Problem(
                    "placement", "a uniform model for cross_layer", reason, "per_tensor suits it"
                )
            )
        result = _uniform(config, chosen, kernel)
    else:
        result = _per_group(config, chosen, kernel)
    check_sound(result, placement)
    return replace(result, shared_layers=shared_layers)


def _choose_layouts(config: KVCacheConfig, known: Sequence[Layout]) -> dict[str, Layout | None]:
    """Layer -> the first of `known` that holds its arrays; None for a state, which needs none."""
    problems = []
    chosen: dict[str, Layout | None] = {}
    for group in config.groups:
        for name in group.layer_names:
            spec = group.layer_spec(name)
            if spec.is_state:
                chosen[name] = None
                continue
            reasons = [(each, each.refuses(spec)) for each in known]
            fits = next((each for each, reason in reasons if not reason), None)
            chosen[name] = fits
            if fits is None:
                reason = "; ".join(f"{each.name}: {why}" for each, why in reasons)
                problems.append(Problem("layout", f"one that holds {name}", reason, "layout=auto"))
    if problems:
        more = f" (and {len(problems) - 1} more layers)" if problems[1:] else ""
        raise ConfigError(replace(problems[0], got=problems[0].got + more))
    return chosen


# --- the uniform path -------------------------------------------------------------------------
def _not_uniform(config: KVCacheConfig, chosen: dict[str, Layout | None]) -> str:
    """Why all layers cannot lie in one cross-layer buffer ("" if they can)."""
    if len(config.groups) != 1:
        return f"{len(config.groups)} groups"
    (group,) = config.groups
    if not group.layer_names:
        return "no layers"
    if None in chosen.values():
        return "a state, not attention"
    specs = [group.layer_spec(name) for name in group.layer_names]
    first = specs[0]
    pages = {(spec.block_size, spec.page_size_bytes, spec.page_arrays()) for spec in specs}
    if len(pages) != 1 or len({layout and layout.name for layout in chosen.values()}) != 1:
        return "layers with different pages"
    if first.page_size_bytes != first.real_page_size_bytes:
        return "padded pages"
    if any(len(tensor.pages) != 1 or tensor.pages[0].offset for tensor in config.tensors):
        return "a plan whose engine places every layer in one tensor itself"
    return ""


def _uniform(
    config: KVCacheConfig, chosen: dict[str, Layout | None], kernel: KernelBlocks
) -> AddressMap:
    """The six steps of `allocate_uniform_kv_caches`."""
    (group,) = config.groups
    names = [tensor.pages[0].layer for tensor in config.tensors]
    spec, layout = group.layer_spec(names[0]), chosen[names[0]]
    assert layout is not None
    # 1. All tensors have one size.
    sizes = {tensor.size_bytes for tensor in config.tensors}
    assert len(sizes) == 1, f"tensors of a uniform group differ in size: {sorted(sizes)}"
    # 2. Blocks of the manager.
    num_blocks = sizes.pop() // spec.page_size_bytes
    # 3. Blocks of the kernel: num_blocks * (block_size // kernel_block_size), in Layout.views.
    kernel_block_size = kernel.of(names[0], spec, layout, stride=None)
    # 4. and 5. The backend's shape, the layers dimension and the stride order are the layout's
    # `native_order` and `cross_order`; one contiguous buffer holds all layers.
    place = PagePlace(
        layer="",
        buffer=0,
        offset=0,
        num_blocks=num_blocks,
        block_size=spec.block_size,
        kernel_block_size=kernel_block_size,
        order=layout.cross_order,
        num_layers=len(names),
    )
    # 6. A slice a layer.
    layers = [
        _attention(spec, layout, 0, replace(place, layer=name, layer_index=i))
        for i, name in enumerate(names)
    ]
    return AddressMap(
        path="uniform",
        placement="cross_layer",
        num_blocks=num_blocks,
        buffers=(num_blocks * spec.page_size_bytes * len(names),),
        groups=_groups(config, layers),
        layers=tuple(layers),
    )


# --- one buffer a tensor of the plan --------------------------------------------------------------
def _per_group(
    config: KVCacheConfig, chosen: dict[str, Layout | None], kernel: KernelBlocks
) -> AddressMap:
    slots = layer_slots(config)
    alike = split_alike(slots, chosen)
    layers = []
    for slot in slots:
        layout = chosen[slot.layer]
        if layout is None:
            layers.append(_state(slot))
            continue
        whole = layout.tensor_order[0] != "B" and slot.layer in alike
        stride = None if whole or slot.packed else slot.block_stride
        place = PagePlace(
            layer=slot.layer,
            buffer=slot.buffer,
            offset=slot.offset,
            num_blocks=slot.num_blocks,
            block_size=slot.spec.block_size,
            kernel_block_size=kernel.of(slot.layer, slot.spec, layout, stride),
            order=layout.tensor_order if whole else "B" + layout.page_order,
            block_stride=None if whole else slot.block_stride,
        )
        layers.append(_attention(slot.spec, layout, slot.group, place))
    return AddressMap(
        path="per_group",
        placement="per_tensor",
        num_blocks=config.num_blocks,
        buffers=tuple(tensor.size_bytes for tensor in config.tensors),
        groups=_groups(config, layers),
        layers=tuple(layers),
        notes=restrided(layers, chosen, alike) + split_apart(layers),
    )


# --- the lettered placements ----------------------------------------------------------------------
def _lettered(
    config: KVCacheConfig,
    chosen: dict[str, Layout | None],
    placement: str,
    kernel: KernelBlocks,
) -> AddressMap:
    """H and N are fixed too, so only layouts that keep a token's content together can be moved."""
    for name, layout in chosen.items():
        if layout is not None and not layout.is_movable:
            raise ConfigError(
                Problem(
                    "placement",
                    f"layout kv_packed or mla for {placement}",
                    f"layout {layout.name} for {name}",
                    "layout=kv_packed, or placement=cross_layer",
                )
            )
    slots, size = one_buffer(config, placement)
    layers = []
    for slot in slots:
        layout = chosen[slot.layer]
        if layout is None:
            layers.append(_state(slot))
            continue
        kernel_block_size = kernel.of(slot.layer, slot.spec, layout, stride=0)
        place = lettered_place(slot, placement, kernel_block_size)
        layers.append(_attention(slot.spec, layout, slot.group, place))
    return AddressMap(
        path="per_group",
        placement=placement,
        num_blocks=config.num_blocks,
        buffers=(size,) if slots else (),
        groups=_groups(config, layers),
        layers=tuple(layers),
    )


# --- shared ---------------------------------------------------------------------------------------
def _attention(spec: KVCacheSpec, layout: Layout, group: int, place: PagePlace) -> LayerAddresses:
    views = layout.views(spec, place)
    return LayerAddresses(
        layer=place.layer,
        group=group,
        layout=layout.name,
        attention_backend=layout.attention_backend,
        views=views,
        native=layout.native_view(views),
    )


def _state(slot: Slot) -> LayerAddresses:
    views = state_views(
        slot.spec, slot.layer, slot.buffer, slot.offset, slot.block_stride, slot.num_blocks
    )
    for view in views:
        size = DTYPE_BYTES[view.dtype]
        if view.offset % size or view.strides[0] % size:
            raise ConfigError(
                Problem(
                    "cache.mamba_page_size_padded",
                    f"'{view.array}' of {view.layer} at a multiple of {size} bytes ({view.dtype})",
                    f"offset {view.offset}, page {view.strides[0]} bytes",
                    "choose state dtypes of one size, or another padding",
                )
            )
    return LayerAddresses(
        layer=slot.layer,
        group=slot.group,
        layout="state",
        attention_backend="STATE",
        views=views,
        native=None,
    )


def _groups(config: KVCacheConfig, layers: Sequence[LayerAddresses]) -> tuple[GroupAddresses, ...]:
    results = []
    for index, group in enumerate(config.groups):
        ours = [layer for layer in layers if layer.group == index]
        tokens = [
            layer.views[0].shape[1] * group.layer_spec(layer.layer).page_arrays()[0].tokens_per_row
            for layer in ours
            if layer.layout != "state"
        ]
        results.append(
            GroupAddresses(
                block_size=group.block_spec.block_size,
                kernel_block_size=min(tokens, default=group.block_spec.block_size),
                layouts=tuple(dict.fromkeys(layer.layout for layer in ours)),
                attention_backends=tuple(dict.fromkeys(layer.attention_backend for layer in ours)),
                page_size_bytes=group.block_spec.page_size_bytes,
                blocks_per_slot=group.blocks_per_slot,
            )
        )
    return tuple(results)
