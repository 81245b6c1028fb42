"""plan.json's document -> memory_map.svg: where every byte of a rank's device is.

From top to bottom: verdict, model and command; the device; the bytes given to the cache, enlarged,
at the peak and in steady state (one bar where they are alike); one block as each group uses it; the
other ranks. In one bar all areas are proportional to bytes: each rectangle carries `data-bytes`,
each bar `data-total-bytes`, and they add up. Drawn by hand, without a dependency; readable on light
and dark pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from kvpipe.report.accounts import KV_CAUSES
from kvpipe.report.map_style import HATCHED, LIGHT_TEXT, STYLE
from kvpipe.text.clean import clean
from kvpipe.text.figures import count, percent, size
from kvpipe.text.lines import shell_lines

WIDTH, MARGIN, BAR_HEIGHT, ROW_HEIGHT = 960, 32, 46, 26
BAR_WIDTH = WIDTH - 2 * MARGIN
LETTER = 6.6  # width of a 12 px letter, generously
_COMMAND_LETTERS = 110  # of a monospaced line
MOST_ROWS = 16  # kinds of groups and of ranks that are drawn; plan.json has all

Segment = tuple[str, int, str]  # class, bytes, what it is


def shown(words: str) -> str:
    """Text of a picture: nothing a reader's terminal or browser would obey."""
    return escape(clean(words))


def memory_map(document: Mapping[str, Any]) -> str:
    """The SVG text for a document as `plan_document` makes it (or json.load of a plan.json)."""
    drawing = Drawing()
    account = document["bytes"]["ranks"][0]
    _heading(drawing, document)
    _device(drawing, document, account)
    _cache(drawing, document, account)
    _legend(drawing, account)
    _groups(drawing, document["plan"]["ranks"][0])
    _other_ranks(drawing, document["bytes"]["ranks"])
    return drawing.svg(f"Memory map of {document['headline']['model']}")


class Drawing:
    """Elements from top to bottom; y is where the next one goes, in pixels."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.y = 0.0

    def text(self, words: str, kind: str = "label", x: float = MARGIN, dy: float = 18) -> None:
        self.y += dy
        place = f'class="{kind}" x="{x:.1f}" y="{self.y:.1f}"'
        self.elements.append(f"<text {place}>{shown(words)}</text>")

    def bar(self, name: str, segments: Sequence[Segment], height: float) -> dict[str, float]:
        """One bar over the whole width. Returns the left edge of each segment, and "end"."""
        total = sum(num_bytes for _, num_bytes, _ in segments)
        about = f'data-name="{shown(name)}" data-total-bytes="{total}"'
        self.elements.append(f'<g class="bar" {about}>')
        x, edges = float(MARGIN), dict[str, float]()
        for kind, num_bytes, words in segments:
            if num_bytes:
                edges.setdefault(kind, x)
                width = BAR_WIDTH * num_bytes / total
                self.elements += self._segment(kind, num_bytes, words, x, width, height)
                x += width
        self.elements.append("</g>")
        self.y += height
        return {**edges, "end": x}

    def _segment(
        self, kind: str, num_bytes: int, words: str, x: float, width: float, height: float
    ) -> Iterator[str]:
        # A hairline between neighbours, but none where it would hide what it separates.
        edge = ' stroke-width="1"' if width > 4 else ' stroke-width="0"'
        yield (
            f'<rect class="{kind} edge" x="{x:.4f}" y="{self.y:.1f}" width="{width:.6f}" '
            f'height="{height}" data-bytes="{num_bytes}"{edge}>'
            f"<title>{shown(words)}: {size(num_bytes)} ({num_bytes:,} bytes)</title></rect>"
        )
        shade = "label halo" if kind in HATCHED else "on-dark" if kind in LIGHT_TEXT else "on-light"
        lines = _fitting_label(kind, words, num_bytes, width, height)
        for number, line in enumerate(lines):
            y = self.y + height / 2 + 4.5 + 15 * (number - (len(lines) - 1) / 2)
            yield f'<text class="{shade}" x="{x + 6:.1f}" y="{y:.1f}">{shown(line)}</text>'

    def svg(self, title: str) -> str:
        height = self.y + MARGIN
        body = "\n".join(self.elements)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img">\n<title>{shown(title)}</title>\n'
            f'{STYLE}\n<rect class="paper" width="{WIDTH}" height="{height:.0f}"/>\n'
            f"{body}\n</svg>\n"
        )


def _fitting_label(
    kind: str, words: str, num_bytes: int, width: float, height: float
) -> Sequence[str]:
    """The most telling label that has room: what and how much, one of them, a layer's number."""
    number = re.findall(r"\d+", words)[:1] if kind == "layer" else []
    tall = [[words, size(num_bytes)]] if height >= BAR_HEIGHT else []
    for lines in (*tall, [words], number or [size(num_bytes)]):
        if width >= LETTER * max(map(len, lines)) + 10:
            return lines
    return []


def _heading(drawing: Drawing, document: Mapping[str, Any]) -> None:
    head, plan = document["headline"], document["plan"]
    drawing.text(document["verdict"], "heading", dy=46)
    drawing.text(head["model"], "section", dy=26)
    drawing.text(
        f"engine {head['engine']} · max_model_len {plan['max_model_len']:,} tokens · "
        f"{plan['num_blocks']:,} blocks · {len(plan['ranks'])} rank"
        + ("s" if len(plan["ranks"]) > 1 else ""),
        "faint",
        dy=22,
    )
    for line in shell_lines(document["serve"], _COMMAND_LETTERS) if document["serve"] else ():
        drawing.text(line.text, "command", dy=18)


def _device(drawing: Drawing, document: Mapping[str, Any], account: Mapping[str, Any]) -> None:
    """The device bar, and the funnel from its cache segment to the enlarged bars below."""
    over = account["overcommitted_bytes"]
    drawing.text(
        f"Device {document['headline']['device']}, rank {account['rank']}: "
        f"{size(account['total_bytes'] - over)}" + (f", and {size(over)} too much" if over else ""),
        "section",
        dy=38,
    )
    drawing.y += 10
    edges = drawing.bar("device", _device_segments(account["peak"]), BAR_HEIGHT)
    if "cache" in edges:
        left, right = edges["cache"], edges.get("not_requested", edges["end"])
        bottom = drawing.y + 56
        drawing.elements.append(
            f'<path class="funnel" d="M{left:.1f},{drawing.y:.1f} L{right:.1f},{drawing.y:.1f} '
            f'L{MARGIN + BAR_WIDTH},{bottom:.1f} L{MARGIN},{bottom:.1f} Z"/>'
        )


def _device_segments(split: Mapping[str, int]) -> list[Segment]:
    """The causes of the device with the whole cache as one."""
    cache = sum(split[cause] for cause in KV_CAUSES)
    outside = [(cause, split[cause], _words(cause)) for cause in split if cause not in KV_CAUSES]
    return [*outside[:-1], ("cache", cache, "KV cache"), outside[-1]]


def _cache(drawing: Drawing, document: Mapping[str, Any], account: Mapping[str, Any]) -> None:
    """The bytes given to the cache, at both loads."""
    total = sum(account["peak"][cause] for cause in KV_CAUSES)
    length = document["plan"]["max_model_len"]
    same = account["peak"] == account["steady"]
    loads = (
        ("peak", "at the peak, prompts in flight", 46),
        ("steady", "in steady state, every request decoding", 30),
    )
    both = (("peak", "at the peak and in steady state", 46),)
    for load, words, dy in both if same else loads:
        requests = account[f"requests_{load}"]
        drawing.text(
            f"KV cache {size(total)} {words}: {count(requests, 'request')} of {length:,} tokens",
            "section",
            dy=dy,
        )
        drawing.y += 10
        split = account[load]
        drawing.bar(load, [(c, split[c], _words(c)) for c in KV_CAUSES], BAR_HEIGHT)


def _legend(drawing: Drawing, account: Mapping[str, Any]) -> None:
    """A swatch, a name and both sizes for every cause that is there, in two columns."""
    peak, steady = account["peak"], account["steady"]
    present = [cause for cause in peak if peak[cause] or steady[cause]]
    rows = -(-len(present) // 2)
    top = drawing.y + 20
    for number, cause in enumerate(present):
        x = MARGIN + (number // rows) * (BAR_WIDTH / 2)
        drawing.y = top + 20 * (number % rows)
        drawing.elements.append(
            f'<circle class="{cause}" cx="{x + 7:.1f}" cy="{drawing.y + 13.5:.1f}" r="6"/>'
        )
        drawing.text(_words(cause), x=x + 20, dy=18)
        both = f"{size(peak[cause])} ({percent(peak[cause], account['total_bytes'])})"
        if steady[cause] != peak[cause]:
            both += f" peak, {size(steady[cause])} steady"
        drawing.text(both, "faint", x=x + 160, dy=0)
    drawing.y = top + 20 * rows


def _groups(drawing: Drawing, rank: Mapping[str, Any]) -> None:
    """One block id as each group uses it: the bars lie over the same bytes."""
    if not rank["groups"]:
        return
    drawing.text(
        f"One block, {size(rank['bytes_per_block'])}: each block id belongs to one group at a time",
        "section",
        dy=40,
    )
    kinds = _alike(rank["groups"])
    for numbers, group in kinds[:MOST_ROWS]:
        drawing.text(_group_words(numbers, group), "label", dy=24)
        drawing.y += 6
        drawing.bar(f"group {numbers}", _group_segments(group), ROW_HEIGHT)
    if len(kinds) > MOST_ROWS:
        drawing.text(f"and {len(kinds) - MOST_ROWS} more kinds of groups, see plan.json", "faint")


def _group_segments(group: Mapping[str, Any]) -> list[Segment]:
    segments: list[Segment] = []
    for layer in group["layers"]:
        real = layer["spec"]["real_page_size_bytes"]
        padding = layer["spec"]["page_size_bytes"] - real
        segments.append(("layer", real, layer["layer"]))
        segments.append(("page_padding", padding, _words("page_padding")))
    rest = group["padding_bytes_per_block"]
    return [*segments, ("padding_layers", rest, _words("padding_layers"))]


def _alike(groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """(numbers, first of them) of runs of groups whose bars look the same."""
    kinds: list[tuple[int, int, Mapping[str, Any], Any]] = []
    for index, group in enumerate(groups):
        look = (group["kind"], group["block_size"], [s[:2] for s in _group_segments(group)])
        if kinds and kinds[-1][3] == look:
            kinds[-1] = (kinds[-1][0], index, *kinds[-1][2:])
        else:
            kinds.append((index, index, group, look))
    return [(f"{a}" if a == b else f"{a}-{b}", group) for a, b, group, _ in kinds]


def _group_words(numbers: str, group: Mapping[str, Any]) -> str:
    layers = group["layers"]
    what = sorted({layer["spec"]["kind"] for layer in layers}) or [group["kind"]]
    several = "-" in numbers
    each, plural = (" each", "s") if several else ("", "")
    many = "layer" if len(layers) == 1 else "layers"
    return (
        f"group{plural} {numbers}: {' + '.join(what)}, {len(layers)} {many}{each}, "
        f"block_size {group['block_size']:,} tokens, {size(group['real_bytes_per_block'])} used"
        + (f" (layer numbers of group {numbers.split('-')[0]})" if several else "")
    )


def _other_ranks(drawing: Drawing, accounts: Sequence[Mapping[str, Any]]) -> None:
    """Every kind of rank that differs from the first, in one bar."""
    looks = [(account["total_bytes"], dict(account["peak"])) for account in accounts]
    different = [i for i, look in enumerate(looks) if look not in looks[:i]][1:]
    if not different:
        return
    drawing.text("Other ranks (those not drawn are like one of these)", "section", dy=40)
    for index in different[:MOST_ROWS]:
        account = accounts[index]
        drawing.text(f"rank {account['rank']}: {size(account['total_bytes'])}", "label", dy=24)
        drawing.y += 6
        peak = account["peak"]
        drawing.bar(f"rank {account['rank']}", [(c, peak[c], _words(c)) for c in peak], ROW_HEIGHT)


def _words(cause: str) -> str:
    return cause.replace("_", " ")
