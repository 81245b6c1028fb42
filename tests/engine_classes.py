"""What vLLM's own classes say that each layer stores (tests/facts/README.md)."""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.stages.validation.layers import as_released

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.live.compare import KINDS  # noqa: E402

FILE = Path(__file__).parent / "facts" / "vllm_classes.json.gz"
# Under these names a class keeps the part that generates; what else it has are towers.
TEXT = ("model.", "lm_head", "llm.", "language_model.", "output.")
CHATGLM = ("transformer.embedding", "transformer.encoder", "transformer.output_layer")
BOUNDS = ("sliding_window", "attention_chunk_size")


@cache
def records() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return loaded


def stored_by_engine(record: Mapping[str, Any]) -> Counter[Any]:
    """Layers that keep a cache of their own: kind and numbers -> how many."""
    return Counter(_engine_layer(spec) for spec in record["layers"].values() if spec)


def stored_by_plan(model: ModelGeometry, release: str) -> Counter[Any]:
    model = as_released(model, release)
    return Counter(_planned_layer(cache) for cache in model.caches if cache.shares_with is None)


def _engine_layer(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    kind = KINDS.get(spec["kind"], spec["kind"])
    if kind == "mamba":
        return kind, _shapes(ast.literal_eval(spec["shapes"]))
    return kind, *_heads(kind, spec), _bound(spec)


def _planned_layer(cache: CacheGeometry) -> tuple[Any, ...]:
    fields = cache.fields
    if cache.spec == "mamba":
        return "mamba", _shapes(state["shape"] for state in fields["states"])
    return cache.spec, *_heads(cache.spec, fields), _bound(fields)


def _heads(kind: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
    """A latent row is one head; V is as wide as K unless it says otherwise."""
    size = fields["head_size"]
    if "mla" in kind:
        return (size,)
    return fields["num_kv_heads"], size, fields.get("head_size_v") or size


def _bound(fields: Mapping[str, Any]) -> int | None:
    return next((fields[name] for name in BOUNDS if fields.get(name)), None)


def _shapes(shapes: Any) -> tuple[tuple[int, ...], ...]:
    """Of a layer's states; which axis of a convolution comes first is a matter of layout."""
    return tuple(sorted(tuple(sorted(shape)) for shape in shapes))


def text_parameters(record: Mapping[str, Any]) -> int:
    parts: Mapping[str, int] = record["of_parts"]
    return sum(n for part, n in parts.items() if f"{part}.".startswith((*TEXT, *CHATGLM)))
