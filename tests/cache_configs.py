"""Small KVCacheConfigs built by hand, and the slow, obvious map of who owns which byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from kvpipe.cache.addresses import AddressMap, LayerAddresses
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, LayerPages
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.specs.uniform import UniformTypeKVCacheSpecs


def full(block: int = 4, heads: int = 2, head: int = 3, **more: object) -> FullAttentionSpec:
    fields = {"dtype": "bfloat16", **more}
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=head, **fields)


def names(count: int, start: int = 0, cache: str = "self_attn.attn") -> list[str]:
    return [f"model.layers.{start + i}.{cache}" for i in range(count)]


def config_of(
    groups: Sequence[tuple[Sequence[str], KVCacheSpec]], num_blocks: int = 7
) -> KVCacheConfig:
    """vLLM 0.17's tensors: one a layer for a "uniform" group, else tensor i for the i-th layer of
    every group, all pages being equal."""
    made = tuple(KVCacheGroupSpec(layer_names=tuple(n), spec=spec) for n, spec in groups)
    shared: list[list[str]] = []
    if len(made) == 1:
        shared = [[name] for name in made[0].layer_names]
    else:
        for i in range(max(len(group.layer_names) for group in made)):
            shared.append([g.layer_names[i] for g in made if i < len(g.layer_names)])
    page = {name: g.layer_spec(name).page_size_bytes for g in made for name in g.layer_names}
    tensors = tuple(
        KVCacheTensor(
            size_bytes=page[layers[0]] * num_blocks,
            pages=tuple(
                LayerPages(layer=name, offset=0, block_stride=page[name]) for name in layers
            ),
        )
        for layers in shared
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        tensors=tensors,
        groups=made,
        bytes_per_block=sum(page[layers[0]] for layers in shared),
    )


def uniform_type(layers: Sequence[tuple[str, KVCacheSpec]]) -> UniformTypeKVCacheSpecs:
    return UniformTypeKVCacheSpecs(block_size=layers[0][1].block_size, layers=tuple(layers))


def state(page: int | None, conv: tuple[int, ...] = (5, 3)) -> MambaSpec:
    """A bfloat16 convolution and a float32 SSM state of 48 bytes."""
    return MambaSpec(
        block_size=4,
        page_size_padded=page,
        states=(
            StateArray(name="conv", shape=conv, dtype="bfloat16"),
            StateArray(name="ssm", shape=(4, 3), dtype="float32"),
        ),
    )


def _hybrid_pages() -> list[tuple[Sequence[str], KVCacheSpec]]:
    """Jamba-like: attention and states in one pool, state pages padded to the attention page."""
    attention = full(block=16, heads=1, head=3)  # 16 * 1 * 6 * 2 = 192 bytes
    return [
        (names(2, 0), attention),
        (names(2, 2, "mixer"), state(192, (4, 4))),
        (names(1, 4, "mixer"), state(192, (4, 4))),
    ]


def _windows(block: int, heads: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block, num_kv_heads=heads, head_size=3, dtype="bfloat16", sliding_window=9
    )


def representative() -> dict[str, KVCacheConfig]:
    """Small versions of the kinds of models there are."""
    mla = MLAAttentionSpec(block_size=4, head_size=9, dtype="bfloat16", cache_dtype="auto")
    indexer = MLAAttentionSpec(block_size=4, head_size=5, dtype="uint8")
    mixed = [*((n, mla) for n in names(2)), *((n, indexer) for n in names(2, 0, "indexer"))]
    cross = CrossAttentionSpec(block_size=4, num_kv_heads=2, head_size=3, dtype="bfloat16")
    padded = full(block=3, heads=2, head=3).with_padded_page(80)
    return {
        "full": config_of([(names(3), full())]),
        "one token a block": config_of([(names(2), full(block=1, heads=3, head=5))]),
        "fp8": config_of([(names(2), full(block=3, dtype="fp8_e4m3"))]),
        "v narrower than k": config_of([(names(3), full(head_size_v=2))]),
        "gemma": config_of(
            [(names(2, 2 * i), _windows(4, 2)) for i in range(3)] + [(names(1, 6), full())]
        ),
        "gemma, other block sizes": config_of(
            [(names(2), _windows(8, 1)), (names(2, 2), full(4, 2))]
        ),
        "groups that split pages otherwise": config_of(
            [(names(2), full(4, 1, 6)), (names(2, 2), full(4, 1, 8, head_size_v=4))]
        ),
        "mla": config_of([(names(3), mla)]),
        "mla and indexer": config_of([(names(2) + names(2, 0, "indexer"), uniform_type(mixed))]),
        "jamba": config_of(_hybrid_pages()),
        "padded attention": config_of([(names(2), padded)]),
        "states alone": config_of([(names(3, 0, "mixer"), state(None, (4, 4)))]),
        "whisper": config_of(
            [(names(2), full()), (names(2, 0, "encoder_attn.attn"), cross)],
        ),
        "packed by the spec": config_of([(names(2), full(state_content_bytes=11))]),
    }


def elements(view_shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return product(*(range(count) for count in view_shape))


def bytes_of(layer: LayerAddresses, block: int, num_blocks: int) -> list[tuple[int, int]]:
    """(buffer, byte) of every element of one manager block, element by element."""
    found = []
    for view in layer.views:
        split = view.shape[0] // num_blocks
        size = DTYPE_BYTES[view.dtype]
        for index in elements((split, *view.shape[1:])):
            place = view.offset + (block * split + index[0]) * view.strides[0]
            place += sum(i * s for i, s in zip(index[1:], view.strides[1:], strict=True))
            found += [(view.buffer, place + byte) for byte in range(size)]
    return found


def collisions(addresses: AddressMap) -> list[str]:
    """Every byte that two block ids, or two layers of a group, or one layer twice, would own."""
    owners: dict[tuple[int, int], dict[tuple[int, int], str]] = {}
    found = []
    for layer in addresses.layers:
        for block in range(addresses.num_blocks):
            for byte in bytes_of(layer, block, addresses.num_blocks):
                if not 0 <= byte[1] < addresses.buffers[byte[0]]:
                    found.append(f"{layer.layer} block {block} is outside")
                held = owners.setdefault(byte, {})
                others = [key for key in held if key[0] == layer.group or key[1] != block]
                if others:
                    found.append(f"byte {byte}: {layer.layer} block {block} and {held[others[0]]}")
                held[layer.group, block] = f"{layer.layer} block {block}"
    return found
