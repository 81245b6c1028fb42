"""profiling=log: the engine's own settings are used where the user did not say otherwise.

They change what is planned, so they are put into the request before it is checked; the run lists
them as "from the log".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvpipe.errors import KvpipeError

if TYPE_CHECKING:  # needed for logs alone
    from kvpipe.logs.engine_log import EngineLog

# Values that nobody said: `auto`, nothing, or what a section has where it is not chosen.
_UNSAID: Mapping[str, Any] = {
    "scheduler.num_speculative_tokens": 0,
    "parallel.tensor_parallel_size": 1,
    "parallel.pipeline_parallel_size": 1,
    "parallel.data_parallel_size": 1,
    "parallel.decode_context_parallel_size": 1,
    "cache.mamba_cache_mode": "none",
    "cache.enable_prefix_caching": True,
    "cache.disable_hybrid_kv_cache_manager": False,
}


def said_by(overrides: Sequence[str]) -> frozenset[str]:
    """The keys and groups that a command line sets."""
    return frozenset(word.lstrip("+~").partition("=")[0].strip() for word in overrides)


def with_log_settings(
    raw: Mapping[str, Any], said: frozenset[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The composed values with the log's settings, and those as `key=value`. Values that are wrong,
    and logs that cannot be read, are left for the stages that say so."""
    filled = dict(raw)
    log = _log_of(raw)
    if log is None:
        return filled, ()
    taken: list[str] = []
    for key, value in usable(log).items():
        section, _, name = key.partition(".")
        values = filled.get(section)
        if key in said or not isinstance(values, Mapping) or name not in values:
            continue
        if values[name] in ("auto", None, _UNSAID.get(key, "auto")) and values[name] != value:
            filled[section] = {**values, name: value}
            taken.append(f"{key}={value}")
    return filled, tuple(taken)


def usable(log: EngineLog) -> dict[str, Any]:
    """The log's settings; a draft model only where its folder is here, too, as logs are often read
    elsewhere: its layers are not known then."""
    from kvpipe.models.config_file import has_config

    draft = log.settings.get("model.draft")
    is_known = draft is None or draft == "mtp" or has_config(draft)
    return {k: v for k, v in log.settings.items() if is_known or k != "model.draft"}


def _log_of(raw: Mapping[str, Any]) -> EngineLog | None:
    profiling = raw.get("profiling")
    if not isinstance(profiling, Mapping) or profiling.get("name") != "log":
        return None
    from kvpipe.logs.reading import read_file

    try:
        path = profiling.get("path")
        return read_file(path) if isinstance(path, str) else None
    except KvpipeError:
        return None
