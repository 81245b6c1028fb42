"""What the headers of a model's safetensors files add: exact weights, and proof of the caches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvpipe.models._safetensors import StoredTensors, TensorTable, summarize
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.proof import proven_layers


@dataclass(frozen=True, kw_only=True)
class Stored:
    """tensors: of the model; None where only config.json is there. adapter: of a LoRA beside it."""

    tensors: TensorTable | None = None
    adapter: TensorTable | None = None


def with_stored(geometry: ModelGeometry, file: ConfigFile, stored: Stored) -> ModelGeometry:
    """The geometry as its headers tell it; ConfigError where they contradict the plan."""
    if stored.adapter:
        size = summarize(stored.adapter).num_bytes
        geometry = replace(geometry, adapter_bytes=size)
    if not stored.tensors:
        return geometry
    proven, attending = proven_layers(geometry.caches, geometry.num_attention_heads, stored.tensors)
    geometry = with_stored_weights(geometry, file, summarize(stored.tensors))
    if not attending or proven < attending:
        return geometry
    note = "the shapes of all K/V projections agree with the plan, layer by layer"
    return replace(geometry, notes=(*geometry.notes, note))


def with_stored_weights(
    geometry: ModelGeometry, file: ConfigFile, stored: StoredTensors | None
) -> ModelGeometry:
    """What safetensors headers say wins over what config.json implies: all towers are in them."""
    if stored is None:
        return geometry
    replaced = ("weights are those", "how ")
    notes = tuple(note for note in geometry.notes if not note.startswith(replaced))
    changes: dict[str, Any] = {"source": f"{geometry.source} and safetensors headers"}
    if stored.is_plain and file.quantization is None:
        changes["parameter_count"] = stored.num_elements
        text = (geometry.parameter_count or 0) - geometry.tower_parameters
        changes["tower_parameters"] = max(0, stored.num_elements - text) if text else 0
        if stored.num_elements != geometry.parameter_count:
            changes["rank_parameters"] = None  # it knows other weights than the file has
            changes["weights"] = None
    else:
        changes["weight_bytes"] = stored.num_bytes
    return replace(geometry, notes=notes, **changes)
