"""ReportInput -> what a person wants first, in at most 16 lines: does it fit, for how many, what
limits it, where the card's memory goes, what to change, what to paste. `report=full` has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvpipe.answers.cache_range import poorest
from kvpipe.cache.load import by_both
from kvpipe.cache.plan import Capacity, Plan
from kvpipe.notes import Note
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.run_input import ReportInput
from kvpipe.report.verdict import verdict_of
from kvpipe.stages.profiling.base import RankMemory
from kvpipe.text.figures import count, size
from kvpipe.text.lines import Line, cut, shell_lines, whole_words

MOST_LINES = 16  # with the folder and the verdict once more, which the report adds
_FOLDER = 1
_LABEL = 9  # columns
_BAR_WIDTH = 60
_NO_FIX = " (of this warning alone; what makes it fit comes last)"
_MARKS = {"weights": "W", "activations": "A", "KV cache": "K", "free": "."}
# What goes when the screen is too small, the least needed first: cut to one line, left out, or
# said in fewer words.
_GIVEN_UP = (
    ("brief", "legend"),
    ("drop", "proof"),
    ("join", "model"),
    ("drop", "legend"),  # and the card, which it explains
    ("drop", "notes"),
    ("unlabel", "serve"),  # the command says itself what it is
    ("cut", "change"),
    ("cut", "warning"),
    ("cut", "limit"),
    ("cut", "users"),
    ("cut", "plan"),
)


def first_screen(report: ReportInput, width: int) -> list[Line]:
    """Lines of at most `width` columns."""
    head, plan, verdict = report.headline, report.plan, verdict_of(report)
    blocks = {
        "verdict": [Line(part, verdict.style) for part in whole_words(verdict.short, width)],
    }
    blocks["plan"] = _labelled("plan", verdict.figures, width)
    engine = f"engine {head.engine}" + (f", {report.unread}" if report.unread else "")
    blocks["model"] = _labelled("model", f"{head.model}, {engine}", width)
    if plan.capacity is not None:
        blocks["users"] = _labelled("users", _users(report, plan.capacity), width)
        blocks["limit"] = _labelled("limit", _limit(report, plan.capacity), width)
        blocks |= _card(report.profile.ranks[0], plan, width)
    blocks |= _notes(all_notes(report), width, "" if verdict.serves else _NO_FIX)
    if not report.verify.reason:
        proof = report.verify
        words = (
            f"{count(proof.layers, 'layer')} written and read back: {proof.mismatches:,} mismatches"
        )
        blocks["proof"] = _labelled("proof", proof.summary or words, width, most=1)
    if report.no_serve:
        blocks["serve"] = _labelled("serve", f"none: {report.no_serve}", width, most=2)
    if report.serve:
        blocks["serve"] = [Line("serve"), *shell_lines(report.serve, width - 2, indent="  ")]
    name, _, _ = head.model.partition(" (")  # its types
    shorter = {
        # And the model; of an engine, what its figures rest on.
        "join": _labelled(
            "plan", f"{name}{f', {engine}' if report.unread else ''}: {verdict.figures}", width
        ),
        "brief": _labelled("", _legend(report.profile.ranks[0], plan), width),
    }
    return _fitted(blocks, width, shorter)


def _fitted(
    blocks: dict[str, list[Line]], width: int, shorter: Mapping[str, list[Line]]
) -> list[Line]:
    """All blocks, the less needed shorter, or cut, so that they fill no more than the screen.
    shorter: how -> what stands there instead."""

    def length() -> int:
        return sum(map(len, blocks.values())) + len(blocks["verdict"]) + _FOLDER

    for how, name in _GIVEN_UP:
        if length() <= MOST_LINES:
            break
        if how == "join":
            blocks["plan"] = shorter[how]
        if how == "brief" and len(blocks.get(name, ())) > len(shorter[how]):
            blocks[name] = shorter[how]
        if how == "unlabel":
            blocks[name] = blocks.get(name, [])[1:]
        elif how in ("drop", "join"):
            blocks.pop(name, None)
            if name == "legend":
                blocks.pop("card", None)
        elif how == "cut" and len(blocks.get(name, ())) > 1:
            first = blocks[name][0]
            blocks[name] = [Line(cut(first.text, width), first.style)]
    return [line for block in blocks.values() for line in block]


def _users(report: ReportInput, capacity: Capacity) -> str:
    """Requests of the planned length, by memory and by the scheduler."""
    running, peak, steady = (
        capacity.requests_running,
        capacity.requests_at_peak,
        capacity.requests_steady,
    )
    most = min(running, report.max_num_seqs or running)
    words = f"{report.copies * most:,} of {count(capacity.request_len, 'token')} each"
    if report.copies > 1:
        words += f" on {report.copies:,} copies, {most:,} a copy"
    if both := by_both(running, report.max_num_seqs):
        words += f": {both}"
    if peak == steady:
        return words if both else f"{words}, at peak and steady alike"
    return f"{words}, one reading its prompt (peak {peak:,}, steady {steady:,})"


def _limit(report: ReportInput, capacity: Capacity) -> str:
    seqs = report.max_num_seqs
    if seqs is not None and capacity.requests_running > seqs:
        return f"scheduler.max_num_seqs={seqs}; memory would hold more"
    cache = poorest(report.profile)
    words = f"memory: {size(cache.num_bytes)} for the cache, {cache.how}"
    if cache.low_bytes is not None and cache.high_bytes is not None:
        words += f" ({size(cache.low_bytes)} to {size(cache.high_bytes)})"
    words += f"; a request holds {size(capacity.steady_bytes)}"
    if capacity.peak_bytes != capacity.steady_bytes:
        words += f", {size(capacity.peak_bytes)} at its peak"
    return words


def _card(rank: RankMemory, plan: Plan, width: int) -> dict[str, list[Line]]:
    """The device's memory to scale, in characters, and what each stands for."""
    total, parts = rank.total.num_bytes, _parts(rank, plan)
    cells = _cells([num for _, num in parts], min(_BAR_WIDTH, width - _LABEL - 2))
    bar = "".join(_mark(name) * n for (name, _), n in zip(parts, cells, strict=True))
    named = [f"{_mark(name)} {name} {size(num)}" for name, num in parts]
    legend = _labelled("", f"{', '.join(named)} of {size(total)}", width)
    return {"card": [Line(f"{'card':<{_LABEL}}[{bar}]")], "legend": legend}


def _parts(rank: RankMemory, plan: Plan) -> list[tuple[str, int]]:
    """What the card holds, in bytes, in the order in which it is charged."""
    total, pool = rank.total.num_bytes, plan.ranks[0].config.size_bytes
    parts = [(item.name, item.num_bytes) for item in rank.charged if item.num_bytes]
    parts.append(("KV cache", pool))
    return [*parts, ("free", max(0, total - sum(num for _, num in parts)))]


def _mark(name: str) -> str:
    return _MARKS.get(name, name[0].upper())


def _legend(rank: RankMemory, plan: Plan) -> str:
    """What each mark stands for, without its bytes."""
    return " ".join(f"{_mark(name)}={name}" for name, _ in _parts(rank, plan))


def _cells(parts: list[int], columns: int) -> list[int]:
    """Columns in proportion, by the ends of the running sum, so that they add up to all of them."""
    total, ends, at = max(1, sum(parts)), [], 0
    for part in parts:
        at += part
        ends.append(round(columns * at / total))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _notes(notes: tuple[Note, ...], width: int, beside: str) -> dict[str, list[Line]]:
    """The first warning, what would change it (beside: what that is not), and how many notes more
    there are."""
    warning = next((note for note in notes if note.is_warning), None)
    blocks: dict[str, list[Line]] = {}
    if warning is not None:
        blocks["warning"] = _labelled("warning", warning.text, width, "warning")
        blocks["change"] = _labelled(
            "change", f"{warning.knob}{beside if warning.knob else ''}", width, "warning"
        )
    if more := len(notes) - (warning is not None):
        blocks["notes"] = [Line(f"{'':<{_LABEL}}{count(more, 'more note')}: report=full", "faint")]
    return blocks


def _labelled(label: str, text: str, width: int, style: str = "", most: int = 9) -> list[Line]:
    """A label and its text beside it, in at most so many lines; what is cut off says so."""
    parts = enumerate(whole_words(text, width - _LABEL))
    lines = [f"{label if not n else '':<{_LABEL}}{part}" for n, part in parts]
    if len(lines) > most:
        lines = [*lines[: most - 1], cut(lines[most - 1], width)]
    return [Line(line, style) for line in lines]
