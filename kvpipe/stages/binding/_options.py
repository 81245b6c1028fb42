"""The section `binding.verify`: how much of what was bound is proved."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class VerifyOptions(BaseModel):
    """max_rows: written an array, at most. max_length: tokens of the longest request.
    inject: a fault that must show (two block ids of a table swapped between writing and reading; a
    write dropped; two layers on the same pages)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    enabled: bool
    inject: Literal["none", "swap", "lost", "alias"]
    num_requests: int = Field(ge=0, le=64)
    max_rows: int = Field(ge=1, le=1 << 20)
    max_length: int = Field(ge=1)
    seed: int
