"""A setting that a search found, put into the user's own request: what `kvpipe run` says of it.

The search plans with memory that is estimated, and lets the scheduler run as many as are wanted;
the request itself may do neither. What it would refuse is no setting to print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvpipe.answers.as_asked import LENGTH, SEQS, as_asked
from kvpipe.answers.finding import Finding
from kvpipe.answers.served import served
from kvpipe.cache.load import Load, running
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.changed import changed
from kvpipe.request.confdir import shipped_option


def as_pasted(prepared: Prepared, load: Load, finding: Finding) -> Finding:
    """With the setting that serves the load when it is pasted (and as many sequences as it takes),
    and its status; without one where none does."""
    if not finding.setting:
        return finding
    more = f"{finding.setting} {SEQS}={load.requests}"
    for setting in (finding.setting, more):
        if status := _status(prepared, load, changes_of(setting)):
            return replace(finding, setting=setting, setting_status=status)
    return replace(finding, setting="")


def changes_of(setting: str) -> dict[str, Any]:
    """`a.b=1 c=x` -> {"a.b": 1, "c": "x"}."""
    pairs = (word.partition("=")[::2] for word in setting.split())
    return {key: int(value) if value.isdecimal() else value for key, value in pairs}


def _status(prepared: Prepared, load: Load, changes: Mapping[str, Any]) -> str:
    """fits | may_not_fit, where the best value serves; "" where it does not."""
    whole = dict(changes)
    if "device" in whole:
        whole["device"] = shipped_option("device", whole["device"])
    if isinstance(share := whole.get("cache.gpu_memory_utilization"), str):
        whole["cache.gpu_memory_utilization"] = float(share)
    wanted = running(load.requests, whole.get(LENGTH, load.length))
    try:
        made = prepare(changed(prepared.raw, {LENGTH: wanted.length, **whole}))
        held = served(made)
    except KvpipeError:
        return ""
    asked = as_asked(made, wanted)
    if not asked.serves or held.best.users < wanted.requests:
        return ""
    both = {held.word(wanted.requests), str(asked.finding.value).replace("_", " ")}
    return "fits" if both == {"fits"} else "may_not_fit"
