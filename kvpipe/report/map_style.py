"""The colours of the memory map: one class a cause, in a light and a dark set.

Blue is what requests need, green what rounding costs them, amber what grouping costs, violet the
model, hatched greys what nobody uses. Neighbours differ in lightness too, not in hue alone.
"""

from __future__ import annotations

from collections.abc import Mapping

# class -> (colour on a light page, on a dark page)
COLOURS: Mapping[str, tuple[str, str]] = {
    "weights": ("#6d4fb3", "#7b5fc2"),
    "activations": ("#a886d9", "#a98bd6"),
    "other": ("#cdb9ea", "#cbb8e6"),
    "cache": ("#2563b8", "#336fc4"),
    "layer": ("#2563b8", "#336fc4"),
    "payload": ("#2563b8", "#336fc4"),
    "prefill_in_flight": ("#7fb0ea", "#8db9ee"),
    "block_tails": ("#17806a", "#1c836c"),
    "window_alignment": ("#7dcab5", "#86d1bd"),
    "head_replication": ("#86671c", "#8f6f22"),
    "padding_layers": ("#e08a1e", "#e8993a"),
    "page_padding": ("#f5c46b", "#f4c878"),
    "null_block": ("#4a5568", "#69778b"),
    "overflow": ("#c4162a", "#d3344a"),
}
# Nobody uses these bytes: (line, ground) light, then dark.
HATCHED: Mapping[str, tuple[str, str, str, str]] = {
    "free_blocks": ("#aab4c2", "#edf0f4", "#5b6675", "#2a313b"),
    "unused_richer_rank": ("#d98a8a", "#fbeaea", "#a35d5d", "#3a2728"),
    "out_of_reach": ("#d0a24c", "#faf1dc", "#8f7337", "#35301f"),
    "not_requested": ("#d3d9e0", "#f7f8fa", "#3d4550", "#1d2229"),
}
LIGHT_TEXT = frozenset(
    {
        "weights",
        "cache",
        "layer",
        "payload",
        "block_tails",
        "head_replication",
        "null_block",
        "overflow",
    }
)


def _rules(dark: bool) -> str:
    ink, faint, paper = (
        ("#e8ebf0", "#9aa5b4", "#14181d") if dark else ("#1b2430", "#5d6878", "#ffffff")
    )
    shadow = "#2b3440" if dark else "#e7eef8"
    on_light = "#14181d" if dark else "#1b2430"
    rules = [
        f".paper{{fill:{paper}}} .edge{{stroke:{paper}}} .funnel{{fill:{shadow}}}",
        f".halo{{stroke:{paper};stroke-width:3px;paint-order:stroke}}",
        f".heading,.section,.label,.command{{fill:{ink}}} .faint{{fill:{faint}}}",
        f".on-dark{{fill:#fff}} .on-light{{fill:{on_light}}}",
    ]
    rules += [f".{name}{{fill:{pair[dark]}}}" for name, pair in COLOURS.items()]
    for name, (line, ground, dark_line, dark_ground) in HATCHED.items():
        rules.append(f".{name}-line{{stroke:{dark_line if dark else line}}}")
        rules.append(f".{name}-ground{{fill:{dark_ground if dark else ground}}}")
    return "\n".join(rules)


def _patterns() -> str:
    return "".join(
        f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><path class="{name}-ground" d="M0 0H7V7H0Z"/>'
        f'<path class="{name}-line" d="M0 0V7" stroke-width="3"/></pattern>'
        for name in HATCHED
    )


STYLE = (
    "<style>\n"
    "text{font:12px system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif}\n"
    ".heading{font-size:18px;font-weight:700} .section{font-size:14px;font-weight:600}\n"
    ".command{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,monospace}\n"
    + "".join(f".{name}{{fill:url(#{name})}}\n" for name in HATCHED)
    + _rules(dark=False)
    + "\n@media (prefers-color-scheme: dark){\n"
    + _rules(dark=True)
    + "\n}\n</style>\n<defs>"
    + _patterns()
    + "</defs>"
)
