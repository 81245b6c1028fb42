"""What a decoding request reads of its cache: what each layer's spec says a query sees.

A window reads its window and a state itself, however long the request is. Figures of one rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from kvpipe.physics.lengths import Lengths
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.runs import num_indices


@dataclass(frozen=True, kw_only=True)
class CacheReads:
    """Bytes a token's query reads of a request of n tokens: fixed + slope * n + the windows, each
    bytes * min(n, W), and others that are asked of their spec."""

    fixed: float = 0.0
    slope: float = 0.0
    windows: tuple[tuple[float, int], ...] = ()
    others: tuple[tuple[float, KVCacheSpec], ...] = ()
    limits: RequestLimits = field(default=RequestLimits(max_model_len=1, max_num_batched_tokens=1))

    def of(self, lengths: Lengths) -> float:
        """Of requests of these lengths, together."""
        total = self.fixed * lengths.num + self.slope * lengths.total
        for width, window in self.windows:
            total += width * lengths.within(window)
        for width, spec in self.others:
            total += width * sum([_seen(spec, n, self.limits) for n in lengths.each()])
        return total


@lru_cache(maxsize=2**16)
def _seen(spec: KVCacheSpec, length: int, limits: RequestLimits) -> int:
    return num_indices(spec.visible(max(0, length - 1), limits))


def cache_reads(layers: Iterable[CacheLayer], limits: RequestLimits) -> CacheReads:
    """Layers that read another's cache are not counted again: it may still be on the chip."""
    stored = Counter(
        layer.spec for layer in layers if layer.shares_with is None and layer.spec.holds_blocks
    )
    fixed = slope = 0.0
    windows: Counter[int] = Counter()
    others: list[tuple[float, KVCacheSpec]] = []
    for spec, count in stored.items():
        width = count * spec.real_page_size_bytes
        bound = spec.bound
        if spec.is_state:
            fixed += width
            continue
        width_a_token = width / spec.block_size
        if bound is not None and not bound:
            slope += width_a_token
        elif bound is not None and list(bound.sizes) == ["sliding_window"]:
            windows[bound.sizes["sliding_window"]] += width_a_token  # type: ignore[assignment]
        else:
            others.append((width_a_token, spec))
    return CacheReads(
        fixed=fixed,
        slope=slope,
        windows=tuple((float(width), window) for window, width in windows.items()),
        others=tuple(others),
        limits=limits,
    )
