"""ReportInput -> what a person wants first, in at most 16 lines: does it fit, for how many, what
limits it, where the card's memory goes, what to change, what to paste. `report=full` has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.answers.cache_range import poorest
from kvpipe.cache.load import by_both
from kvpipe.cache.plan import Capacity
from kvpipe.notes import Note
from kvpipe.report.card_bar import bar, legend, legend_in_brief
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.labelled import LABEL, labelled
from kvpipe.report.on_screen import Blocks, lines_of, on_screen
from kvpipe.report.run_input import ReportInput
from kvpipe.report.verdict import Verdict, verdict_of
from kvpipe.text.figures import count, size
from kvpipe.text.lines import Line, shell_lines, whole_words

MOST_LINES = 16  # with the folder and the verdict once more, which the report adds
_FOLDER = 1
_BAR_WIDTH = 60
_NO_FIX = " (of this warning alone; what makes it fit comes last)"


def first_screen(report: ReportInput, width: int) -> list[Line]:
    """Lines of at most `width` columns. A warning for which there is no room goes whole to the
    other notes."""
    verdict = verdict_of(report)
    blocks, steps = _blocks(report, verdict, width), list(_shorter(report, verdict, width))
    room = MOST_LINES - _FOLDER - len(blocks["verdict"])
    shown = on_screen(blocks, steps, room)
    if lines_of(shown) > room and "warning" in blocks:
        unsaid = _more(_number_of_notes(all_notes(report)))
        blocks = blocks | {"warning": [unsaid], "change": [], "notes": []}
        shown = on_screen(blocks, steps, room)
    return [line for block in shown.values() for line in block]


def _blocks(report: ReportInput, verdict: Verdict, width: int) -> dict[str, list[Line]]:
    """All that there is to say, in order."""
    head, capacity = report.headline, report.plan.capacity
    blocks = {"verdict": [Line(part, verdict.style) for part in whole_words(verdict.short, width)]}
    blocks["plan"] = labelled("plan", verdict.figures, width)
    blocks["model"] = labelled("model", f"{head.model}, {_engine(report)}", width)
    if capacity is not None:
        blocks["users"] = labelled("users", _users(report, capacity), width)
        blocks["limit"] = labelled("limit", _limit(report, capacity), width)
        card = report.profile.ranks[0], report.plan
        drawn = bar(*card, min(_BAR_WIDTH, width - LABEL - 2))
        blocks["card"] = [Line(f"{'card':<{LABEL}}[{drawn}]")]
        blocks["legend"] = labelled("", legend(*card), width)
    blocks |= _notes(all_notes(report), width, "" if verdict.serves else _NO_FIX)
    if not report.verify.reason:
        blocks["proof"] = labelled("proof", _proof(report), width)
    if report.no_serve:
        blocks["serve"] = labelled("serve", f"none: {report.no_serve}", width)
    if report.serve:
        blocks["serve"] = [Line("serve"), *_serve(report, width)]
    return blocks


def _shorter(report: ReportInput, verdict: Verdict, width: int) -> Iterator[Blocks]:
    """What goes when the screen is too small, the least needed first."""
    name, _, _ = report.headline.model.partition(" (")  # its types
    if report.unread:  # what the figures rest on stays
        name += f", {_engine(report)}"
    capacity = report.plan.capacity
    if capacity is not None:
        yield {"legend": labelled("", legend_in_brief(report.profile.ranks[0], report.plan), width)}
    yield {"proof": []}
    yield {"plan": labelled("plan", f"{name}: {verdict.figures}", width), "model": []}
    yield {"card": [], "legend": []}
    yield {"notes": []}
    if report.serve:  # the command says itself what it is
        yield {"serve": _serve(report, width)}
    if capacity is None:
        return
    users, limit = _users_in_brief(report, capacity), _limit_in_brief(report, capacity)
    yield {"users": labelled("users", users, width)}
    yield {"limit": labelled("limit", limit, width)}
    yield {"users": labelled("users", f"{users}, by {limit}", width), "limit": []}
    if report.serve:  # which names the model, too
        yield {"plan": labelled("plan", verdict.figures, width)}


def _engine(report: ReportInput) -> str:
    return f"engine {report.headline.engine}" + (f", {report.unread}" if report.unread else "")


def _serve(report: ReportInput, width: int) -> list[Line]:
    return list(shell_lines(report.serve, width - 2, indent="  "))


def _proof(report: ReportInput) -> str:
    proof = report.verify
    wrong = f"{proof.mismatches:,} mismatches"
    return proof.summary or f"{count(proof.layers, 'layer')} written and read back: {wrong}"


def _users(report: ReportInput, capacity: Capacity) -> str:
    """Requests of the planned length, by memory and by the scheduler."""
    running, peak, steady = (
        capacity.requests_running,
        capacity.requests_at_peak,
        capacity.requests_steady,
    )
    words = _users_in_brief(report, capacity)
    if both := by_both(running, report.max_num_seqs):
        words += f": {both}"
    if peak == steady:
        return words if both else f"{words}, at peak and steady alike"
    return f"{words}, one reading its prompt (peak {peak:,}, steady {steady:,})"


def _users_in_brief(report: ReportInput, capacity: Capacity) -> str:
    most = min(capacity.requests_running, report.max_num_seqs or capacity.requests_running)
    words = f"{report.copies * most:,} of {count(capacity.request_len, 'token')} each"
    if report.copies > 1:
        words += f" on {report.copies:,} copies, {most:,} a copy"
    return words


def _limit(report: ReportInput, capacity: Capacity) -> str:
    if _scheduler_limits(report, capacity):
        return f"scheduler.max_num_seqs={report.max_num_seqs}; memory would hold more"
    cache = poorest(report.profile)
    words = f"memory: {size(cache.num_bytes)} for the cache, {cache.how}"
    if cache.low_bytes is not None and cache.high_bytes is not None:
        words += f" ({size(cache.low_bytes)} to {size(cache.high_bytes)})"
    words += f"; a request holds {size(capacity.steady_bytes)}"
    if capacity.peak_bytes != capacity.steady_bytes:
        words += f", {size(capacity.peak_bytes)} at its peak"
    return words


def _limit_in_brief(report: ReportInput, capacity: Capacity) -> str:
    return "max_num_seqs" if _scheduler_limits(report, capacity) else "memory"


def _scheduler_limits(report: ReportInput, capacity: Capacity) -> bool:
    seqs = report.max_num_seqs
    return seqs is not None and capacity.requests_running > seqs


def _notes(notes: tuple[Note, ...], width: int, beside: str) -> dict[str, list[Line]]:
    """The first warning, what would change it (beside: what that is not), and how many notes more
    there are."""
    warning = next((note for note in notes if note.is_warning), None)
    blocks: dict[str, list[Line]] = {}
    if warning is not None:
        blocks["warning"] = labelled("warning", warning.text, width, "warning")
        blocks["change"] = labelled(
            "change", f"{warning.knob}{beside if warning.knob else ''}", width, "warning"
        )
    if more := len(notes) - (warning is not None):
        blocks["notes"] = [_more(count(more, "more note"))]
    return blocks


def _number_of_notes(notes: Sequence[Note]) -> str:
    """`2 warnings, 1 note`, all unsaid."""
    warnings = sum(note.is_warning for note in notes)
    others = len(notes) - warnings
    return count(warnings, "warning") + (f", {count(others, 'note')}" if others else "")


def _more(what: str) -> Line:
    return Line(f"{'':<{LABEL}}{what}: report=full", "faint")
