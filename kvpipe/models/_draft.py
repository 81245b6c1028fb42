"""Draft layers of speculative decoding: caches after the model's own.

`mtp` takes the multi-token-prediction layers that the file announces; anything else is a draft
model's config.json. A draft's layer i becomes layer num_layers + i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvpipe.errors import ConfigError, Problem
from kvpipe.models._values import Values
from kvpipe.models.base import MAX_LAYERS, CacheGeometry, ModelGeometry, RankParameters
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.families import families
from kvpipe.models.weight import Ranks
from kvpipe.specs.base import DTYPE_BYTES, cdiv

_MTP_KEYS = (
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules",
)  # fmt: skip
# Types whose published files have no such key, and checkpoints that have such layers (vLLM:
# model_executor/models/qwen3_next_mtp.py, qwen3_5_mtp.py).
_MTP_WITHOUT_KEY = {"qwen3_next": 1, "qwen3_5_text": 1, "qwen3_5_moe_text": 1}


def with_draft(
    model: ModelGeometry, file: ConfigFile, draft: str, read: Callable[[str], ModelGeometry]
) -> ModelGeometry:
    """The model with its draft's caches and weights. read: a draft's place -> its geometry."""
    if draft == "mtp":
        return _with_mtp(model, file)
    return _with_model(model, read(draft))


def moved(cache: CacheGeometry, by: int) -> CacheGeometry:
    """The same cache of a layer `by` layers further on."""
    target = cache.shares_with
    return replace(
        cache,
        name=_renumbered(cache.name, by),
        layer=cache.layer + by,
        shares_with=None if target is None else _renumbered(target, by),
    )


def _renumbered(name: str, by: int) -> str:
    return ".".join(str(int(p) + by) if p.isdigit() else p for p in name.split("."))


def _with_mtp(model: ModelGeometry, file: ConfigFile) -> ModelGeometry:
    """A prediction layer stores what the model's last layer with attention stores."""
    values = Values(file.text)
    count = next((n for key in _MTP_KEYS if (n := values.number(key, at_most=MAX_LAYERS))), 0)
    count = count or _MTP_WITHOUT_KEY.get(file.model_type, 0)
    if not count:
        raise ConfigError(
            Problem(
                "model.draft",
                f"a model with prediction layers ({_MTP_KEYS[0]})",
                f"none in {model.name}",
                "name a draft model, or leave model.draft=null",
            )
        )
    newest = max((c.layer for c in model.caches if c.spec != "mamba"), default=model.num_layers - 1)
    kept = families()[file.model_type].predicts if file.model_type in families() else bool
    last = [cache for cache in model.caches if cache.layer == newest and kept(cache)]
    to_the_end = model.num_layers - 1 - newest
    drafts = tuple(moved(cache, by + to_the_end) for by in range(1, count + 1) for cache in last)
    weights = _mtp_parameters(model, newest) * count
    note = f"{count} prediction layer(s) draft"
    note += f", {weights:,} parameters" if weights else "; their weights are not counted"
    counted = model.parameter_count
    return replace(
        model,
        num_layers=model.num_layers + count,
        num_draft_layers=count,
        caches=model.caches + drafts,
        parameter_count=counted + weights if counted and weights else counted,
        is_formula=model.is_formula or bool(weights),
        rank_parameters=_with_last_stage(model.rank_parameters, weights),
        notes=(*model.notes, note),
    )


def _mtp_parameters(model: ModelGeometry, layer: int) -> int:
    """A layer like `layer`, a projection of the two hidden states that it reads, three norms.
    0 where the weights are not known one by one, or headers counted them already."""
    if model.rank_parameters is None or "headers" in model.source:
        return 0
    own = model.rank_parameters(Ranks(), range(layer, layer + 1), False, False)
    return own + 2 * model.hidden_size**2 + 3 * model.hidden_size


def _with_last_stage(own: RankParameters | None, weights: int) -> RankParameters | None:
    """The prediction layers lie on the last stage, split as evenly as its others."""
    if own is None:
        return None
    return lambda ranks, stage, first, last: (
        own(ranks, stage, first, last) + (cdiv(weights, ranks.tp) if last else 0)
    )


def _with_model(model: ModelGeometry, draft: ModelGeometry) -> ModelGeometry:
    caches = tuple(moved(cache, model.num_layers) for cache in draft.caches)
    taken = {cache.name for cache in model.caches} & {cache.name for cache in caches}
    assert not taken, taken
    both = model.parameter_count is not None and draft.parameter_count is not None
    return replace(
        model,
        num_layers=model.num_layers + draft.num_layers,
        num_draft_layers=draft.num_layers,
        caches=model.caches + caches,
        parameter_count=(model.parameter_count or 0) + (draft.parameter_count or 0)
        if both
        else None,
        weight_bytes=_added_bytes(model, draft),
        is_formula=model.is_formula or draft.is_formula,
        rank_parameters=None,  # how a draft's weights are split is not known
        notes=(*model.notes, f"drafts with {draft.name}: {draft.num_layers} more layer(s)"),
    )


def _added_bytes(model: ModelGeometry, draft: ModelGeometry) -> int | None:
    """Exact bytes only where one of the two is quantised; the other is in its file's dtype."""
    if model.weight_bytes is None and draft.weight_bytes is None:
        return None
    parts = [
        part.weight_bytes or (part.parameter_count or 0) * DTYPE_BYTES[part.file_dtype]
        for part in (model, draft)
    ]
    return sum(parts) if all(parts) else None
