"""The config.json of a draft: EAGLE, EAGLE-3, speculators, Medusa, MLP speculators, or any model.

A draft of EAGLE's kind is one or a few decoder layers over the model's own hidden states: it brings
no embedding, but a projection of what it reads and, in EAGLE-3, a head of fewer words. Medusa
(arXiv:2401.10774) and MLP speculators (arXiv:2404.19124) store no K/V at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvpipe.models._values import Values
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.reading import read_geometry
from kvpipe.models.weight import Ranks

NOT_COUNTED = "; its file does not say its weights, which are not counted"
_WITHOUT_CACHE = ("medusa", "mlp_speculator")
_EAGLE = ("eagle", "eagle3")
_STATES = {"eagle": 2, "eagle3": 3}  # hidden states side by side that its projection reads


def read_draft(file: ConfigFile) -> ModelGeometry:
    """Its layers, and its weights as far as its file says them."""
    kind = kind_of(file.raw)
    if kind in _WITHOUT_CACHE:
        return _without_cache(file, kind)
    inner = Values(file.raw).section("transformer_layer_config").raw
    nested = inner or (Values(file.raw).section("model").raw if kind in _EAGLE else {})
    if not nested and kind in _EAGLE and Values(file.raw).word("model_type") in _EAGLE:
        nested = {**file.raw, "model_type": "llama"}
    text = {"model_type": "llama", **nested} if nested else file.text
    model = read_geometry(replace(file, raw=text if nested else file.raw, text=text))
    return _as_eagle(model, file, kind) if kind in _EAGLE else model


def kind_of(raw: Mapping[str, Any]) -> str:
    """ "" for a model with tokens of its own."""
    values = Values(raw)
    named = values.word("speculators_model_type") or values.word("model_type")
    names = " ".join(values.words("architectures") or ()).lower()
    known = (*_WITHOUT_CACHE, *reversed(_EAGLE))
    if named in known:
        return named
    return next((kind for kind in known if kind.replace("_", "") in names), "")


def _without_cache(file: ConfigFile, kind: str) -> ModelGeometry:
    counted = {"medusa": _medusa_parameters, "mlp_speculator": _mlp_parameters}[kind](
        Values(file.raw)
    )
    return ModelGeometry(
        name=file.name,
        file_dtype=file.dtype or "float16",
        context_length=1,
        num_layers=0,
        caches=(),
        source="config.json",
        parameter_count=counted,
        is_formula=counted is not None,
        notes=(f"{file.name} ({kind}) stores no K/V{'' if counted else NOT_COUNTED}",),
    )


def _medusa_parameters(values: Values) -> int | None:
    """Heads of residual square matrices, each with an output projection of its own (vLLM:
    model_executor/models/medusa.py); biases, which some files have, are left out."""
    heads = values.number("medusa_num_heads") or values.number("num_heads")
    hidden, words = values.number("hidden_size"), values.number("truncated_vocab_size")
    words = words or values.number("vocab_size")
    layers = values.number("medusa_num_layers") or values.number("num_hidden_layers", 1)
    return heads * (layers * hidden**2 + words * hidden) if heads and hidden and words else None


def _mlp_parameters(values: Values) -> int | None:
    """For each token ahead an embedding, a projection, a norm and a head; tied, all but the first
    projection are one (vLLM: model_executor/models/mlp_speculator.py)."""
    ahead, words = values.number("n_predict"), values.number("vocab_size")
    wide = values.number("emb_dim")
    inner = values.number("inner_dim") or wide
    if not (ahead and words and wide):
        return None
    own = 1 if values.flag("tie_weights") else ahead
    later = min(ahead - 1, own)
    return own * (2 * words * inner + 2 * inner) + wide * inner + later * inner**2


def _as_eagle(model: ModelGeometry, file: ConfigFile, kind: str) -> ModelGeometry:
    """The layers, a projection and a head; the embedding is the model's."""
    if model.rank_parameters is None:
        return model
    hidden, layers = model.hidden_size, range(model.num_layers)
    words = Values(file.raw).number("draft_vocab_size") if kind == "eagle3" else 0
    blocks = model.rank_parameters(Ranks(), layers, False, False)
    # EAGLE-3's attention reads the embedding beside the hidden state: q, k, v are twice as wide.
    wider = _attention_rows(model) * hidden if kind == "eagle3" else 0
    counted = blocks + wider + _STATES[kind] * hidden**2 + words * hidden
    note = "a draft's weights follow from its file: its layers, what it reads, its own head"
    notes = (*model.notes, note)
    return replace(
        model, parameter_count=counted, rank_parameters=None, notes=notes, is_formula=True
    )


def _attention_rows(model: ModelGeometry) -> int:
    """Rows of q, k and v of all layers."""
    rows = 0
    for cache in model.caches:
        size = cache.fields["head_size"]
        rows += (model.num_attention_heads + 2 * cache.fields["num_kv_heads"]) * size
    return rows
