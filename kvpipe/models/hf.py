"""A model section with a config.json -> ModelGeometry, without torch or transformers.

The file is a folder's (`path`), or a repository's (`repo`, org/name[@revision]). What it leaves out
is supplied by its family; what no family knows is an error, unless `probe` asks transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.models._config_file import ConfigFile, open_config, parse_config
from kvpipe.models._draft import with_draft
from kvpipe.models._hub import fetch_config_text, fetch_tensor_table
from kvpipe.models._parameters import count_parameters, rank_parameters, widest
from kvpipe.models._quantization import quantized_bytes
from kvpipe.models._safetensors import StoredTensors, read_tensor_table, summarize
from kvpipe.models.base import ModelGeometry
from kvpipe.models.families import families
from kvpipe.models.families.base import PROBE_HINT, Config, Family, Weight
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
        file, tensors = self._open()
        if self.options.probe:
            from kvpipe.models._probe import probe

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
            file = parse_config(fetch_config_text(repo), f"{repo}/config.json", repo, None)
            table = fetch_tensor_table(repo)
        return file, summarize(table) if table else None

    def _draft(self, place: str) -> ModelGeometry:
        """The draft model, from a path if there is one of that name, else from a repository."""
        from pathlib import Path

        here = Path(place).expanduser().exists() or place.startswith((".", "/", "~"))
        where = {"path": place, "repo": None} if here else {"path": None, "repo": place}
        options = self.options.model_copy(update={**where, "draft": None})
        return HuggingFace(options).read()


def family_of(file: ConfigFile) -> Family:
    """ConfigError naming the model_type where no family reads it."""
    table, name = families(), file.model_type
    if name not in table:
        raise ConfigError(
            Problem(
                "config.json: model_type",
                "a model_type that kvpipe reads",
                f"'{name}'" if file.text.get("model_type") else "none",
                f"{PROBE_HINT}; {did_you_mean(name, table)}",
            )
        )
    return table[name]


def read_geometry(file: ConfigFile) -> ModelGeometry:
    """The geometry of a file of a known family."""
    family = family_of(file)
    config = family.config(file.text)
    weights = family.weights(config)
    width = config.get("intermediate_size")
    return ModelGeometry(
        name=file.name,
        file_dtype=file.dtype or "float32",
        context_length=config.context_length,
        num_layers=family.num_layers(config),
        caches=tuple(family.caches(config)),
        hidden_size=config.hidden_size,
        intermediate_size=width if isinstance(width, int) else widest(weights),
        vocab_size=config.count("vocab_size"),
        num_attention_heads=config.get("num_attention_heads") or 0,
        parameter_count=count_parameters(weights),
        weight_bytes=_weight_bytes(file, weights),
        encoder_tokens=family.encoder_tokens(config),
        experts_per_token=_experts_per_token(config),
        expert_size=_expert_size(config),
        ssm_dtype=_ssm_dtype(config, family),
        state_chunk_size=config.get("mamba_chunk_size") or config.get("chunk_size"),
        source="config.json",
        notes=tuple(_notes(file)),
        rank_parameters=lambda tp, stage, first, last: rank_parameters(
            weights, tp=tp, stage_layers=stage, first=first, last=last
        ),
    )


def _experts_per_token(config: Config) -> int:
    found = config.get("num_experts_per_tok") or config.get("num_experts_per_token")
    return found if isinstance(found, int) else 0


def _expert_size(config: Config) -> int:
    """The intermediate size of one expert; dense models have none."""
    if not _experts_per_token(config):
        return 0
    found = config.get("moe_intermediate_size") or config.get("intermediate_size")
    return found if isinstance(found, int) else 0


def _weight_bytes(file: ConfigFile, weights: list[Weight]) -> int | None:
    """Only a quantised checkpoint's: others follow from the count and the served dtype."""
    if file.quantization is None:
        return None
    return quantized_bytes(weights, file.quantization, DTYPE_BYTES[file.dtype or "float32"])


def _ssm_dtype(config: Config, family: Family) -> str | None:
    written = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    return str(written).removeprefix("torch.") if written else family.ssm_dtype


def _notes(file: ConfigFile) -> list[str]:
    notes = []
    if file.dtype is None:
        notes.append("config.json names no dtype: float32, as its class defaults")
    if file.is_nested:
        notes.append("weights are those of the text part; other towers are not counted")
    if file.quantization is not None:
        notes.append(f"checkpoint quantised with {file.quantization.get('quant_method', '?')}")
    return notes


def with_stored_weights(
    geometry: ModelGeometry, file: ConfigFile, stored: StoredTensors | None
) -> ModelGeometry:
    """What safetensors headers say wins over what config.json implies: all towers are in them."""
    if stored is None:
        return geometry
    notes = tuple(note for note in geometry.notes if not note.startswith("weights are those"))
    changes: dict[str, Any] = {"source": f"{geometry.source} and safetensors headers"}
    if stored.is_plain and file.quantization is None:
        changes["parameter_count"] = stored.num_elements
        if stored.num_elements != geometry.parameter_count:
            changes["rank_parameters"] = None  # it knows other weights than the file has
    else:
        changes["weight_bytes"] = stored.num_bytes
    return replace(geometry, notes=notes, **changes)


PLUGIN = HuggingFace
