"""What a model keeps, told as an engine stores it: a config.json -> ModelGeometry.

The generic route for whatever transformers can build: no memory, no weights, a few seconds. An
engine stores latent rows in one piece, one column less of each convolution, no window that spans
the context, and K/V heads before they are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.models._quantization import quantized_bytes
from kvpipe.models._values import BY_HAND
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.families import families
from kvpipe.models.families.base import Config, Weight
from kvpipe.models.families.deepseek import indexer_cache
from kvpipe.models.families.gpt import falcon_kv_heads
from kvpipe.models.probe.needs import KVNeed, LayerNeeds
from kvpipe.models.probe.releases import require_transformers
from kvpipe.specs.base import DTYPE_BYTES

_LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers",
    "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
# Families that repeat their K/V heads before they cache them: the heads an engine stores.
_REPEATED_HEADS: dict[str, Callable[[Config], int]] = {"falcon": falcon_kv_heads}
# Latent attention that vLLM expands before it caches (model_executor/models/minicpm3.py: plain
# Attention with num_kv_heads = num_heads and one head size for keys and padded values).
_EXPANDED = ("minicpm3",)


@dataclass(frozen=True, kw_only=True)
class Probed:
    """needs: of each layer; none of an encoder, of which `encoder_layers` says how many there are.
    config: transformers' own, of the part that generates. weights: every parameter of the model,
    text_parameters: of them, those of that part. not_built: why the rest of the model was not."""

    needs: tuple[LayerNeeds, ...]
    encoder_layers: int
    config: Any
    weights: tuple[Weight, ...]
    text_parameters: int
    not_built: str = ""

    @property
    def parameter_count(self) -> int:
        return sum(weight.num_parameters for weight in self.weights)

    @property
    def tower_parameters(self) -> int:
        return self.parameter_count - self.text_parameters


def probe(file: ConfigFile) -> ModelGeometry:
    """The geometry of any config.json that transformers can build; ConfigError where it cannot."""
    probed = probed_model(file)
    read = _reader(probed.config, Config(file.text))
    context = read("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")
    has_cross = any(need.cross for need in probed.needs)
    geometry = ModelGeometry(
        name=file.name,
        file_dtype=file.dtype or "float32",
        context_length=context or 2**20,
        num_layers=len(probed.needs) or probed.encoder_layers,
        caches=(),
        hidden_size=read("hidden_size", "d_model", "n_embd"),
        intermediate_size=read("intermediate_size", "ffn_dim", "d_ff"),
        vocab_size=read("vocab_size"),
        num_attention_heads=read("num_attention_heads"),
        parameter_count=probed.parameter_count,
        tower_parameters=0 if probed.not_built else probed.tower_parameters,
        weight_bytes=_weight_bytes(file, probed.weights),
        encoder_tokens=(read("max_source_positions") or context or 512) if has_cross else 0,
        ssm_dtype=file.ssm_dtype or _ssm_dtype(file, probed.config),
        source="probe of transformers",
        notes=tuple(_notes(probed)),
    )
    try:
        caches = tuple(_Engine(file, probed, geometry.context_length).caches())
    except Exception as error:  # its config has not the keys that others have
        raise _cannot(file, error) from error
    return replace(geometry, caches=caches)


def _reader(built: Any, written: Config) -> Callable[..., int]:
    """The first whole number under any of some names, in the built config or in the file."""

    def read(*names: str) -> int:
        values = [_attribute(built, name) or written.get(name) for name in names]
        return next((value for value in values if isinstance(value, int)), 0)

    return read


def _attribute(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a size that differs from layer to layer, which transformers refuses to say
        return None


def _weight_bytes(file: ConfigFile, weights: Iterable[Weight]) -> int | None:
    """Only a quantised checkpoint's: others follow from the count and the served dtype."""
    if file.quantization is None:
        return None
    return quantized_bytes(weights, file.quantization, DTYPE_BYTES[file.dtype or "float32"])


def _ssm_dtype(file: ConfigFile, config: Any) -> str | None:
    """Where the file is silent: what its family fixes, else its class's default."""
    family = families().get(file.model_type)
    if family is not None:
        return family.ssm_dtype
    default = getattr(config, "mamba_ssm_dtype", None)
    return default if default in DTYPE_BYTES else None


def _notes(probed: Probed) -> list[str]:
    if probed.not_built:
        return [f"weights are those of the text part; other towers: {probed.not_built}"]
    if not probed.tower_parameters:
        return []
    return [f"{probed.tower_parameters:,} of the parameters are of towers beside the text part"]


# --- asking transformers -----------------------------------------------------------------------
def probed_model(file: ConfigFile) -> Probed:
    """What transformers keeps; ConfigError where it is missing, or cannot run the model."""
    for key in _LAYER_KEYS:  # building takes as long as there are layers
        for part in (file.raw, file.text):
            Config(part).layers(key, 1)
    try:
        from kvpipe.models.probe import build
    except ImportError as error:
        raise ConfigError(
            Problem(
                "model.probe",
                "transformers and torch, to build the model with",
                f"no {error.name}",
                "pip install 'kvpipe[hf]', or model.probe=false",
            )
        ) from error
    require_transformers("model.probe")
    try:
        return _probed(build.config_of_parts(file.raw, file.text, file.model_type))
    except ConfigError as error:
        raise ConfigError([_advised(file, problem) for problem in error.problems]) from error
    except Exception as error:  # a modeling file may fail in any way on the meta device
        raise _cannot(file, error) from error


def _probed(config: Any) -> Probed:
    from kvpipe.models.probe import build, read

    text = build.text_config(config)
    if build.is_encoder(config):
        weights = build.weights_of(build.encoder_skeleton(config))
        count = sum(weight.num_parameters for weight in weights)
        return Probed(
            needs=(),
            encoder_layers=text.num_hidden_layers,
            config=text,
            weights=weights,
            text_parameters=count,
        )
    model, not_built = build.whole_or_text(config)
    weights = build.weights_of(model)
    return Probed(
        needs=read.model_needs(model),
        encoder_layers=0,
        config=text,
        weights=weights,
        text_parameters=build.text_parameters(model, read.decoder_of(model)),
        not_built=not_built,
    )


def _advised(file: ConfigFile, problem: Problem) -> Problem:
    key = "model.probe" if problem.key.startswith("model") else f"model.probe ({problem.key})"
    return replace(problem, key=key, knob=BY_HAND)


def _cannot(file: ConfigFile, error: Exception) -> ConfigError:
    told = " ".join(str(error).split())[:200]
    return ConfigError(
        Problem(
            "model.probe",
            f"a model of type '{file.model_type}' that transformers can build and run",
            f"{type(error).__name__}: {told}",
            BY_HAND,
        )
    )


# --- what an engine stores of it ---------------------------------------------------------------
class _Engine:
    """One probed model. prefix: of layer names."""

    def __init__(self, file: ConfigFile, probed: Probed, context_length: int) -> None:
        self.model_type, self.probed, self.config = file.model_type, probed, probed.config
        self.context_length = context_length
        has_cross = any(need.cross for need in probed.needs)
        self.prefix = "model.decoder.layers" if has_cross else "model.layers"
        heads = _REPEATED_HEADS.get(self.model_type)
        self.own_heads = heads(families()[self.model_type].config(file.text)) if heads else None

    def caches(self) -> Iterable[CacheGeometry]:
        for index in range(self.probed.encoder_layers):
            yield self._encoder_only(index)
        for need in self.probed.needs:
            yield from self._of_layer(need)

    def _of_layer(self, need: LayerNeeds) -> Iterable[CacheGeometry]:
        index, target = need.index, need.shares_with
        source = need if target is None else self.probed.needs[target]
        if source.attention:
            attention = self._attention(index, source.attention)
            yield attention if target is None else _sharing(attention, index, target)
        if need.indexer:
            yield indexer_cache(index, need.indexer)
        if need.states or need.in_modules:
            yield self._state(need)
        if need.cross:
            yield self._cross(index, need.cross)

    def _attention(self, index: int, kv: KVNeed) -> CacheGeometry:
        spec, fields = self._kind(kv)
        name = f"{self.prefix}.{index}.self_attn.attn"
        return CacheGeometry(name=name, layer=index, spec=spec, fields=fields)

    def _kind(self, kv: KVNeed) -> tuple[str, dict[str, Any]]:
        if kv.latent and self.model_type not in _EXPANDED:
            return "mla", {"head_size": kv.head_size + kv.head_size_v}
        if kv.latent:
            size = self.config.qk_nope_head_dim + self.config.qk_rope_head_dim
            return "full", {"num_kv_heads": self.config.num_attention_heads, "head_size": size}
        fields = {"num_kv_heads": self.own_heads or kv.num_heads, "head_size": kv.head_size}
        if kv.head_size_v != kv.head_size:
            fields["head_size_v"] = kv.head_size_v
        if kv.window and kv.window < self.context_length:
            if kv.chunked:
                return "chunked", {**fields, "attention_chunk_size": kv.window}
            return "sliding", {**fields, "sliding_window": kv.window}
        return "full", fields

    def _state(self, need: LayerNeeds) -> CacheGeometry:
        """One column less than the kernel: an engine does not keep the token that leaves."""
        states = [
            {
                "name": state.name,
                "shape": [*state.shape[:-1], state.shape[-1] - 1]
                if state.name.startswith("conv")
                else list(state.shape),
            }
            for state in need.states
        ]
        states += [{"name": s.name, "shape": list(s.shape)} for s in need.in_modules]
        fields: dict[str, Any] = {"mamba_type": "state", "states": states}
        for key in ("mamba_n_groups", "mamba_ngroups", "n_groups"):
            recurrent = any(not state.name.startswith("conv") for state in need.states)
            if getattr(self.config, key, None) and recurrent:
                fields["num_groups"] = getattr(self.config, key)
        name = f"{self.prefix}.{need.index}.mixer"
        return CacheGeometry(name=name, layer=need.index, spec="mamba", fields=fields)

    def _cross(self, index: int, kv: KVNeed) -> CacheGeometry:
        fields = {"num_kv_heads": kv.num_heads, "head_size": kv.head_size}
        name = f"{self.prefix}.{index}.encoder_attn.attn"
        return CacheGeometry(name=name, layer=index, spec="cross", fields=fields)

    def _encoder_only(self, index: int) -> CacheGeometry:
        heads = self.config.num_attention_heads
        fields = {"num_kv_heads": heads, "head_size": self.config.hidden_size // heads}
        name = f"encoder.layer.{index}.attention.self"
        return CacheGeometry(name=name, layer=index, spec="encoder_only", fields=fields)


def _sharing(cache: CacheGeometry, index: int, target: int) -> CacheGeometry:
    return replace(cache, shares_with=cache.name.replace(f".{index}.", f".{target}.", 1))
