"""Hints of the stages -> notes: what they propose is planned, and told where it helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kvpipe.answers.plan_hints import plan_hints
from kvpipe.cache.plan import Plan
from kvpipe.notes import Hint, Note, Proposal
from kvpipe.pipeline import Prepared
from kvpipe.stages.profiling.base import MemoryProfile

if TYPE_CHECKING:  # needed for hints alone
    from kvpipe.answers.trials import Trial


def stage_notes(prepared: Prepared, profile: MemoryProfile, plan: Plan) -> Iterator[Note]:
    """What the stages noted, and what follows from the plan, each hint with those of its proposals
    that help."""
    for note in _raised(prepared, profile, plan):
        yield _told(prepared, note) if isinstance(note, Hint) else note


def _raised(prepared: Prepared, profile: MemoryProfile, plan: Plan) -> Iterable[Note]:
    return (
        *prepared.resolved.notes,
        *profile.notes,
        *plan.notes,
        *plan_hints(plan, profile, prepared.resolved.max_num_seqs),
    )


def _told(prepared: Prepared, hint: Hint) -> Note:
    helping = list(_helping(prepared, hint))
    words = (told_change(prepared, proposal) for proposal in helping)
    return Note(
        text=hint.text,
        knob=", or ".join(words) or hint.knob,
        is_warning=hint.is_warning,
        changes=tuple({**proposal.changes} for proposal in helping),
    )


def told_change(prepared: Prepared, proposal: Proposal) -> str:
    """A change in words, with what it brings about."""
    change = prepared.as_typed(proposal.changes)
    return f"{change}, {proposal.words}" if proposal.words else change


def _helping(prepared: Prepared, hint: Hint) -> Iterator[Proposal]:
    """Of the proposals that change the same keys the first that helps."""
    from kvpipe.answers.trials import tried

    done: set[frozenset[str]] = set()
    for proposal in hint.proposals:
        keys = frozenset(proposal.changes)
        if keys not in done and _helps(tried(prepared, proposal.changes), hint, proposal):
            done.add(keys)
            yield proposal


def _helps(trial: Trial | None, hint: Hint, proposal: Proposal) -> bool:
    if trial is None:
        return False
    if proposal.least_kv_bytes is not None:
        return min(trial.profile.available_kv_bytes) >= proposal.least_kv_bytes
    raised = _raised(trial.prepared, trial.profile, trial.plan)
    return all(note.about != hint.about for note in raised if isinstance(note, Hint))
