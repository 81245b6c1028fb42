"""How many parameters stand beside the text part, in transformers' own classes.

    python tools/measure_towers.py [--out FILE] [--seed N] [--settings N] [TYPE ...]

For each type with parts that generates: a file whose parts have the tiny sizes of
tests/facts/transformers_types.json.gz, one whose towers leave out every key, and some in which keys
of the towers were drawn or left out; built on the meta device, and counted. Writes
tests/facts/transformers_towers.json.gz; the full tier draws anew.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from measure_types import generating_types, model_class, own_defaults
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FACTS = Path(__file__).parents[1] / "tests" / "facts"
OUT = FACTS / "transformers_towers.json.gz"
TRIES = 12  # drawings until one can be built
SETTINGS = 4
# What a tiny file needs beside what its text part does.
NEEDED: Mapping[str, dict[str, Any]] = {
    "emu3": {"vocabulary_map": {"<|extra_200|>": 5, "<image>": 6, "<|visual token 000000|>": 7}},
    "nemotron_h_omni": {"vision_config": {"model_type": "radio", "video_temporal_patch_size": 2}},
    "granite4_vision": {
        "downsample_rate": "4/8",
        "deepstack_layer_map": [[-2, 1], [-1, 3]],
        "spatial_target_layers": [0, 2, 4, 6],
        "use_spatial_sampling": True,
    },
}
WHOLES = ("MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM")
# What a class derives or checks against others; lists of one entry a layer.
FIXED = (
    "_token",
    "tie_word",
    "_id",
    "vocab_size",
    "model_type",
    "layer_types",
    "torch_dtype",
    "dtype",
)
CHOICES: Mapping[str, tuple[int, ...]] = {
    "heads": (2, 4),
    "layers": (1, 2, 3, 5),
    "depth": (1, 2, 3),
    "hidden": (32, 64, 96, 128),
    "dim": (32, 64, 96),
    "size": (32, 64, 96),
    "intermediate": (48, 96, 160),
    "ffn": (48, 96, 160),
    "image_size": (32, 56, 64),
    "patch_size": (4, 8, 14),
    "kernel": (3, 5, 7),
}


def whole_class(config: Any) -> Any:
    """The class with every part, where a type has one of its text part alone, too."""
    for mapping in WHOLES:
        table = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING", {})
        if type(config) in table:
            found = table[type(config)]
            return found[0] if isinstance(found, tuple) else found
    return model_class(config)


def parameters_of(config: Any) -> tuple[int, int]:
    """Beside the text part and its head, and of all. The config is changed by it."""
    with torch.device("meta"):
        model = whole_class(config)._from_config(config, attn_implementation="eager")
    text = model.config.get_text_config(decoder=True)
    inside = {
        id(parameter)
        for module in model.modules()
        if type(getattr(module, "config", None)) is type(text)
        for parameter in module.parameters()
    }
    try:
        head = model.get_output_embeddings()
    except AttributeError:
        head = None
    inside |= {id(p) for p in head.parameters()} if head is not None else set()
    counts = [(id(p) in inside, p.numel()) for p in model.parameters()]
    return sum(n for is_text, n in counts if not is_text), sum(n for _, n in counts)


def counted(raw: Mapping[str, Any]) -> tuple[int, int]:
    values = {k: v for k, v in deepcopy(dict(raw)).items() if k != "model_type"}
    return parameters_of(CONFIG_MAPPING[raw["model_type"]](**values))


def text_key(kind: str) -> str | None:
    config = CONFIG_MAPPING[kind]()
    text = config.get_text_config(decoder=True)
    keys = [key for key in config.sub_configs if getattr(config, key, None) is text]
    return keys[0] if keys else None


def drawn(
    values: dict[str, Any], known: Mapping[str, Any], dice: random.Random, share: float
) -> Any:
    """The section with some of its keys drawn, and some left out."""
    changed = dict(values)
    for key, default in known.items():
        value = changed.get(key, default)
        if any(word in key for word in FIXED) or dice.random() > share:
            continue
        if dice.random() < 0.2 and key in changed:
            del changed[key]
        elif isinstance(value, bool):
            changed[key] = dice.random() < 0.5
        elif isinstance(value, int):
            changed[key] = number(key, value, dice)
        elif isinstance(value, float) and key == "mlp_ratio":
            changed[key] = dice.choice((1.5, 2.0, 4.0))
    return changed


def number(key: str, value: int, dice: random.Random) -> int:
    exact = [word for word in ("image_size", "patch_size") if key == word]
    words = exact or [word for word in CHOICES if word in key and not word.endswith("_size")]
    if words and value > 1:
        return dice.choice(CHOICES[words[0]])
    return dice.choice((value, value, 2 * value, max(1, value // 2), value + 1))


def sections(kind: str) -> dict[str, Any]:
    """Of everything that is no text: key -> the defaults of its class."""
    config_class = CONFIG_MAPPING[kind]
    whole = config_class()
    found = {}
    for key, part in (config_class.sub_configs or {}).items():
        inner = getattr(whole, key, None)
        if inner is None and hasattr(part, "__dataclass_fields__"):
            inner = part()
        if inner is not None and key != text_key(kind):
            found[key] = {"model_type": inner.model_type, **own_defaults(type(inner))}
    return found


def tiny(kind: str) -> dict[str, Any]:
    """The file that was measured, or that ought to have been."""
    records = json.loads(gzip.decompress((FACTS / "transformers_types.json.gz").read_bytes()))
    found: dict[str, Any] = records[kind]["sparse"]
    return {**found, **NEEDED.get(kind, {})}


def files(kind: str, dice: random.Random, settings: int) -> Iterator[dict[str, Any]]:
    """The tiny one, one of defaults, and drawn ones, as far as they can be built."""
    base, known, needed = tiny(kind), sections(kind), NEEDED.get(kind, {})
    for key, values in known.items():
        base.setdefault(key, {"model_type": values["model_type"]})
    yield base
    yield {**base, **{key: {"model_type": v["model_type"]} for key, v in known.items()}, **needed}
    plain = {
        k: v
        for k, v in own_defaults(CONFIG_MAPPING[kind]).items()
        if isinstance(v, (int, float)) and k not in known
    }
    for _turn in range(settings):
        for attempt in range(TRIES):
            share = 0.5 / (1 + attempt / 3)
            raw = drawn(base, plain, dice, share / 2)
            for key, values in known.items():
                raw[key] = drawn(base[key], values, dice, share)
            try:
                counted(raw)
            except Exception:  # each class refuses in its own way
                continue
            yield raw
            break


def measured(kind: str, seed: int, settings: int) -> list[list[Any]]:
    found = []
    for raw in files(kind, random.Random(f"{seed} {kind}"), settings):
        try:
            found.append([raw, *counted(raw)])
        except Exception as error:
            print("  failed", kind, type(error).__name__, str(error)[:100].replace("\n", " "))
    return found


def kinds() -> list[str]:
    """Types with parts of which one generates."""
    found = []
    for kind in generating_types():
        try:
            has_parts = text_key(kind) is not None
        except Exception as error:
            print("  no config", kind, str(error)[:60].replace("\n", " "))
            continue
        if has_parts:
            found.append(kind)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", type=int, default=SETTINGS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    table = json.loads(gzip.decompress(args.out.read_bytes())) if args.out.exists() else {}
    for kind in args.types or kinds():
        if found := measured(kind, args.seed, args.settings):
            table[kind] = found
        print(kind, len(found), [towers for _, towers, _ in found][:3], flush=True)
    text = json.dumps(dict(sorted(table.items())), separators=(",", ":"))
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(len(table), args.out.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
