"""`layout=auto`: no order of its own; each layer takes the first layout that holds its arrays."""

from __future__ import annotations

from kvpipe.layouts.base import Layout, LayoutOptions

# K and V, latent rows, packed contents. States need no layout: they lie in their page as they are.
CANDIDATES = ("flash_attn", "mla", "kv_packed")


class AutoLayout:
    Options = LayoutOptions
    name = "auto"

    def __init__(self, options: LayoutOptions | None = None) -> None:
        self.options = options


def candidates(name: str) -> tuple[Layout, ...]:
    """The layouts that `layout=<name>` may give a layer, in order of preference."""
    from kvpipe.plugins import REGISTRIES

    names = CANDIDATES if name == "auto" else (name,)
    return tuple(REGISTRIES["layout"].get(each)() for each in names)


PLUGIN = AutoLayout
