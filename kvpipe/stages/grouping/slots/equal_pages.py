"""Slots that vLLM's workers take: every layer's page has one size, and a slot is a number of pages.

A worker makes one array of pages for each place of a slot, which a layer of every group shares. So
groups may differ in tokens a block and in layers, but two layers of 80 tokens cannot lie where five
of 16 do, as they may where blocks are outermost:

    array 0   [ 16 tokens of layer 0 | 32 tokens of a drafter's layer 0 ]
    array 1   [ 16 tokens of layer 1 | empty                            ]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping.slots.kinds import Kind, Life

Lives = tuple[Life, ...]


def one_kind_each(lives: Sequence[Life]) -> Lives:
    """Kinds of one page have unlike block sizes, and so no table in common."""
    return tuple(Life(kinds=(kind,)) for life in lives for kind in life.kinds)


def equal_pages(choices: Sequence[Lives]) -> list[Lives]:
    """For each choice of block sizes, and each page that every kind can have, the blocks that fill
    it. States are padded to it."""
    found: dict[tuple[tuple[int, int], ...], Lives] = {}
    for lives in choices:
        for page in _common_pages(lives):
            narrowed = tuple(Life(kinds=(_of_page(life.kinds[0], page),)) for life in lives)
            found.setdefault(tuple((life.sizes[0], page) for life in narrowed), narrowed)
    return list(found.values())


def have_equal_pages(groups: Sequence[KVCacheGroupSpec]) -> bool:
    return len({g.layer_spec(n).page_size_bytes for g in groups for n in g.layer_names}) < 2


def padded(specs: Sequence[dict[str, KVCacheSpec]]) -> Iterator[dict[str, KVCacheSpec]]:
    """The layers of each table, states padded to the page of the others."""
    page = max((s.page_size_bytes for each in specs for s in each.values()), default=0)
    for each in specs:
        yield {name: _in_page(spec, page) for name, spec in each.items()}


def _common_pages(lives: Lives) -> list[int]:
    kinds = [life.kinds[0] for life in lives]
    states = [kind.page(tokens) for kind in kinds if kind.spec.is_state for tokens in kind.sizes]
    least = max(states, default=0)
    pages = [{k.page(t) for t in k.sizes} for k in kinds if not k.spec.is_state]
    if not pages:
        return [least]
    return sorted(page for page in set.intersection(*pages) if page >= least)


def _of_page(kind: Kind, page: int) -> Kind:
    sizes = {t: _in_page(spec, page) for t, spec in kind.sizes.items()}
    return replace(kind, sizes={t: s for t, s in sizes.items() if s.page_size_bytes == page})


def _in_page(spec: KVCacheSpec, page: int) -> KVCacheSpec:
    if not spec.is_state or spec.page_size_bytes == page:
        return spec
    return replace(spec, page_size_padded=page)
