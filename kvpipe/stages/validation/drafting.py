"""Drafted tokens of which nothing says what drafts them: its weights and cache are not counted."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.models.base import ModelGeometry
from kvpipe.notes import Note
from kvpipe.request.config import RunConfig
from kvpipe.text.figures import count

DRAFT_KNOB = "model=hf model.path=FOLDER model.draft=FOLDER"


def lacks_draft(config: RunConfig, model: ModelGeometry) -> bool:
    """Whether tokens are drafted and no draft is planned."""
    has_draft = getattr(config.plugins["model"].options, "draft", None) or model.num_draft_layers
    return config.scheduler.num_speculative_tokens > 0 and not has_draft


def draft_notes(config: RunConfig, model: ModelGeometry) -> Iterator[Note]:
    if lacks_draft(config, model):
        tokens = count(config.scheduler.num_speculative_tokens, "token")
        yield Note(
            text=f"what drafts {tokens} is not named, so its weights and its cache are not "
            "counted (an n-gram lookup has neither)",
            knob=DRAFT_KNOB,
            is_warning=True,
        )
