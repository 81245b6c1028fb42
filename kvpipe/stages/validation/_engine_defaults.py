"""scheduler and cache settings that are "auto" -> what the planned engine would choose here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kvpipe.engines.base import Engine
from kvpipe.engines.defaults import OWN, EngineDefaults, chunked_beyond, defaults_of
from kvpipe.engines.versions import standing
from kvpipe.notes import Hint, Note, Proposal
from kvpipe.request.config import RunConfig
from kvpipe.stages.validation.base import ResolvedDevice


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """What one step may hold, and the share of the device; notes name what was chosen."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_concurrent_batches: int
    gpu_memory_utilization: float
    notes: tuple[Note, ...]


def resolve_sizes(config: RunConfig, device: ResolvedDevice, max_model_len: int) -> StepSizes:
    """Set values as they are; "auto" as a server of the planned release takes it on this device
    (kvpipe's own rules: the same everywhere)."""
    scheduler = config.scheduler
    planned = config.plugins["engine"].make(Engine).rules.version
    found = _defaults(config, planned, device, max_model_len) if planned else OWN
    asked: dict[str, Any] = {
        "scheduler.max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "scheduler.max_num_seqs": scheduler.max_num_seqs,
        "scheduler.max_concurrent_batches": scheduler.max_concurrent_batches,
        "cache.gpu_memory_utilization": config.cache.gpu_memory_utilization,
    }
    chosen = [key for key, value in asked.items() if value == "auto"]
    values = {
        _field(key): getattr(found, _field(key)) if key in chosen else value
        for key, value in asked.items()
    }
    notes = [_note(key, found, planned, device) for key in chosen if planned]
    if planned and (words := standing(planned)):
        notes.append(Note(text=words, knob="engine.version"))
    return StepSizes(**values, notes=tuple(notes))


def _field(key: str) -> str:
    """Settings and defaults have the same names."""
    return key.partition(".")[2]


def _defaults(
    config: RunConfig, version: str, device: ResolvedDevice, max_model_len: int
) -> EngineDefaults:
    parallel = config.parallel
    return defaults_of(
        version,
        device_bytes=device.total_bytes,
        device_name=device.name,
        device_type=device.type,
        world_size=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
        pp=parallel.pipeline_parallel_size,
        max_model_len=max_model_len,
        asked_tokens=_said(config.scheduler.max_num_batched_tokens),
        asked_seqs=_said(config.scheduler.max_num_seqs),
    )


def _said(asked: int | Literal["auto"]) -> int | None:
    return None if asked == "auto" else asked


def _note(key: str, found: EngineDefaults, version: str, device: ResolvedDevice) -> Note:
    value = getattr(found, _field(key))
    shown = f"{value:,}" if isinstance(value, int) else f"{value}"
    text = f"{key} is {shown}, vLLM {version}'s default on {device.name}"
    if key == "scheduler.max_num_batched_tokens":
        if chunked := chunked_beyond(version):
            text += f" (a whole prompt; beyond {chunked:,} tokens prompts are cut, into 2,048)"
        if value == 16384:
            earlier = Proposal(changes={key: 8192}, words="the default of earlier releases")
            return Hint(about="a new default batch", text=text, knob=key, proposals=(earlier,))
    return Note(text=text, knob=key)
