"""One question of a search, answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """question: what was searched for. answer: "" where nothing does it. limit: what stands in the
    way of less, or of doing it at all. setting: as one would write it ("" where there is none that
    the request takes). setting_status: what `kvpipe run` says with it, fits or may_not_fit.
    value, unit: the answer as a number (or a name), for programs; null where there is none."""

    question: str
    answer: str
    limit: str
    setting: str = ""
    setting_status: str = ""
    value: int | float | bool | str | None = None
    unit: str = ""
