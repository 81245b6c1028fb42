"""plan.json's document -> memory_map.svg: where every byte of a rank's device is.

From top to bottom: verdict, users, model and command; the device, and in red what is beyond its
end; the bytes given to the cache, enlarged, at the peak and in steady state (one bar where they are
alike), and what the users that were asked for would take, where it is more; one block as each group
uses it; the other ranks. Readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvpipe.cache.load import of_a_copy
from kvpipe.report.accounts import KV_CAUSES
from kvpipe.report.drawing import BAR_HEIGHT, BAR_WIDTH, MARGIN, ROW_HEIGHT, Drawing, Segment
from kvpipe.report.overflow import cut
from kvpipe.text.figures import count, percent, size
from kvpipe.text.lines import shell_lines

_COMMAND_LETTERS = 110  # of a monospaced line
MOST_ROWS = 16  # kinds of groups and of ranks that are drawn; plan.json has all


def memory_map(document: Mapping[str, Any]) -> str:
    """The SVG text for a document as `plan_document` makes it (or json.load of a plan.json)."""
    drawing = Drawing()
    account = document["bytes"]["ranks"][0]
    _heading(drawing, document)
    _device(drawing, document, account)
    _cache(drawing, document, account)
    _legend(drawing, account)
    _groups(drawing, document["plan"], document["address_map"])
    _other_ranks(drawing, document["bytes"]["ranks"])
    return drawing.svg(f"Memory map of {document['headline']['model']}")


def _heading(drawing: Drawing, document: Mapping[str, Any]) -> None:
    head, plan = document["headline"], document["plan"]
    drawing.text(document["verdict"], "heading", dy=46)
    drawing.text(head["model"], "section", dy=26)
    if cap := document["capacity"]:
        drawing.text(_users_words(cap, plan["max_model_len"]), "label", dy=22)
    drawing.text(
        f"engine {head['engine']} · max_model_len {plan['max_model_len']:,} tokens · "
        f"{plan['num_blocks']:,} blocks · {len(plan['ranks'])} rank"
        + ("s" if len(plan["ranks"]) > 1 else ""),
        "faint",
        dy=22,
    )
    for line in shell_lines(document["serve"], _COMMAND_LETTERS) if document["serve"] else ():
        drawing.text(line.text, "command", dy=18)


def _users_words(cap: Mapping[str, Any], length: int) -> str:
    asked = f", {cap['requests_asked']:,} were asked for" if cap["requests_asked"] > 1 else ""
    return f"{count(cap['users'], 'user')} of {length:,} tokens at once{asked}"


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
    segments = cut(_device_segments(account["peak"]), account["total_bytes"] - over)
    edges = drawing.bar("device", segments, BAR_HEIGHT)
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
    if document["capacity"]:
        _asked(drawing, document["capacity"], document["plan"]["ranks"][account["rank"]])


def _asked(drawing: Drawing, cap: Mapping[str, Any], rank: Mapping[str, Any]) -> None:
    """The users that were asked for, where the pool does not hold them: what is missing, in red."""
    usable, asked, page = cap["usable_blocks"], cap["blocks_asked"], rank["bytes_per_block"]
    if asked <= usable:
        return
    users = count(of_a_copy(cap["requests_asked"], cap["copies"]), "user")
    where = "" if cap["copies"] == 1 else f" on one of {cap['copies']:,} copies"
    drawing.text(
        f"{users}{where} would take {size(asked * page)}: "
        f"{size((asked - usable) * page)} are missing",
        "section",
        dy=30,
    )
    drawing.y += 10
    segments: list[Segment] = [("payload", asked * page, f"{users} asked for")]
    drawing.bar("asked", cut(segments, usable * page), BAR_HEIGHT)


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


def _groups(drawing: Drawing, plan: Mapping[str, Any], addresses: Mapping[str, Any]) -> None:
    """One block id as each group uses it: the bars lie over the same bytes."""
    rank = plan["ranks"][0]
    if not rank["groups"]:
        return
    one = size(rank["bytes_per_block"])
    if plan["slots"]:
        words = f"One slot, {one}, as each group fills it: any free slot serves any group"
    else:
        words = f"One block, {one}: each block id belongs to one group at a time"
    drawing.text(words, "section", dy=40)
    kinds = _alike(rank["groups"])
    read = _kernel_blocks(addresses)
    for numbers, group in kinds[:MOST_ROWS]:
        first = int(numbers.split("-")[0])
        drawing.text(_group_words(numbers, group) + read.get(first, ""), "label", dy=24)
        drawing.y += 6
        drawing.bar(f"group {numbers}", _group_segments(group), ROW_HEIGHT)
    if len(kinds) > MOST_ROWS:
        drawing.text(f"and {len(kinds) - MOST_ROWS} more kinds of groups, see plan.json", "faint")


def _kernel_blocks(addresses: Mapping[str, Any]) -> dict[int, str]:
    """Groups whose blocks attention kernels read as several of their own, in words."""
    groups = addresses["ranks"][0].get("groups", ()) if addresses.get("ranks") else ()
    found = {}
    for index, group in enumerate(groups):
        own = group["kernel_block_size"]
        if own != group["block_size"] and group["attention_backends"] != ["STATE"]:
            found[index] = f", read as kernel blocks of {own:,}"
    return found


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
        segments = [(c, peak[c], _words(c)) for c in peak]
        end = account["total_bytes"] - account["overcommitted_bytes"]
        drawing.bar(f"rank {account['rank']}", cut(segments, end), ROW_HEIGHT)
    if len(different) > MOST_ROWS:
        drawing.text(
            f"and {len(different) - MOST_ROWS} more kinds of ranks, see plan.json", "faint"
        )


def _words(cause: str) -> str:
    return cause.replace("_", " ")
