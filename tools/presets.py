"""Writes conf/model/<preset>.yaml from published config.json files.

    python tools/presets.py FILE.jsonl        one model a line: name, source, config, and if it is
                                              known published ("235B"), also, title, stem
    python tools/presets.py --check           every preset against the config that it carries

The reader of config.json says what every layer stores; the preset writes that down, beside the
config that it came from, so that a run reads neither the file nor a family. A model whose preset
would not read back as its config.json does is not written, and says why.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from kvpipe.errors import ConfigError
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.models.config_file import config_file
from kvpipe.models.preset import PLUGIN as Preset
from kvpipe.models.reading import read_geometry

MODELS = Path(__file__).parents[1] / "conf" / "model"
# Of a config.json, what has no bearing on memory.
_LEFT_OUT = re.compile(
    r"(_token_id|_token_ids|_dropout|_index|_range|_std|_coef|_factor_aux|_pdrop|_bias_init)$|"
    r"^(transformers_version|use_cache|auto_map|id2label|label2id|task_specific_params|_name_or_path|"
    r"vision_config|audio_config|image_.*|video_.*|.*(prompt|processor|tokenizer).*|initializer.*|"
    r"pretraining_tp|output_.*|rope_theta|.*_eps|.*_epsilon|generation_config|return_dict)$"
)
_OWN = ("source", "notes", "rank_parameters", "weights")  # of how it was read, not of the model


def main(arguments: Sequence[str]) -> int:
    if arguments == ["--check"]:
        wrong = [f"{path.name}: {why}" for path in presets() if (why := check(path))]
        print("\n".join(wrong) or "every preset reads as its config")
        return bool(wrong)
    for line in Path(arguments[0]).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        try:
            text = preset_text(**entry)
        except (ConfigError, ValueError) as error:
            print(f"not written: {entry['name']}: {str(error)[:300]}")
            continue
        stem = entry.get("stem") or stem_of(entry["name"])
        (MODELS / f"{stem}.yaml").write_text(text, encoding="utf-8")
        print(f"{stem}: {entry['name']}")
    return 0


def presets() -> list[Path]:
    return sorted(path for path in MODELS.glob("*.yaml") if path.stem != "hf")


def check(path: Path) -> str:
    """Why the preset is not what its config says; "" where it is, or carries none."""
    section = yaml.safe_load(path.read_text(encoding="utf-8"))
    if section.get("config") is None:
        return ""
    return differences(read_preset(section), from_config(section["name"], section["config"]))


def read_preset(section: Mapping[str, Any]) -> ModelGeometry:
    return Preset(Preset.Options.model_validate(section)).read()


def from_config(name: str, config: Mapping[str, Any]) -> ModelGeometry:
    return read_geometry(config_file(config, name))


def differences(preset: ModelGeometry, config: ModelGeometry) -> str:
    names = [field.name for field in fields(ModelGeometry) if field.name not in _OWN]
    return ", ".join(
        f"{name} {getattr(preset, name)!s:.60} for {getattr(config, name)!s:.60}"
        for name in names
        if getattr(preset, name) != getattr(config, name)
    )


def stem_of(name: str) -> str:
    """Qwen/Qwen3-235B-A22B -> qwen3_235b_a22b."""
    short = re.sub(r"-(hf|base)$", "", name.rpartition("/")[2].casefold())
    return re.sub(r"[^a-z0-9]+", "_", short)


def preset_text(
    *,
    name: str,
    source: str,
    config: Mapping[str, Any],
    published: str = "",
    also: str = "",
    title: str = "",
    stem: str = "",
) -> str:
    """The YAML; ValueError where it would not read back as the config does."""
    kept = relevant(config)
    geometry = from_config(name, kept)
    if why := differences(geometry, from_config(name, config)):
        raise ValueError(f"a key that was left out matters: {why}")
    lines = [f"# {title or summary(name, geometry)}"]
    lines += [f"# also: {also}"] if also else []
    lines += ["reader: preset", f"name: {name}", *_values(geometry, published, source)]
    lines += [f"config: {_flow(kept)}", *_layers(geometry)]
    text = "\n".join(lines) + "\n"
    if why := differences(read_preset(yaml.safe_load(text)), geometry):
        raise ValueError(f"no preset can say it: {why}")
    return text


def relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: relevant(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not _LEFT_OUT.search(key)
    }


def summary(name: str, model: ModelGeometry) -> str:
    kinds: dict[str, int] = {}
    for cache in model.caches:
        kinds[cache.spec] = kinds.get(cache.spec, 0) + 1
    stored = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return f"{name.rpartition('/')[2]}: {model.num_layers} layers; caches: {stored}."


def _values(model: ModelGeometry, published: str, source: str) -> Iterator[str]:
    yield "dtype: auto                    # auto (the file's) | float16 | bfloat16 | float32"
    yield f"file_dtype: {model.file_dtype}"
    yield f"context_length: {model.context_length}"
    for key in _SIZES:
        if value := getattr(model, key):
            yield f"{key}: {value}"
    if published:
        yield f'published: "{published}"'.ljust(31) + "# parameters, as its publisher counts them"
    yield f"source: {json.dumps(source)}"
    if notes := [note for note in model.notes if note.startswith("weights are those")]:
        yield f"notes: {json.dumps(notes)}"


_SIZES = (
    "hidden_size", "intermediate_size", "vocab_size", "experts_per_token", "expert_size",
    "num_attention_heads", "encoder_tokens", "ssm_dtype", "conv_dtype", "state_chunk_size",
    "parameter_count", "weight_bytes", "quantized_with",
)  # fmt: skip


# --- layers --------------------------------------------------------------------------------------
def _layers(model: ModelGeometry) -> Iterator[str]:
    by_layer: dict[int, list[CacheGeometry]] = {}
    for cache in model.caches:
        by_layer.setdefault(cache.layer, []).append(cache)
    prefix = _prefix(model.caches)
    stored = [_stored(by_layer.get(i, []), prefix, i) for i in range(model.num_layers)]
    names: dict[str, str] = {}
    for caches in stored:
        key = json.dumps(caches)
        if key not in names:
            names[key] = _fresh(_kind_name(caches), list(names.values()))
    pattern = [names[json.dumps(caches)] for caches in stored]
    yield "layers:"
    yield f"  prefix: {prefix}"
    yield f"  count: {model.num_layers}"
    yield f"  pattern: {_flow(_shortened(pattern))}"
    yield "  kinds:"
    for key, kind in names.items():
        caches = json.loads(key)
        yield f"    {kind}:{'' if caches else ' {}'}"
        for cache, values in caches.items():
            yield f"      {cache}: {_flow(values)}"


def _prefix(caches: Sequence[CacheGeometry]) -> str:
    prefixes = {cache.name.partition(f".{cache.layer}.")[0] for cache in caches}
    if len(prefixes) != 1:
        raise ValueError(f"caches under one prefix, not {sorted(prefixes)}")
    return prefixes.pop()


def _stored(caches: Sequence[CacheGeometry], prefix: str, layer: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for cache in caches:
        rest = cache.name.removeprefix(f"{prefix}.{layer}.")
        if cache.shares_with is None:
            found[rest] = {"spec": cache.spec, **cache.fields}
        else:
            found[rest] = {"shares_with": int(cache.shares_with.split(".")[prefix.count(".") + 1])}
    return found


_KINDS = {"full": "attention", "mla": "latent", "mamba": "state", "shared": "shared"}


def _kind_name(caches: Mapping[str, Any]) -> str:
    kinds = [values.get("spec", "shared") for values in caches.values()]
    return "_and_".join(dict.fromkeys(_KINDS.get(kind, kind) for kind in kinds)) or "without"


def _fresh(name: str, taken: Sequence[str]) -> str:
    number = 2
    fresh = name
    while fresh in taken:
        fresh, number = f"{name}_{number}", number + 1
    return fresh


def _shortened(pattern: Sequence[str]) -> list[str]:
    """The shortest round that repeats to the pattern, runs of it written "kind x times"."""
    round_ = next(
        pattern[:n]
        for n in range(1, len(pattern) + 1)
        if all(kind == pattern[i % n] for i, kind in enumerate(pattern))
    )
    runs: list[tuple[str, int]] = []
    for kind in round_:
        times = runs.pop()[1] if runs and runs[-1][0] == kind else 0
        runs.append((kind, times + 1))
    return [kind if times == 1 else f"{kind} x {times}" for kind, times in runs]


def _flow(value: Any) -> str:
    """One line of YAML: JSON is YAML, and bare where it can be."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
