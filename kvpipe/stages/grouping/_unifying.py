"""One page size for all groups of a pool: larger blocks where that divides, padding elsewhere."""

from __future__ import annotations

from kvpipe.engines.base import EngineRules
from kvpipe.errors import ConfigError
from kvpipe.specs.base import KVCacheSpec, cdiv
from kvpipe.stages.grouping._merging import Layers, distinct
from kvpipe.stages.grouping._problems import about, refuse


def page_sizes(layers: Layers) -> list[int]:
    """The page sizes that occur, in order of appearance."""
    return list(dict.fromkeys(spec.page_size_bytes for spec in distinct(layers.values())))


def unified(layers: Layers, rules: EngineRules) -> Layers:
    """The layers with every page as large as the largest. ConfigError (NotImplementedError or
    AssertionError there) where the engine's policy cannot."""
    pages = page_sizes(layers)
    if len(pages) == 1:
        return layers
    largest = max(pages)
    enlarge = {"refuse": _divide_or_refuse, "pad_states": _pad_states, "pad": _pad_the_rest}
    policy = enlarge[rules.unify_pages]
    one: dict[KVCacheSpec, KVCacheSpec] = {}
    turned: dict[int, KVCacheSpec] = {}
    for spec in distinct(layers.values()):
        try:
            new = spec if spec.page_size_bytes == largest else policy(spec, largest, rules)
            if new.page_size_bytes != largest:
                raise refuse(
                    "cache.block_size",
                    f"pages that become {largest:,} bytes in larger blocks",
                    f"a {spec.kind} page of {new.page_size_bytes:,} bytes",
                    "set engine=kvpipe, which pads",
                    reference="AssertionError",
                )
        except ConfigError as error:
            raise about(error, [name for name, mine in layers.items() if mine is spec]) from None
        turned[id(spec)] = one.setdefault(new, new)
    return {name: turned[id(spec)] for name, spec in layers.items()}


def unpaddable(layers: Layers, rules: EngineRules) -> bool:
    """Whether some page neither divides the largest nor may be padded by this engine."""
    largest = max(page_sizes(layers))
    return any(
        spec.stores in rules.unpaddable and largest % spec.page_size_bytes
        for spec in distinct(layers.values())
    )


def _in_larger_blocks(spec: KVCacheSpec, largest: int) -> KVCacheSpec:
    """More tokens a block; a page padded by hand keeps its size, and so does not grow."""
    larger = spec.with_block_size(spec.block_size * (largest // spec.page_size_bytes))
    padded_by_hand = spec.page_size_padded is not None and larger.page_size_padded is None
    return spec if padded_by_hand else larger


def _divide_or_refuse(spec: KVCacheSpec, largest: int, rules: EngineRules) -> KVCacheSpec:
    if largest % spec.page_size_bytes:
        raise refuse(
            "cache.block_size",
            f"pages that divide the largest, {largest:,} bytes",
            f"a {spec.kind} page of {spec.page_size_bytes:,} bytes",
            f"set engine=kvpipe, which pads{_aligning(spec, largest)}",
            reference="NotImplementedError",
        )
    return _in_larger_blocks(spec, largest)


def _aligning(spec: KVCacheSpec, largest: int) -> str:
    """The block size in tokens whose page would hold the largest one."""
    if spec.is_state:
        return f", or pad states: cache.mamba_page_size_padded={largest}"
    token = spec.page_size_bytes // spec.block_size
    tokens = cdiv(cdiv(largest, token), 16) * 16
    return f", or align: {tokens:,} tokens ({tokens * token:,} bytes) would hold the largest page"


def _pad_states(spec: KVCacheSpec, largest: int, rules: EngineRules) -> KVCacheSpec:
    if spec.is_state:
        return spec.with_padded_page(largest)
    if largest % spec.page_size_bytes == 0:
        return _in_larger_blocks(spec, largest)
    if spec.stores in rules.unpaddable:
        raise refuse(
            "engine.name",
            f"an engine that pads {spec.kind} pages ({rules.name} does not)",
            f"a page of {spec.page_size_bytes:,} bytes beside {largest:,}",
            "set engine=kvpipe",
            reference="NotImplementedError",
        )
    return spec.with_padded_page(largest)


def _pad_the_rest(spec: KVCacheSpec, largest: int, rules: EngineRules) -> KVCacheSpec:
    """As many tokens as fit, then padding: less is wasted than by padding alone."""
    if not spec.is_state:
        times = max(1, largest // spec.page_size_bytes)
        spec = spec.with_block_size(spec.block_size * times)
    return spec if spec.page_size_bytes == largest else spec.with_padded_page(largest)
