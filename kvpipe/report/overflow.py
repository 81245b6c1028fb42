"""What is more than there is: drawn beyond the end of its bar, in red.

`overflow_map` is the memory_map.svg of a request that came to no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.errors import CardDemand
from kvpipe.report.drawing import BAR_HEIGHT, Drawing, Segment
from kvpipe.text.figures import size
from kvpipe.text.lines import whole_words

_KINDS = {"KV cache": "cache", "weights": "weights", "activations": "activations"}


def cut(segments: Sequence[Segment], end: int) -> list[Segment]:
    """The same bytes; those from `end` on are overflow."""
    return list(_cut(segments, end))


def _cut(segments: Sequence[Segment], room: int) -> Iterator[Segment]:
    for kind, num_bytes, words in segments:
        inside = min(num_bytes, room)
        room -= inside
        if inside:
            yield kind, inside, words
        if num_bytes > inside:
            yield "overflow", num_bytes - inside, f"{words}, too much"


def overflow_map(
    demand: CardDemand, verdict: str, model: str, device: str, advice: str = ""
) -> str:
    """The card, what it was asked to hold, and in red what of that it cannot. verdict: the
    refusal's first line; advice: what would fit, as the command says it."""
    drawing = Drawing()
    drawing.text("DOES NOT FIT", "heading", dy=46)
    drawing.text(model, "section", dy=26)
    for line in whole_words(verdict, 130):
        drawing.text(line, "faint", dy=20)
    for line in whole_words(advice, 130):
        drawing.text(line, "label", dy=20)
    drawing.text(
        f"Device {device}, rank {demand.rank}: {size(demand.total_bytes)}, "
        f"{size(demand.allowed_bytes)} of it for this run; {size(demand.missing_bytes)} too much",
        "section",
        dy=38,
    )
    drawing.y += 10
    drawing.bar("device", demand_segments(demand), BAR_HEIGHT)
    for name, num_bytes in demand.parts:
        drawing.text(f"{name}: {size(num_bytes)}", "label", dy=22)
    return drawing.svg(f"Memory map of {model}: it does not fit")


def demand_segments(demand: CardDemand) -> list[Segment]:
    """What is inside of the share, the rest of the card, and what is beyond."""
    asked = [(_KINDS.get(name, "other"), num_bytes, name) for name, num_bytes in demand.parts]
    parts = cut(asked, demand.allowed_bytes)
    inside = [part for part in parts if part[0] != "overflow"]
    rest = demand.total_bytes - demand.allowed_bytes
    beyond = [part for part in parts if part[0] == "overflow"]
    return [*inside, ("not_requested", rest, "not requested"), *beyond]
