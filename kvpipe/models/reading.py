"""A config.json -> ModelGeometry: the file's values, and what its class supplies for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kvpipe.errors import ConfigError, Problem, did_you_mean, printable
from kvpipe.models._quantization import quantized_bytes
from kvpipe.models._safetensors import TensorTable
from kvpipe.models._values import BY_HAND, Values, is_whole
from kvpipe.models.base import CacheGeometry, ModelGeometry, RankParameters
from kvpipe.models.config_file import ConfigFile, config_file
from kvpipe.models.families import families
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.by_keys import LABEL, family_by_keys, generates, unknown_keys
from kvpipe.models.families.classes import class_facts, facts_of, has_parts
from kvpipe.models.families.encoders import as_decoder
from kvpipe.models.families.refused import REASONS
from kvpipe.models.families.ties import KEY, tie_as_built
from kvpipe.models.kv_dtype import declared_kv_dtype, has_kv_scheme, kv_scale_bytes
from kvpipe.models.parameters import count_parameters, rank_parameters, widest
from kvpipe.models.towers.count import as_weight, tower_parameters
from kvpipe.specs.base import DTYPE_BYTES


def family_of(file: ConfigFile, tensors: TensorTable | None = None) -> Family:
    """The row of the file's type, or one by standard keys; ConfigError where neither reads it."""
    table, name = families(), file.model_type
    if file.raw.get("model_type") in _REFUSED:
        raise _unknown_type(file)
    if file.raw.get("model_type") in _JOINED and not file.is_nested:
        raise unreadable("decoder", "the part that generates", "nothing")
    if name in table:
        return table[name]
    if name in class_facts() or not file.text.get(
        "model_type"
    ):  # its class does more than keys say
        raise _unknown_type(file)
    try:
        return family_by_keys(file.raw, file.text, tensors)
    except ConfigError as error:
        raise _unknown_type(file, error.problems) from error


def _with_keys_of_whole(file: ConfigFile) -> Mapping[str, Any]:
    """Of a file of parts, the whole says whether the head is the embedding, where it says so, and
    what its decoder may see of images; its class may say what the text part leaves out."""
    given: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for name in _types_around(file):
        given |= _given_by_class(name)
    for whole in file.wholes:
        said |= {key: whole[key] for key in _OF_WHOLE if key in whole}
    return {**given, **file.text, **said, **_tied(file, said.get(KEY), given.get(KEY))}


def _tied(file: ConfigFile, said: object, default: object) -> dict[str, Any]:
    """Whether the head is the embedding, where the class of the whole does not simply obey it."""
    inside = file.text.get(KEY)
    text = facts_of(file.model_type).defaults.get(KEY) if inside is None else inside
    if not file.is_nested:
        said, text = inside, inside if inside is not None else text
    tied = tie_as_built(str(file.raw.get("model_type")), said, text, default)
    checked = all(value is None or isinstance(value, bool) for value in (said, inside))
    return {} if tied is None or not checked else {KEY: tied}


def _types_around(file: ConfigFile) -> Iterator[str]:
    """Of the wholes, the outermost first; a flat file has those of its class."""
    wholes = file.wholes if file.is_nested else (file.raw,)
    names = [str(w["model_type"]) for w in wholes if has_parts(w.get("model_type"))]
    yield from names
    inner = facts_of(names[-1]).text if names else None
    while inner and inner[1] != file.model_type and has_parts(inner[1]):
        yield inner[1]
        inner = facts_of(inner[1]).text


def _given_by_class(model_type: str) -> Mapping[str, Any]:
    """What the class of a whole supplies to its text part, and whether it ties the head: its own
    answer, not that of the part's class."""
    facts = facts_of(model_type)
    tied = facts.defaults.get("tie_word_embeddings")
    return {**facts.text_defaults, **({} if tied is None else {"tie_word_embeddings": tied})}


_REFUSED = tuple(REASONS)
# Two models that were put together: without the second, what is left does not generate.
_JOINED = ("encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder")
_OF_WHOLE = ("tie_word_embeddings", "vision_config")
_NOT_OF_A_MODEL = (
    "is this the config.json that lies beside a model's weights? (not a tokenizer or adapter file)"
)


def _unknown_type(file: ConfigFile, by_keys: Sequence[Problem] = ()) -> ConfigError:
    """by_keys: why a file without a family is not read by its standard keys, either."""
    expected = "a model_type that kvpipe reads"
    whole = str(file.raw.get("model_type"))
    if not file.text.get("model_type") and whole == "None":
        return unreadable("model_type", expected, "none", _NOT_OF_A_MODEL)
    got = f"'{file.model_type}'" if file.text.get("model_type") else "none"
    if reason := REASONS.get(file.model_type) or REASONS.get(whole):
        got = got if file.model_type in REASONS else f"'{whole}'"
        return unreadable("model_type", expected, f"{got}: {reason}", BY_HAND)
    newer = "or model.probe=true where a newer transformers has the type"
    near = did_you_mean(file.model_type, families())
    knob = f"{near}; else {BY_HAND}, {newer}"
    if by_keys:
        hint = near.partition("valid: ")[0]
        knob = f"{hint}{BY_HAND}, {newer}; its keys alone do not say it: {_in_brief(by_keys)}"
    return unreadable("model_type", expected, got, knob)


def _in_brief(problems: Sequence[Problem]) -> str:
    """The first whole, of the others the keys."""
    first, *others = problems
    keys = [problem.key.removeprefix("config.json: ") for problem in problems]
    words = f"{keys[0]} (expected {first.expected}, got {first.got})"
    return words + (f", and {', '.join(keys[1:])}" if others else "")


def read_geometry(file: ConfigFile, tensors: TensorTable | None = None) -> ModelGeometry:
    """The geometry of a file of a known family, or of one whose keys say all. tensors: headers of
    its weights, for what only they can prove."""
    family = family_of(file, tensors)
    by_keys = file.model_type not in families()
    config = family.config(_with_keys_of_whole(file))
    _check_values(config, family)
    caches = tuple(family.caches(config))
    _check_generates(file, caches)
    weights = family.weights(config) if family.weights else None
    towers = tower_parameters(file, config) if weights else None
    if weights and towers:
        weights = [*weights, as_weight(towers)]
    weight_bytes = _weight_bytes(file, config, weights, caches)
    return ModelGeometry(
        name=file.name,
        file_dtype=file.dtype or "float32",
        context_length=family.context_length(config),
        context_since=_context_since(config),
        num_layers=family.num_layers(config),
        caches=caches,
        architectures=file.architectures,
        hidden_size=config.hidden_size,
        intermediate_size=_intermediate_size(config) or widest(weights or ()),
        vocab_size=config.number("vocab_size"),
        num_attention_heads=config.number("num_attention_heads"),
        parameter_count=None if weights is None else count_parameters(weights),
        tower_parameters=towers or 0,
        weight_bytes=weight_bytes,
        quantized_with=file.quantization.word("quant_method") if file.quantization else "",
        encoder_tokens=family.encoder_tokens(config),
        experts_per_token=_experts_per_token(config),
        expert_size=_expert_size(config),
        ssm_dtype=file.ssm_dtype or family.ssm_dtype,
        state_chunk_size=config.number("mamba_chunk_size") or config.number("chunk_size") or None,
        kv_dtype=declared_kv_dtype(file.quantization) or family.kv_dtype,
        has_kv_scheme=has_kv_scheme(file.quantization),
        source=LABEL if by_keys else "config.json",
        notes=tuple(
            [
                *_notes(file, family, weight_bytes, towers),
                *_supplied(config, family),
                *_yarn(config),
                *(_unknown_keys(file) if by_keys else []),
            ]
        ),
        rank_parameters=None if weights is None else _by_rank(weights),
        weights=None if weights is None else (lambda: weights),
    )


_NUMBERS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "sliding_window", "kv_lora_rank",
)  # fmt: skip


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def _check_values(config: Config, family: Family) -> None:
    """Every mistake of a file at once, not the first: a question that fails does not end it."""
    questions: list[Callable[[], object]] = [
        partial(family.caches, config),
        *([partial(family.weights, config)] if family.weights else []),
        partial(family.context_length, config),
        *(partial(config.number, key) for key in _NUMBERS),
        partial(_check_groups, config),
        partial(_check_experts, config),
    ]
    problems: dict[str, Problem] = {}
    for question in questions:
        try:
            question()
        except ConfigError as error:
            problems.update({p.key: p for p in error.problems if p.key not in problems})
    if problems:
        raise ConfigError(list(problems.values()))


def _check_groups(config: Config) -> None:
    """Query heads share K/V heads evenly."""
    heads, kv = (config.number(f"num_{name}_heads") for name in ("attention", "key_value"))
    if heads and kv and not config.number("kv_lora_rank") and heads % kv:
        raise config.wrong("num_key_value_heads", f"a number that divides {heads} heads", kv)


def _check_experts(config: Config) -> None:
    """A token goes to experts that there are."""
    counts = [count for key in _EXPERTS if is_whole(count := config.get(key))]  # or lists, by layer
    number, taken = max(counts, default=0), _experts_per_token(config)
    if number and taken > number:
        raise config.wrong("num_experts_per_tok", f"at most the {number} experts there are", taken)


def _check_generates(file: ConfigFile, caches: tuple[CacheGeometry, ...]) -> None:
    """Encoder-only is said of encoders alone, never of an architecture that generates."""
    if generates(file.raw) and all(cache.spec == "encoder_only" for cache in caches):
        names = ", ".join(map(str, file.raw.get("architectures") or ()))
        expected = f"a {file.model_type} that encodes, for which alone it is read"
        raise unreadable("architectures", expected, printable(names), as_decoder(file.model_type))


# vLLM, config/model.py: yarn stretches what it is told in 0.17.0 and 0.28.0; from 0.30.0 on
# max_position_embeddings is the stretched length, as transformers takes it (0.29 was not read).
_YARN_IS_COUNTED = "0.30.0"


def _context_since(config: Config) -> dict[str, int]:
    if not config.counts_before_yarn:
        return {}
    return {_YARN_IS_COUNTED: config.count("max_position_embeddings")}


def _yarn(config: Config) -> list[str]:
    if not config.counts_before_yarn:
        return []
    length, stretched = config.count("max_position_embeddings"), config.context_length
    return [
        f"max_position_embeddings is {length:,}, which yarn stretches to {stretched:,}: vLLM from "
        f"{_YARN_IS_COUNTED} on serves no more than the file says"
    ]


def _unknown_keys(file: ConfigFile) -> list[str]:
    """How a type without a family was read, and what of its file was not."""
    keys = unknown_keys(file.text)
    others = f"; keys not read: {', '.join(keys)}" if keys else ""
    return [f"'{file.model_type}' has no family: read by standard keys{others}"]


def _by_rank(weights: list[Weight]) -> RankParameters:
    return lambda ranks, stage, first, last: rank_parameters(
        weights, ranks=ranks, stage_layers=stage, first=first, last=last
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
    own = config.get("moe_intermediate_size")
    if isinstance(own, list):  # of text and of images
        return max(config.numbers("moe_intermediate_size") or [0])
    return config.number("moe_intermediate_size") or _intermediate_size(config)


def _weight_bytes(
    file: ConfigFile,
    config: Config,
    weights: list[Weight] | None,
    caches: Iterable[CacheGeometry],
) -> int | None:
    """Only a quantised checkpoint's: others follow from the count and the served dtype. Experts may
    have a dtype of their own, which the file says beside the rest."""
    if file.quantization is None or weights is None:
        return None
    told = {"expert_dtype": config.get("expert_dtype"), **file.quantization.raw}
    quantization = Values(told, file.quantization.where)
    num_bytes = quantized_bytes(weights, quantization, DTYPE_BYTES[file.dtype or "float32"])
    return None if num_bytes is None else num_bytes + kv_scale_bytes(quantization, caches)


_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
          "num_hidden_layers", "vocab_size")  # fmt: skip


def _supplied(config: Config, family: Family) -> Iterator[str]:
    """A file that was cut short is read as its class reads it, as one that relies on it is. Layers
    that the file lists are not its class's."""
    keys = config.supplied(_SIZES)
    if config.get("num_hidden_layers") != family.num_layers(config):
        keys = [key for key in keys if key != "num_hidden_layers"]
    if keys:
        said = ", ".join(f"{config.written_name(key)}={config.get(key)}" for key in keys)
        yield f"config.json leaves out sizes, its class supplies {said}"


def _may_have_towers(file: ConfigFile, family: Family) -> bool:
    is_described = bool(file.raw.get("vision_config"))
    has_class = has_parts(file.raw.get("model_type"))
    return family.has_towers or file.is_nested or has_class or is_described


def _notes(
    file: ConfigFile, family: Family, weight_bytes: int | None, towers: int | None
) -> list[str]:
    notes = []
    if file.dtype is None:
        notes.append("config.json names no dtype: float32, as its class defaults")
    if towers is not None:
        notes.append(f"{towers:,} of the parameters are of towers beside the text part")
    elif _may_have_towers(file, family):
        notes.append("weights are those of the text part; other towers are not counted")
    if file.quantization is not None:
        method = printable(file.quantization.word("quant_method", "a method without a name"))
        notes.append(f"checkpoint quantised with {method}")
        if weight_bytes is None:
            notes.append(f"how {method} stores weights is not known here: counted unquantised")
    return notes


def read_weights_of(config: Mapping[str, Any], name: str) -> list[Weight]:
    """Every tensor of the model that such a config.json describes; none where only headers say."""
    file = config_file(config, name)
    family = family_of(file)
    return family.weights(family.config(_with_keys_of_whole(file))) if family.weights else []
