"""A pasted line that drafts tokens with something whose weights and cache are not planned."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.drafting import Drafting, drafting_of
from kvpipe.stages.validation.drafting import DRAFT_KNOB, lacks_draft


def uncounted_draft(pasted: PastedRequest) -> Drafting | None:
    """None where nothing is drafted, where the draft is planned, and where it has neither weights
    nor a cache."""
    prepared, command = pasted.prepared, pasted.command
    drafting = drafting_of(command.arguments) if command is not None else None
    if drafting is None or drafting.is_looked_up:
        return None
    if getattr(prepared.config.plugins["model"].options, "draft", None):
        return None
    return None if prepared.resolved.model.num_draft_layers else drafting


def of_draft(pasted: PastedRequest) -> Iterator[Trouble]:
    """Nothing surely fits beside what nobody counted."""
    drafting = uncounted_draft(pasted)
    if drafting is None:
        return
    yield Trouble(
        text=f"{drafting.flag}: {drafting.words} is not counted: its weights and its cache come on "
        f"top, so nothing here surely fits. With both folders at hand: {DRAFT_KNOB}",
        may_stop=True,
    )


def is_told_otherwise(pasted: PastedRequest, knob: str) -> bool:
    """Whether a note with this knob is about drafted tokens of which the line says more."""
    command = pasted.command
    return (
        knob == DRAFT_KNOB
        and command is not None
        and lacks_draft(pasted.prepared.config, pasted.prepared.resolved.model)
        and drafting_of(command.arguments) is not None
    )
