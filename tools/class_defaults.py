"""The defaults of transformers' configuration classes, as a table that needs no torch.

    python tools/class_defaults.py          # writes kvpipe/models/families/class_defaults.json

One entry a model_type that generates, and one for each part that generates inside another:
`defaults` (field -> what the class supplies where a file leaves it out, nothing derived),
`aliases` (standard name -> the class's own), `text` (the key of the part that generates and its
type), `text_defaults` (what the whole's class gives that part where the file leaves it out),
`pattern` (the round of layer_types that the class repeats; null where it derives them by a rule of
its own).
"""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import transformers
from measure_types import generating_types, own_defaults
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OUT = Path(__file__).parents[1] / "kvpipe" / "models" / "families" / "class_defaults.json"
NOISE = ("dropout", "drop", "eps", "epsilon", "_range", "theta", "_token_id", "_token_index",
         "init_std", "_scale", "scaling", "coef", "_limit", "softcapping", "initializer", "_act",
         "activation", "temperature", "jitter", "pdrop", "use_cache", "label", "summary", "prob",
         "return_", "transformers_version", "_token_ids")  # fmt: skip
SIZES = ("hidden_size", "num_hidden_layers")
LONGEST = 16
MADE = ("moe_intermediate_size",)  # lists that a class makes where the file has none
STRETCHED = ("linear", "dynamic", "yarn")
ENCODERS = ("longformer",)  # masked language models that are no generating type, but are read


def is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= LONGEST and all(isinstance(x, (int, str)) for x in value)
    return value is None or isinstance(value, (bool, int, str, float))


def defaults_of(config_class: type) -> dict[str, Any]:
    base = {"is_encoder_decoder": False, "tie_word_embeddings": True}
    found = {f.name: f.default for f in fields(config_class) if f.name in base} | own_defaults(
        config_class
    )
    found |= tied_by(config_class, found)
    stretched = stretched_by(config_class)
    return (
        {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in sorted(found.items())
            if is_plain(value) and not any(word in key for word in NOISE) and value is not None
        }
        | {key: None for key in ("sliding_window",) if key in found and found[key] is None}
        | stretched
        | made_by(config_class, found)
    )


def made_by(config_class: type, found: dict[str, Any]) -> dict[str, list[int]]:
    """ERNIE 4.5 VL's two widths of experts: null in the class, and the same for every file."""
    unsaid = [key for key in MADE if key in found and found[key] is None]
    made = {key: getattr(config_class(), key, None) for key in unsaid}
    return {key: value for key, value in made.items() if isinstance(value, list)}


def stretched_by(config_class: type) -> dict[str, Any]:
    """Rope that stretches the context of a file that says nothing of rope."""
    try:
        rope = config_class().rope_parameters or {}
    except Exception:  # it needs a file, or has none
        return {}
    if rope.get("rope_type") not in STRETCHED:
        return {}
    named = ("rope_type", "factor", "original_max_position_embeddings")
    return {"rope_parameters": {key: rope[key] for key in named if key in rope}}


def tied_by(config_class: type, found: dict[str, Any]) -> dict[str, bool]:
    """A class may take it from its text part after it was built."""
    try:
        tied = config_class().tie_word_embeddings if "tie_word_embeddings" in found else None
    except Exception:  # it needs a file
        return {}
    return {"tie_word_embeddings": tied} if isinstance(tied, bool) else {}


def text_part(config: Any) -> tuple[str, Any] | None:
    """The key under which the part that generates lies, and that part."""
    text = config.get_text_config(decoder=True)
    if text is config:
        return None
    for key in getattr(type(config), "sub_configs", {}) or {}:
        if getattr(config, key, None) is text:
            return key, text
    for key in getattr(type(config), "sub_configs", {}) or {}:
        inner = getattr(config, key, None)
        if hasattr(inner, "get_text_config") and inner.get_text_config(decoder=True) is text:
            return key, inner
    return None


def text_defaults(config_class: Any, key: str, inner: Any) -> dict[str, Any]:
    """What the part has in a whole whose file says nothing of it but its type, and not alone."""
    named = getattr(config_class, "sub_configs_defaults", {}).get(key)
    given = getattr(named, "init_kwargs", None) or {}
    try:
        within = getattr(config_class(**{key: {"model_type": inner.model_type}}), key)
        alone = type(inner)()
    except Exception:
        return {}
    own = own_defaults(type(inner))
    if all(getattr(within, name, None) == getattr(alone, name, None) for name in SIZES):
        return {}  # it gives them only where the file has no such part
    return {
        name: value
        for name, value in sorted(given.items())
        if is_plain(value)
        and not any(word in name for word in NOISE)
        and getattr(within, name, None) == value != own.get(name)
    }


def every_nth(types: list[str], length: int) -> dict[str, Any] | None:
    """The shortest round that gives the whole list when it is repeated."""
    for n in range(1, 9):
        if all(kind == types[i % n] for i, kind in enumerate(types)):
            return {"round": types[:n]}
    return None


def pattern_of(config_class: type) -> list[str] | None:
    """A round of layer_types that the class repeats, whatever the number of layers."""
    rounds = set()
    for length in (12, 17, 24):
        try:
            config = config_class(num_hidden_layers=length)
            types = config.layer_types
        except Exception:
            return None
        if not types or len(types) != length:
            return None
        found = every_nth(list(types), length)
        rounds.add(tuple(found["round"]) if found else None)
    return list(rounds.pop()) if len(rounds) == 1 and None not in rounds else None


def entry(config_class: type) -> dict[str, Any]:
    found: dict[str, Any] = {"defaults": defaults_of(config_class)}
    if aliases := aliases_of(config_class):
        found["aliases"] = aliases
    pattern = pattern_of(config_class)
    if pattern or derives_types(config_class):
        found["pattern"] = pattern
    return found


def aliases_of(config_class: type) -> dict[str, str]:
    """Other names of keys. One that is a field of its own before the key is none: the key, set
    after it, overwrites it even where the file leaves it out (Step's num_local_experts)."""
    order = {field.name: number for number, field in enumerate(fields(config_class))}
    named = dict(getattr(config_class, "attribute_map", {}) or {})
    return {
        other: own
        for other, own in named.items()
        if not (other in order and own in order and order[other] < order[own])
    }


def derives_types(config_class: type) -> bool:
    """Whether a file without layer_types is given some."""
    try:
        return bool(getattr(config_class(), "layer_types", None))
    except Exception:
        return False


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    table: dict[str, Any] = {}
    todo = [(name, CONFIG_MAPPING[name]) for name in [*generating_types(), *ENCODERS]]
    while todo:
        name, config_class = todo.pop()
        if name in table or not name:
            continue
        table[name] = entry(config_class)
        try:
            config = config_class()
        except Exception as error:
            print(name, error)
            continue
        if part := text_part(config):
            key, inner = part
            table[name]["text"] = [key, inner.model_type]
            if own := text_defaults(config_class, key, inner):
                table[name]["text_defaults"] = own
            todo.append((inner.model_type, type(inner)))
    OUT.write_text(
        json.dumps(dict(sorted(table.items())), separators=(",", ":"), indent=None).replace(
            '},"', '},\n"'
        )
        + "\n"
    )
    print(len(table), OUT.stat().st_size)


if __name__ == "__main__":
    main()
