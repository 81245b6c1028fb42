"""`backend=auto`: no backend of its own; validation replaces it by the best one that runs here."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class AutoBackend:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str


PLUGIN = AutoBackend
