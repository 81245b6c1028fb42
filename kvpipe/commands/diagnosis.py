"""A pasted log or command line -> what the engine did with the memory, what is wrong, what to run.

At most MOST_LINES lines, the worst trouble first. The line to paste was planned; where no change is
known to help, the trouble is called unknown, with the figures that do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvpipe.answers.card_room import check_card
from kvpipe.answers.log_answer import LogComparison, compare_with_log
from kvpipe.answers.log_memory import profile_after
from kvpipe.answers.more_room import more_room
from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.answers.remedies import ways_out
from kvpipe.answers.serve_line import line_for
from kvpipe.answers.served import held_at_high_end, straddling_words
from kvpipe.answers.served_name import served_name
from kvpipe.cache.plan import Plan
from kvpipe.commands.full_cache import of_full_cache
from kvpipe.commands.full_card import of_full_card
from kvpipe.commands.log_troubles import of_the_log
from kvpipe.commands.low_end import of_low_end
from kvpipe.commands.pasted_flags import (
    of_checkpoint,
    of_flags,
    of_unplanned,
    of_whole_prompts,
    taken_out,
    unread,
)
from kvpipe.commands.printed_size import with_size
from kvpipe.commands.read_start import (
    capacity_of,
    defaults_of,
    ended,
    engine_of,
    memory_of,
    plugged_in,
)
from kvpipe.commands.said_beside import as_the_log_says, instead_of_line, of_another_card, of_said
from kvpipe.commands.told_ways import cuts_short, distinct_ways, told_ways
from kvpipe.commands.trouble import NO_TROUBLE, Trouble
from kvpipe.commands.uncounted_draft import is_told_otherwise, of_draft, uncounted_draft
from kvpipe.engines.pasted import Pasted
from kvpipe.engines.pasted_line import changed_line, in_flags, said_changes
from kvpipe.errors import ConfigError, DoesNotFit, KvpipeError
from kvpipe.logs.engine_log import EngineLog
from kvpipe.notes import Note
from kvpipe.pipeline import Prepared, execute, plan_with, prepare, profile_ranks
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.of_run import report_input
from kvpipe.report.run_input import ReportInput
from kvpipe.report.verdict import running_at_once
from kvpipe.request.changed import changed
from kvpipe.request.want import requests_asked
from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.text.figures import count

MOST_LINES = 20
MOST_TROUBLES = 8
_PLANNED = ("cache.", "scheduler.", "parallel.")  # sections of a line's flags
_OF_THE_LOG = "profiling.path: "  # a key of `run`; here a file was pasted
NO_MEMORY = "it ends before a line gives the cache's memory, so that is estimated"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """about: one line on what was read. memory: where it went. capacity: what the engine's capacity
    line means. troubles: worst first. paste: the changed line ("" none is needed, or known).
    first: what must be done before it is run. verdict: the worst trouble, or that none is known."""

    about: str
    memory: tuple[str, ...]
    capacity: tuple[str, ...]
    troubles: tuple[Trouble, ...]
    paste: str
    first: str = ""
    verdict: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", [*(t.text for t in self.troubles), NO_TROUBLE][0])

    @property
    def stops(self) -> bool:
        return any(trouble.stops for trouble in self.troubles)

    @property
    def status(self) -> str:
        """For a program."""
        if any(trouble.stops and not trouble.may_stop for trouble in self.troubles):
            return "does_not_fit"
        may_stop = any(trouble.may_stop for trouble in self.troubles)
        return "may_not_fit" if may_stop else "fits"


def diagnose(pasted: PastedRequest) -> Diagnosis:
    """What there is to say of a request that was pasted: the log by its own settings first, then
    what was said otherwise."""
    if pasted.log is not None and (other := of_another_card(pasted)) is not None:
        return _beside(of_log_alone(pasted.log), pasted, other)
    own, otherwise = as_the_log_says(pasted)
    found = _of_the_request(own)
    if otherwise is None:
        return found
    return _beside(found, own, of_said(own.prepared, otherwise))


def _beside(found: Diagnosis, pasted: PastedRequest, trouble: Trouble) -> Diagnosis:
    """What was said beside a log decides; the log's own troubles are told after it."""
    others = tuple(replace(each, stops=each.stops and trouble.stops) for each in found.troubles)
    answered = [replace(trouble, stops=True)] if trouble.change is not None else []
    return replace(
        found,
        troubles=(trouble, *others)[:MOST_TROUBLES],
        paste=_paste(pasted, None, answered) if answered else "",
        first="",
    )


def _of_the_request(pasted: PastedRequest) -> Diagnosis:
    log = pasted.log
    compared = _compared(pasted.prepared, log)
    pasted, printed = with_size(pasted, compared)
    prepared = pasted.prepared
    profile, report, error, notes = _tried(prepared, is_log=log is not None)
    plan = report.plan if report is not None else None
    whole = uncounted_draft(pasted) is None
    card = list(of_full_card(log, prepared)) if log is not None else []
    filled = log is not None and log.ran_out is not None and not log.cache_was_sized
    copies = prepared.resolved.parallel.dp
    troubles = [
        *card,
        *of_the_log(log, compared),
        *of_full_cache(log, prepared),
        *(() if card else _of_the_plan(prepared, error, whole)),
        *of_low_end(prepared, report, whole),
        *of_draft(pasted),
        *of_unplanned(pasted),
        *of_whole_prompts(pasted),
        *of_flags(pasted, fits=error is None),
        *of_checkpoint(pasted, fits=error is None),
        *(_of_note(note) for note in notes if _is_trouble(note, pasted)),
    ]
    troubles.sort(key=lambda trouble: (not trouble.stops, not trouble.may_stop))
    return Diagnosis(
        about=_about(pasted, is_estimated=not printed),
        memory=(
            *filter(None, [instead_of_line(pasted)]),
            *memory_of(log, profile),
            *printed,
            *defaults_of(notes),
        ),
        capacity=tuple(
            capacity_of(compared, None if filled else plan, copies, prepared.resolved.max_num_seqs)
        ),
        troubles=tuple(_distinct(troubles))[:MOST_TROUBLES],
        paste=_paste(pasted, plan, troubles),
        first=next((trouble.first for trouble in troubles if trouble.first), ""),
    )


def of_log_alone(log: EngineLog) -> Diagnosis:
    """What a log says without the model and the card it is of."""
    troubles = [*of_full_card(log, None), *of_the_log(log, None), *of_full_cache(log, None)]
    return Diagnosis(
        about=f"the log of {ended(log)}: {engine_of(log)}{plugged_in(log)}",
        memory=tuple(memory_of(log, None)),
        capacity=(),
        troubles=tuple(_distinct(troubles))[:MOST_TROUBLES],
        paste="",
    )


def _distinct(troubles: list[Trouble]) -> Iterator[Trouble]:
    seen: set[str] = set()
    for trouble in troubles:
        if trouble.text not in seen:
            seen.add(trouble.text)
            yield trouble


def _tried(
    prepared: Prepared, is_log: bool
) -> tuple[MemoryProfile | None, ReportInput | None, DoesNotFit | None, tuple[Note, ...]]:
    """Profile, what is known of the plan, why there is none, and what the run would note. is_log:
    the size of its cache was there, whatever an estimate says of the card."""
    try:
        if not is_log:
            check_card(prepared)
        result = execute(prepared)
    except DoesNotFit as error:
        return _profile(prepared), None, error, ()
    report = report_input(result)
    notes = all_notes(report)
    if few := _too_few(report):
        return result.profile, None, DoesNotFit(few), notes
    return result.profile, report, None, notes


def _too_few(report: ReportInput) -> str:
    """How many of the users that were asked for run, where not all do; "" where they do."""
    held, asked = report.plan.capacity, report.requests_asked
    if held is None:
        return ""
    if not held.requests_at_peak:
        return f"not one request of {held.request_len:,} tokens can run."
    if (runs := running_at_once(report) or 0) >= asked:
        return ""
    return f"of {count(asked, 'user')} of {held.request_len:,} tokens, {runs:,} run at once."


def _profile(prepared: Prepared) -> MemoryProfile | None:
    try:
        return profile_ranks(prepared)
    except KvpipeError:
        return None


def _compared(prepared: Prepared, log: EngineLog | None) -> LogComparison | None:
    if log is None:
        return None
    return compare_with_log(prepared, log, prepared.resolved.limits.max_model_len)


# --- what was read, and where the memory went ---
def _about(pasted: PastedRequest, is_estimated: bool) -> str:
    """is_estimated: where no line of a log gives the memory."""
    resolved, log = pasted.prepared.resolved, pasted.log
    ranks = len(resolved.ranks) * resolved.parallel.dp
    where = f"{resolved.model.name} on {f'{ranks} x ' if ranks > 1 else ''}{resolved.device.name}"
    if log is None:
        return f"a command line: {where}, estimated{unread(pasted)}"
    has_memory = log.per_rank("available_kv") or log.per_rank("pools") or log.left_nothing
    known = "" if has_memory or not is_estimated else "; " + NO_MEMORY
    plugged = plugged_in(log)
    return f"the log of {ended(log)}: {engine_of(log)}, {where}{plugged}{known}{unread(pasted)}"


# --- what is wrong ---
def _of_the_plan(prepared: Prepared, error: DoesNotFit | None, is_whole: bool) -> Iterator[Trouble]:
    """is_whole: nothing is known to come on top."""
    if error is None:
        return
    ways = distinct_ways([*ways_out(prepared), *more_room(prepared)])
    asked = requests_asked(prepared.config.want)
    ways.sort(key=lambda way: (not way.is_sure, cuts_short(way, prepared)))
    change = dict(ways[0].changes) if ways else None
    planned = told_ways(ways, is_whole)
    if asked > 1:
        lines = _of_users(prepared, asked, error)
    else:
        lines = error.beside([way.changes for way in ways]).splitlines()
    if (high := held_at_high_end(prepared)) is not None:
        lines.append(straddling_words(high))
    why = ". ".join(line.rstrip(".") for line in lines)
    text = f"{in_flags(why.removeprefix(_OF_THE_LOG))}. {planned}"
    yield Trouble(text=text, stops=True, may_stop=high is not None, change=change)


def _of_users(prepared: Prepared, asked: int, error: DoesNotFit) -> list[str]:
    """The refusal of several users, who are in its first line, if nowhere else."""
    lines, users = error.without_knob().lines(), count(asked, "user")
    length = count(prepared.resolved.limits.max_model_len, "token")
    return lines if users in lines[0] else [f"{users} of {length} were asked for", *lines]


def _is_trouble(note: Note, pasted: PastedRequest) -> bool:
    return note.is_warning and not is_told_otherwise(pasted, note.knob)


def _of_note(note: Note) -> Trouble:
    knob = f". Knob: {note.knob}" if note.knob else ""
    change = dict(note.changes[0]) if note.changes else None
    return Trouble(text=in_flags(f"{note.text}{knob}"), change=change)


# --- what to run ---
def _paste(pasted: PastedRequest, plan: Plan | None, troubles: list[Trouble]) -> str:
    """The pasted line with the first change that can be planned, or a whole one; the plan's own
    where all is well and nothing is known to be better. Where something stops the engine, only what
    was planned against that."""
    prepared, command, log = pasted.prepared, pasted.command, pasted.log
    model = (command.model if command else None) or (log.model if log else None) or ""
    stopping = [trouble for trouble in troubles if trouble.stops]
    changes = [t.change for t in stopping or troubles if t.change is not None]
    if command is not None and (changes or not stopping):
        said = said_changes(prepared.said, prepared.raw)
        for change in changes or [{}]:
            if line := changed_line(command, {**said, **change}, taken_out(pasted)):
                return line
    if changes and log is not None and prepared.config.plugins["profiling"].name == "estimate":
        # Bytes that are estimated are none to pin: the engine finds its own.
        bare = Pasted(model=model or served_name(prepared))
        own = {key: value for key, value in log.settings.items() if key.startswith(_PLANNED)}
        own |= said_changes(prepared.said, prepared.raw)
        lines = [changed_line(bare, {**own, **change}) for change in changes]
        return next(filter(None, lines), "")
    for change in changes:
        try:
            made = prepare(changed(prepared.raw, change))
            memory = profile_after(prepared, made).available_kv_bytes
            return line_for(made, plan_with(made, memory, compared=()), model)
        except (ConfigError, DoesNotFit):
            continue
    return line_for(prepared, plan, model) if plan is not None and not stopping else ""
