"""RunConfig: the whole request, closed and frozen. It holds no defaults: conf/ is complete.

Sections whose shape depends on a plugin (the five stages, backend, layout, model, report) are
checked against that plugin's own `Options`, in the same pass. `collect` finds every problem;
the pipeline raises once. Lengths are in tokens, sizes in bytes ("30GiB" is accepted).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.plugins import REGISTRIES, SECTIONS
from kvpipe.request.schema import NOTHING, check_section
from kvpipe.text.quantities import Bytes, Tokens

T = TypeVar("T")
Count = Annotated[int, Field(ge=1, lt=2**31)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
CacheDtype = Literal[
    "auto",
    "float16",
    "bfloat16",
    "float32",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_ds_mla",
    # of engines that are planned only (specs/packed_types.py)
    "q8_0",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "nvfp4",
    "int8",
    # of vLLM (specs/scaled_rows.py)
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
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
    may_exceed_device: bool
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
    enable_expert_parallel: bool = False  # files of third parties lack it
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


MOST_MISSING = 3  # settings of a section that are told one by one
FIXED_SECTIONS: dict[str, type[Section]] = {
    "attention": AttentionConfig,
    "cache": CacheConfig,
    "device": DeviceConfig,
    "parallel": ParallelConfig,
    "placement": PlacementConfig,
    "scheduler": SchedulerConfig,
}


# (class, contract) found to agree: asking a protocol is slow, and a run asks dozens of times.
_KEPT: set[tuple[type, type]] = set()


@dataclass(frozen=True, kw_only=True)
class PluginChoice:
    """A section that names a plugin: its key, the name, the plugin, and its checked options."""

    key: str  # "grouping.name"
    name: str
    plugin: Any
    options: Any

    def make(self, contract: type[T]) -> T:
        """The plugin, set up with its options; ConfigError where what it makes does not keep the
        contract of its section: a class, or a protocol that is checked at run time."""
        made: T = self.plugin(self.options)
        if (type(made), contract) not in _KEPT:
            if not isinstance(made, contract):
                got = f"'{self.name}', which makes a {type(made).__name__}"
                wanted = f"a plugin that makes a {contract.__name__}"
                raise ConfigError(Problem(self.key, wanted, got))
            _KEPT.add((type(made), contract))
        return made


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The request. `plugins[section]` for every section of `kvpipe.plugins.SECTIONS`."""

    attention: AttentionConfig
    cache: CacheConfig
    device: DeviceConfig
    parallel: ParallelConfig
    placement: PlacementConfig
    scheduler: SchedulerConfig
    plugins: Mapping[str, PluginChoice]
    example: Mapping[str, Any]
    trace: Mapping[str, Any]  # checked by the command that reads it
    want: Mapping[str, Any]  # likewise


def collect(
    raw: Mapping[str, Any], fallback: Mapping[str, Any] | None = None
) -> tuple[RunConfig | None, list[Problem]]:
    """Every problem of shape and type, and the request with each wrong value replaced by the
    fallback's (None where that does not make it whole)."""
    problems: list[Problem] = []
    known = {*FIXED_SECTIONS, *SECTIONS, "example", "trace", "want"}
    for key in raw.keys() - known:
        hint = did_you_mean(key, known)
        problems.append(Problem(key, "a known section", f"'{key}'", hint, of_name=True))
    for name in ("example", "trace", "want"):
        if not isinstance(raw.get(name), Mapping):
            got = repr(raw.get(name))
            problems.append(Problem(name, "a section of settings", got, f"choose {name}=<option>"))
    fixed: dict[str, Any] = {}
    for name, schema in FIXED_SECTIONS.items():
        value, found = check_section(name, schema, raw.get(name), (fallback or {}).get(name))
        fixed[name] = value
        problems += _folded(name, found)
    plugins: dict[str, PluginChoice] = {}
    for name in SECTIONS:
        choice, found = _check_plugin(name, raw.get(name), (fallback or {}).get(name))
        problems += _folded(name, found)
        if choice is not None:
            plugins[name] = choice
    whole = None not in fixed.values() and len(plugins) == len(SECTIONS)
    config = (
        RunConfig(
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


def _folded(section: str, problems: list[Problem]) -> Iterator[Problem]:
    """Settings that an option file left out are one mistake, and told in one line."""
    left_out = [each for each in problems if each.got == NOTHING]
    if len(left_out) <= MOST_MISSING:
        yield from problems
        return
    names = [each.key.removeprefix(f"{section}.") for each in left_out]
    more = len(names) - MOST_MISSING
    yield Problem(
        section,
        "all of its settings",
        f"none for {', '.join(names[:MOST_MISSING])} and {more} more",
        f"choose {section}=<option>, or begin a file of your own with `defaults: [<option>]`",
    )
    yield from (each for each in problems if each.got != NOTHING)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _check_plugin(
    name: str, value: Any, fallback: Any
) -> tuple[PluginChoice | None, list[Problem]]:
    """A section with a plugin's name under its key, and the plugin's own options."""
    key = SECTIONS[name]
    if not isinstance(value, Mapping) or not isinstance(value.get(key), str):
        got = repr(value.get(key)) if isinstance(value, Mapping) else repr(value)
        if value == {}:
            got = "an empty section"
        return None, [
            Problem(f"{name}.{key}", "the name of a plugin", got, _name_it(name, key, got))
        ]
    try:
        plugin = REGISTRIES[name].get(value[key])
    except ConfigError as error:
        return None, [replace(p, key=f"{name}.{key}") for p in error.problems]
    schema = getattr(plugin, "Options", None)
    if schema is None:
        return PluginChoice(key=f"{name}.{key}", name=value[key], plugin=plugin, options=value), []
    options, problems = check_section(name, schema, value, fallback)
    if options is None:
        return None, problems
    chosen = PluginChoice(key=f"{name}.{key}", name=value[key], plugin=plugin, options=options)
    return chosen, problems


def _name_it(section: str, key: str, got: str) -> str:
    """`report=json` onto a saved config, which has no groups to choose from: say what to set."""
    named = got.strip("'") in REGISTRIES[section].names()
    return (
        f"a saved config has no groups: set {section}.{key}={got.strip(chr(39))}" if named else ""
    )
