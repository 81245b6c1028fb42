"""`layout=auto`: no order of its own; each layer takes the first layout that holds its arrays."""

from __future__ import annotations

from kvpipe.layouts.base import Layout, LayoutOptions

# K and V, latent rows, packed contents. States need no layout: they lie in their page as they are.
CANDIDATES = ("flash_attn", "mla", "kv_packed")
# Layouts that keep a token's content together, which is all that a lettered placement moves.
MOVABLE = ("kv_packed", "mla")


class AutoLayout:
    Options = LayoutOptions
    name = "auto"

    def __init__(self, options: LayoutOptions | None = None) -> None:
        self.options = options


def candidates(name: str, movable: bool = False) -> tuple[Layout, ...]:
    """The layouts that `layout=<name>` may give a layer, in order of preference. movable: for a
    placement that fixes heads and tokens too."""
    from kvpipe.plugins import REGISTRIES

    names = (name,) if name != "auto" else MOVABLE if movable else CANDIDATES
    return tuple(REGISTRIES["layout"].get(each)() for each in names)


PLUGIN = AutoLayout
