"""A model section with a config.json -> ModelGeometry, without torch or transformers.

The file is a folder's (`path`), or a repository's (`repo`, org/name[@revision]). What it leaves out
is supplied by its family; what no family knows is an error, unless `probe` asks transformers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem, did_you_mean, printable
from kvpipe.models._draft import with_draft
from kvpipe.models._quantization import quantized_bytes
from kvpipe.models._safetensors import StoredTensors, read_tensor_table, summarize
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import (
    ConfigFile,
    is_path,
    open_config,
    parse_config,
)
from kvpipe.models.families import families
from kvpipe.models.families.base import PROBE_HINT, Config, Family, Weight, unreadable
from kvpipe.models.hub import fetch_config, fetch_tensor_table
from kvpipe.models.parameters import count_parameters, rank_parameters, widest
from kvpipe.specs.base import DTYPE_BYTES


class HuggingFace:
    """Reader of a config.json."""

    class Options(BaseModel):
        """path or repo, not both. draft: null, "mtp", or the path or repo of a draft model."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        reader: str
        dtype: Literal["auto", "float16", "bfloat16", "float32"]
        path: str | None
        repo: str | None
        probe: bool
        draft: str | None

    def __init__(self, options: HuggingFace.Options) -> None:
        self.options = options

    def read(self) -> ModelGeometry:
        """The geometry; ConfigError where the file is missing, wrong, or of an unknown family."""
        try:
            return self._read()
        except ConfigError as error:
            raise ConfigError([self._named(problem) for problem in error.problems]) from error

    def _named(self, problem: Problem) -> Problem:
        """What is wrong inside a file is a problem of the key that names the file."""
        if problem.key.startswith("model."):
            return problem
        key = "model.repo" if self.options.path is None else "model.path"
        return replace(problem, key=f"{key} ({problem.key})")

    def _read(self) -> ModelGeometry:
        file, tensors = self._open()
        if self.options.probe:
            from kvpipe.models.probe.as_engine import probe

            geometry = probe(file)
        else:
            geometry = read_geometry(file)
        geometry = with_stored_weights(geometry, file, tensors)
        if self.options.draft is None:
            return geometry
        return with_draft(geometry, file, self.options.draft, self._draft)

    def _open(self) -> tuple[ConfigFile, StoredTensors | None]:
        path, repo = self.options.path, self.options.repo
        if (path is None) == (repo is None):
            got = "neither" if path is None else "both"
            knob = "for example model.path=./Llama-3.1-8B or model.repo=org/name"
            raise ConfigError(Problem("model.path", "either model.path or model.repo", got, knob))
        if path is not None:
            file = open_config(path)
            table = read_tensor_table(file.folder) if file.folder else None
        else:
            assert repo is not None
            file = parse_config(fetch_config(repo), f"{repo}/config.json", repo, None)
            table = fetch_tensor_table(repo)
        return file, summarize(table) if table else None

    def _draft(self, place: str) -> ModelGeometry:
        """The draft model, from a path if there is one of that name, else from a repository."""
        where = {"path": place, "repo": None} if is_path(place) else {"path": None, "repo": place}
        options = self.options.model_copy(update={**where, "draft": None})
        try:
            return HuggingFace(options).read()
        except ConfigError as error:
            raise ConfigError([_of_draft(problem) for problem in error.problems]) from error


def _of_draft(problem: Problem) -> Problem:
    key = re.sub(r"^model\.(path|repo)", "model.draft", problem.key)
    return replace(problem, key=key)


def family_of(file: ConfigFile) -> Family:
    """ConfigError naming the model_type where no family reads it."""
    table, name = families(), file.model_type
    if name not in table:
        got = f"'{name}'" if file.text.get("model_type") else "none"
        knob = f"{PROBE_HINT}; {did_you_mean(name, table)}"
        raise unreadable("model_type", "a model_type that kvpipe reads", got, knob)
    return table[name]


def read_geometry(file: ConfigFile) -> ModelGeometry:
    """The geometry of a file of a known family."""
    family = family_of(file)
    config = family.config(file.text)
    weights = family.weights(config)
    weight_bytes = _weight_bytes(file, weights)
    return ModelGeometry(
        name=file.name,
        file_dtype=file.dtype or "float32",
        context_length=family.context_length(config),
        num_layers=family.num_layers(config),
        caches=tuple(family.caches(config)),
        hidden_size=config.hidden_size,
        intermediate_size=_intermediate_size(config) or widest(weights),
        vocab_size=config.count("vocab_size"),
        num_attention_heads=config.number("num_attention_heads"),
        parameter_count=count_parameters(weights),
        weight_bytes=weight_bytes,
        encoder_tokens=family.encoder_tokens(config),
        experts_per_token=_experts_per_token(config),
        expert_size=_expert_size(config),
        ssm_dtype=file.ssm_dtype or family.ssm_dtype,
        state_chunk_size=config.number("mamba_chunk_size") or config.number("chunk_size") or None,
        source="config.json",
        notes=tuple(_notes(file, weight_bytes)),
        rank_parameters=lambda tp, stage, first, last: rank_parameters(
            weights, tp=tp, stage_layers=stage, first=first, last=last
        ),
    )


def _intermediate_size(config: Config) -> int:
    """0 where there is none, or one a layer."""
    listed = isinstance(config.get("intermediate_size"), list)
    return 0 if listed else config.number("intermediate_size")


def _experts_per_token(config: Config) -> int:
    return config.number("num_experts_per_tok") or config.number("num_experts_per_token")


def _expert_size(config: Config) -> int:
    """The intermediate size of one expert; dense models have none."""
    if not _experts_per_token(config):
        return 0
    return config.number("moe_intermediate_size") or _intermediate_size(config)


def _weight_bytes(file: ConfigFile, weights: list[Weight]) -> int | None:
    """Only a quantised checkpoint's: others follow from the count and the served dtype."""
    if file.quantization is None:
        return None
    return quantized_bytes(weights, file.quantization, DTYPE_BYTES[file.dtype or "float32"])


def _notes(file: ConfigFile, weight_bytes: int | None) -> list[str]:
    notes = []
    if file.dtype is None:
        notes.append("config.json names no dtype: float32, as its class defaults")
    if file.is_nested:
        notes.append("weights are those of the text part; other towers are not counted")
    if file.quantization is not None:
        method = printable(file.quantization.word("quant_method", "a method without a name"))
        notes.append(f"checkpoint quantised with {method}")
        if weight_bytes is None:
            notes.append(f"how {method} stores weights is not known here: counted unquantised")
    return notes


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
        if stored.num_elements != geometry.parameter_count:
            changes["rank_parameters"] = None  # it knows other weights than the file has
    else:
        changes["weight_bytes"] = stored.num_bytes
    return replace(geometry, notes=notes, **changes)


PLUGIN = HuggingFace
