"""RunConfig: the whole request, closed and frozen. It holds no defaults: conf/ is complete.

Sections whose shape depends on a plugin (the five stages, backend, layout, model, report) are
checked against that plugin's own `Options`, in the same pass. `read_config` collects every problem
and raises once. Lengths are in tokens, sizes in bytes ("30GiB" is accepted).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.plugins import REGISTRIES, SECTIONS

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}iB": 2 ** (10 * (i + 1)) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}B": 10 ** (3 * (i + 1)) for i, p in enumerate("KMGT")}
# At most so many digits that a float holds the number.
_SIZE = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([KMGT]?i?B|)\s*$")


def parse_size(value: Any) -> Any:
    """Bytes of 1024, "1024", "30GiB" or "24GB"; anything else is left for the schema to refuse."""
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        return value
    return (
        round(float(match[1]) * _UNITS[match[2]])
        if "." in match[1]
        else int(match[1]) * _UNITS[match[2]]
    )


COMMANDS = ("run", "replay", "find")
SHOWN = 120  # characters of a wrong value that a message repeats

Bytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
CacheDtype = Literal[
    "auto", "float16", "bfloat16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"
]
ModelDtype = Literal["auto", "float16", "bfloat16", "float32"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AttentionConfig(Section):
    """spec: native (the model's own) or a registered spec that asks "what if"."""

    spec: str
    options: dict[str, Any]


class CacheConfig(Section):
    block_size: Tokens | Literal["auto"]
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | Literal["auto"]
    kv_cache_memory_bytes: Bytes | None
    cache_dtype: CacheDtype
    sliding_window: Tokens | None
    num_gpu_blocks_override: Annotated[int, Field(ge=0, lt=2**31)] | None
    enable_prefix_caching: bool
    disable_hybrid_kv_cache_manager: bool
    kv_sharing_fast_prefill: bool
    mamba_block_size: Tokens | None
    mamba_page_size_padded: Bytes | None
    mamba_cache_mode: Literal["none", "align", "all"]
    mamba_cache_dtype: ModelDtype
    mamba_ssm_cache_dtype: ModelDtype


class DeviceConfig(Section):
    """One device. memory null: asked of the device, which must then be here.

    source: where each figure is from, in words; a figure without a source is "nominal".
    """

    name: str
    type: Literal["auto", "cpu", "cuda", "rocm"]
    memory_bytes: Bytes | None
    compute_capability: str | None
    bandwidth_bytes_per_s: Bytes | None
    source: str


class ParallelConfig(Section):
    tensor_parallel_size: Ranks
    pipeline_parallel_size: Ranks
    decode_context_parallel_size: Ranks
    data_parallel_size: Ranks
    rank_memory_bytes: list[Bytes] | None  # device memory of each rank; null: the device's, on all
    pipeline_partition: list[Count] | None  # layers a stage; null: as even as possible


class SchedulerConfig(Section):
    max_model_len: Tokens | Literal["auto"]
    max_num_batched_tokens: Tokens | Literal["auto"]
    max_num_seqs: Count | Literal["auto"]
    max_encoder_tokens: Annotated[int, Field(ge=0, lt=2**31)] | Literal["auto"]
    num_speculative_tokens: Annotated[int, Field(ge=0, lt=2**16)]
    max_concurrent_batches: Annotated[int, Field(ge=1, lt=2**10)] | Literal["auto"]


class PlacementConfig(Section):
    """Where layers and blocks lie in the buffers; the lettered ones fix heads and tokens too."""

    name: Literal[
        "auto", "per_tensor", "cross_layer", "lbnhc", "lbhnc", "lhbnc", "blhnc", "blnhc", "bhlnc"
    ]


FIXED_SECTIONS: dict[str, type[Section]] = {
    "attention": AttentionConfig,
    "cache": CacheConfig,
    "device": DeviceConfig,
    "parallel": ParallelConfig,
    "placement": PlacementConfig,
    "scheduler": SchedulerConfig,
}


@dataclass(frozen=True, kw_only=True)
class PluginChoice:
    """A section that names a plugin: its name, the plugin, and its checked options."""

    name: str
    plugin: Any
    options: Any

    def make(self) -> Any:
        """The plugin, set up with its options."""
        return self.plugin(self.options)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The request. `plugins[section]` for every section of `kvpipe.plugins.SECTIONS`."""

    command: str
    attention: AttentionConfig
    cache: CacheConfig
    device: DeviceConfig
    parallel: ParallelConfig
    placement: PlacementConfig
    scheduler: SchedulerConfig
    plugins: Mapping[str, PluginChoice]
    example: Mapping[str, Any]
    trace: Mapping[str, Any]  # checked by `kvpipe replay`, which alone reads it
    want: Mapping[str, Any]  # checked by `kvpipe find`, likewise


def read_config(raw: Mapping[str, Any], fallback: Mapping[str, Any] | None = None) -> RunConfig:
    """The checked request; ConfigError with every problem of shape and type.

    fallback: a valid request of the same choices. With it, sections that are wrong are replaced by
    the fallback's, so that the caller can look for further problems: see `problems_of`.
    """
    config, problems = collect(raw, fallback)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def collect(
    raw: Mapping[str, Any], fallback: Mapping[str, Any] | None = None
) -> tuple[RunConfig | None, list[Problem]]:
    """Every problem of shape and type, and the request with each wrong value replaced by the
    fallback's (None where that does not make it whole)."""
    problems: list[Problem] = []
    known = {*FIXED_SECTIONS, *SECTIONS, "command", "example", "trace", "want"}
    for key in raw.keys() - known:
        problems.append(Problem(key, "a known section", f"'{key}'", did_you_mean(key, known)))
    if raw.get("command") not in COMMANDS:
        problems.append(
            Problem("command", f"one of {', '.join(COMMANDS)}", repr(raw.get("command")))
        )
    for name in ("example", "trace", "want"):
        if not isinstance(raw.get(name), Mapping):
            got = repr(raw.get(name))
            problems.append(Problem(name, "a section of settings", got, f"choose {name}=<option>"))
    fixed: dict[str, Any] = {}
    for name, schema in FIXED_SECTIONS.items():
        value, found = check_section(name, schema, raw.get(name), (fallback or {}).get(name))
        fixed[name] = value
        problems += found
    plugins: dict[str, PluginChoice] = {}
    for name in SECTIONS:
        choice, found = _check_plugin(name, raw.get(name), (fallback or {}).get(name))
        problems += found
        if choice is not None:
            plugins[name] = choice
    whole = None not in fixed.values() and len(plugins) == len(SECTIONS)
    config = (
        RunConfig(
            command=str(raw.get("command")),
            plugins=plugins,
            example=_mapping(raw.get("example")),
            trace=_mapping(raw.get("trace")),
            want=_mapping(raw.get("want")),
            **fixed,
        )
        if whole
        else None
    )
    return config, problems


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def check_section(
    name: str, schema: type[BaseModel], value: Any, fallback: Any = None
) -> tuple[Any, list[Problem]]:
    """A section as its schema, with every problem; None where the fallback's values, put in place
    of the wrong ones, do not make it whole."""
    if not isinstance(value, Mapping):
        return None, [
            Problem(name, "a section of settings", repr(value), f"choose {name}=<option>")
        ]
    try:
        return schema.model_validate(dict(value)), []
    except ValidationError as error:
        problems = list(_problems(name, schema, value, error))
        repaired = _repaired(value, fallback, error)
    try:
        return (schema.model_validate(repaired), problems) if repaired else (None, problems)
    except ValidationError:
        return None, problems


def _check_plugin(
    name: str, value: Any, fallback: Any
) -> tuple[PluginChoice | None, list[Problem]]:
    """A section with a plugin's name under its key, and the plugin's own options."""
    key = SECTIONS[name]
    if not isinstance(value, Mapping) or not isinstance(value.get(key), str):
        got = repr(value.get(key)) if isinstance(value, Mapping) else repr(value)
        return None, [
            Problem(f"{name}.{key}", "the name of a plugin", got, _name_it(name, key, got))
        ]
    try:
        plugin = REGISTRIES[name].get(value[key])
    except ConfigError as error:
        return None, [Problem(f"{name}.{key}", p.expected, p.got, p.knob) for p in error.problems]
    schema = getattr(plugin, "Options", None)
    if schema is None:
        return PluginChoice(name=value[key], plugin=plugin, options=value), []
    options, problems = check_section(name, schema, value, fallback)
    if options is None:
        return None, problems
    return PluginChoice(name=value[key], plugin=plugin, options=options), problems


def _name_it(section: str, key: str, got: str) -> str:
    """`report=json` onto a saved config, which has no groups to choose from: say what to set."""
    named = got.strip("'") in REGISTRIES[section].names()
    return (
        f"a saved config has no groups: set {section}.{key}={got.strip(chr(39))}" if named else ""
    )


def _repaired(
    value: Mapping[str, Any], fallback: Any, error: ValidationError
) -> dict[str, Any] | None:
    """value with each top-level key that is wrong taken from the fallback, unknown keys dropped."""
    if not isinstance(fallback, Mapping):
        return None
    repaired = dict(value)
    for item in error.errors():
        key = item["loc"][0] if item["loc"] else None
        repaired.pop(key, None)  # type: ignore[arg-type]
        if key in fallback:
            repaired[key] = fallback[key]  # type: ignore[index]
    return repaired


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "settings",
    "model_type": "settings",
    "model_attributes_type": "settings",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of 64 bits",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "too_short": "a list with an entry",
    "list_type": "a list",
    "missing": "a value",
}


def _problems(
    section: str, schema: type[BaseModel], value: Mapping[str, Any], error: ValidationError
) -> Iterator[Problem]:
    """One Problem a key; the branches of a union (`16 or auto`) are joined into one line."""
    by_key: dict[tuple[str, ...], list[Any]] = {}
    for item in error.errors():
        by_key.setdefault(_written_path(item, value), []).append(item)
    for path, items in by_key.items():
        key = ".".join((section, *path))
        if items[0]["type"] == "extra_forbidden":
            known = list(schema.model_fields) if len(path) == 1 else []
            knob = did_you_mean(path[-1], known) if known else ""
            yield Problem(key, "a known key", f"'{path[-1]}'", knob)
            continue
        expected = " or ".join(dict.fromkeys(_expected(item) for item in items))
        yield Problem(key, expected, _got(items[0]))


def _written_path(item: Any, value: Any) -> tuple[str, ...]:
    """The part of an error's location that the user wrote; a union adds names of its branches."""
    path: list[str] = []
    for part in item["loc"]:
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if in_list or (isinstance(value, Mapping) and part in value):
            value = value[part]
        elif item["type"] != "missing" or part != item["loc"][-1]:
            continue
        path.append(str(part))
    return tuple(path)


def _got(item: Any) -> str:
    return "nothing" if item["type"] == "missing" else shown(item["input"])


def shown(value: Any) -> str:
    """What somebody wrote, on one line of a message: long values are cut."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def _expected(item: Any) -> str:
    """What a pydantic error wanted, in words with the bound."""
    context = item.get("ctx", {})
    if item["type"] == "literal_error":
        return str(context["expected"]).replace(" or ", ", ")
    bounds = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "more than {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "less than {lt}",
    }
    if item["type"] in bounds:
        return bounds[item["type"]].format(**context)
    return _EXPECTED.get(item["type"], str(item["msg"]).removeprefix("Value error, "))
