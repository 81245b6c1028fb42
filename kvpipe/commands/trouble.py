"""What is wrong with a start, in words, and what was planned against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NO_TROUBLE = "nothing is wrong that kvpipe knows of"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """text: what is wrong. stops: the engine does not start, or serves nothing. may_stop: that is
    so at one end of an estimate alone (stops: by its best value, and not at the high end). change:
    what was planned against it (empty: nothing is needed but what `first` says; None: nothing is
    known to help). first: what must be done before that."""

    text: str
    stops: bool = False
    may_stop: bool = False
    change: Mapping[str, Any] | None = None
    first: str = ""
