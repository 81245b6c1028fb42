"""`layout=auto`: no order of its own; each layer takes the first layout that holds its arrays."""

from __future__ import annotations

from kvpipe.layouts.base import Layout, LayoutChoice
from kvpipe.layouts.flash_attn import FlashAttn
from kvpipe.layouts.kv_packed import KVPacked
from kvpipe.layouts.mla import MLA, MLAWindow

# K and V, latent rows (of windows first), packed contents. States need no layout: they lie in their
# page as they are.
CANDIDATES: tuple[type[Layout], ...] = (FlashAttn, MLAWindow, MLA, KVPacked)


class AutoLayout(LayoutChoice):
    def candidates(self, movable: bool = False) -> tuple[Layout, ...]:
        return tuple(each() for each in CANDIDATES if each.is_movable or not movable)


PLUGIN = AutoLayout
