"""Which releases of vLLM store rows with scales of their own, and on which cards.

Source: cache configuration and attention backends of 0.28.0, 0.30.0 and 0.32.0. Older releases were
not read for it; those between and after are inferred. NVFP4 is FlashInfer's: on compute capability
10.x, and in 0.32.0 also on 8.x, 9.x and 12.x, there not with heads of 64.
"""

from __future__ import annotations

from kvpipe.engines.versions import Version

OLDEST: Version = (0, 28, 0)
READ: tuple[Version, ...] = ((0, 28, 0), (0, 30, 0), (0, 32, 0))
_MORE_CARDS: Version = (0, 32, 0)
NVFP4_HEADS = (64, 128, 256, 512)


def nvfp4_card_problem(release: Version, capability: tuple[int, int], head_size: int) -> str:
    """What such a cache needs there that is not so; "" where it is stored."""
    major = capability[0]
    if major == 10:
        return ""
    if release < _MORE_CARDS:
        return "compute capability 10.x"
    if major not in (8, 9, 12):
        return "compute capability 8.x, 9.x, 10.x or 12.x"
    return "heads of more than 64 numbers, or compute capability 10.x" if head_size == 64 else ""
