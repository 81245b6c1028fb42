"""A model section of conf/model/*.yaml -> ModelGeometry: the geometry is written in the file.

`pattern` names a kind for every layer and repeats until `count`; `kinds` says what a layer of each
kind stores. A cache is `{spec: <kind of cache>, <its numbers>}`, or `{shares_with: <layer index>}`
for a layer that reads the cache of the same name in that layer and stores nothing itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.models.base import MAX_LAYERS, CacheGeometry, ModelGeometry, architectures_of
from kvpipe.models.weight import Weight
from kvpipe.text.quantities import Bytes

Size = Annotated[int, Field(strict=True, ge=0, lt=2**31)]  # 0: not known
Total = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
StoredDtype = Literal["float16", "bfloat16", "float32"]
ServedDtype = Literal["auto", "float16", "bfloat16", "float32"]
_OF_THE_FILE = {"reader", "dtype", "layers", "config", "source", "published"}
_REPEATED = re.compile(r"(?P<kind>\S+)(?:\s+x\s+(?P<times>[0-9]{1,9}))?")


class Closed(BaseModel):
    """Frozen, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Layers(Closed):
    """prefix: what cache names start with. pattern: kinds in order, "attention x 5" is five."""

    prefix: str
    count: int = Field(strict=True, ge=1, le=MAX_LAYERS)
    pattern: tuple[str, ...] = Field(min_length=1, max_length=MAX_LAYERS)
    kinds: dict[str, dict[str, dict[str, Any]]]

    @field_validator("pattern")
    @classmethod
    def _is_short(cls, pattern: tuple[str, ...]) -> tuple[str, ...]:
        """Before it is written out: "attention x 999999999" is a list of a billion words."""
        repeats = [cls._entry(entry)[1] for entry in pattern]
        if not all(repeats) or sum(repeats) > MAX_LAYERS:
            raise ValueError(f'kinds, each once or "<kind> x <times>", {MAX_LAYERS:,} in all')
        return pattern

    @staticmethod
    def _entry(entry: str) -> tuple[str, int]:
        """A kind, and how often."""
        match = _REPEATED.fullmatch(entry.strip())
        kind, times = match.group("kind", "times") if match else (entry, None)
        return kind, int(times or 1)

    def kind_of_each_layer(self) -> list[str]:
        """The pattern written out and repeated to `count` entries."""
        return list(islice(cycle(self.pattern_written_out()), self.count))

    def pattern_written_out(self) -> list[str]:
        written: list[str] = []
        for entry in self.pattern:
            kind, times = self._entry(entry)
            written += [kind] * times
        return written


class Preset:
    """Reader of a preset. `read` reports every mistake of the section at once."""

    class Options(Closed):
        """Lengths in tokens, sizes in numbers; `auto` dtype is the file's.

        source: where the published config.json stands. config: what it says (its text part), from
        which the matrices are written down where a choice of weights asks for them. published: the
        publisher's own count of parameters, "235B". quantized_with: as in quantization_config.
        """

        reader: str
        name: str
        dtype: ServedDtype
        file_dtype: StoredDtype
        context_length: int = Field(strict=True, ge=1, lt=2**31)
        layers: Layers
        hidden_size: Size = 0
        intermediate_size: Size = 0
        vocab_size: Size = 0
        num_attention_heads: Size = 0
        parameter_count: Total | None = None
        published: str = ""
        source: str = ""
        config: dict[str, Any] | None = None
        weight_bytes: Bytes | None = None
        quantized_with: str = ""
        encoder_tokens: Size = 0
        num_draft_layers: Size = 0
        experts_per_token: Size = 0
        expert_size: Size = 0
        conv_dtype: StoredDtype | None = None
        ssm_dtype: StoredDtype | None = None
        state_chunk_size: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = None
        notes: tuple[str, ...] = ()

    def __init__(self, options: Preset.Options) -> None:
        self.options = options

    def read(self) -> ModelGeometry:
        """The geometry; ConfigError naming each wrong kind, cache or target of sharing."""
        options = self.options
        problems = [*_pattern_problems(options.layers), *_cache_problems(options.layers)]
        if problems:
            raise ConfigError(problems)
        fields = options.model_dump(exclude=_OF_THE_FILE)
        fields["notes"] += tuple(self._unknown_sizes())
        return ModelGeometry(
            num_layers=options.layers.count,
            caches=_caches(options.layers),
            source="preset",
            weights=_weights_of(options),
            architectures=architectures_of(options.config or {}),
            **fields,
        )

    def _unknown_sizes(self) -> Iterator[str]:
        """What a run reserves beyond weights follows from sizes that a cache does not need."""
        unknown = [
            f"model.{name}"
            for name in ("hidden_size", "vocab_size")
            if not getattr(self.options, name)
        ]
        if unknown:
            yield f"{' and '.join(unknown)} not given: activations are counted without"


@dataclass(frozen=True)
class PresetWeights:
    """config: JSON. Equal where what they read is: a search reads the same ones again and again."""

    config: str
    name: str
    parameter_count: int | None

    def __call__(self) -> Sequence[Weight]:
        """Every tensor, as the family of `config` has it; ConfigError where these are not the
        layers and parameters of this section: somebody changed one and not the other."""
        return _read(self)


def _weights_of(options: Preset.Options) -> PresetWeights | None:
    if options.config is None:
        return None
    return PresetWeights(json.dumps(options.config), options.name, options.parameter_count)


@lru_cache(maxsize=8)
def _read(asked: PresetWeights) -> Sequence[Weight]:
    from kvpipe.models.reading import read_weights_of

    found = tuple(read_weights_of(json.loads(asked.config), asked.name))
    count = sum(weight.num_parameters for weight in found)
    if count != asked.parameter_count:
        expected = f"{asked.parameter_count:,} parameters, as model.parameter_count"
        raise ConfigError(Problem("model.config", expected, f"{count:,}", "change both"))
    return found


def _pattern_problems(layers: Layers) -> Iterator[Problem]:
    written = layers.pattern_written_out()
    for kind in dict.fromkeys(written):
        if kind not in layers.kinds:
            yield Problem(
                "model.layers.pattern",
                "kinds that model.layers.kinds describes",
                f"'{kind}'",
                did_you_mean(kind, layers.kinds),
            )
    if len(written) > layers.count:
        yield Problem(
            "model.layers.pattern",
            f"at most {layers.count} layers (model.layers.count)",
            f"{len(written)}",
        )
    for kind in layers.kinds:
        if kind not in written:
            yield Problem(
                f"model.layers.kinds.{kind}",
                "a kind that occurs in model.layers.pattern",
                "no layer of it",
                "remove it, or add it to the pattern",
            )


def _cache_problems(layers: Layers) -> Iterator[Problem]:
    kind_of = layers.kind_of_each_layer()
    for kind, caches in layers.kinds.items():
        for name, cache in caches.items():
            key = f"model.layers.kinds.{kind}.{name}"
            target = cache.get("shares_with")
            if target is None:
                if not isinstance(cache.get("spec"), str):
                    yield Problem(key, "spec: <kind of cache>, or shares_with: <layer>", f"{cache}")
            elif set(cache) != {"shares_with"}:
                yield Problem(key, "shares_with alone", f"{sorted(cache)}")
            elif not _stores(layers, kind_of, target, name):
                yield Problem(
                    f"{key}.shares_with", f"a layer that stores its own {name}", f"{target}"
                )


def _stores(layers: Layers, kind_of: list[str], target: Any, name: str) -> bool:
    if isinstance(target, bool) or not isinstance(target, int) or not 0 <= target < layers.count:
        return False
    return "spec" in layers.kinds.get(kind_of[target], {}).get(name, {})


def _caches(layers: Layers) -> tuple[CacheGeometry, ...]:
    kind_of = layers.kind_of_each_layer()
    return tuple(
        _cache(layers, kind_of, index, name, cache)
        for index, kind in enumerate(kind_of)
        for name, cache in layers.kinds[kind].items()
    )


def _cache(
    layers: Layers, kind_of: list[str], index: int, name: str, cache: Mapping[str, Any]
) -> CacheGeometry:
    """One cache; a sharing one has the spec of the cache it reads."""
    target = cache.get("shares_with")
    source = cache if target is None else layers.kinds[kind_of[target]][name]
    return CacheGeometry(
        name=f"{layers.prefix}.{index}.{name}",
        layer=index,
        spec=source["spec"],
        fields={key: value for key, value in source.items() if key != "spec"},
        shares_with=None if target is None else f"{layers.prefix}.{target}.{name}",
    )


PLUGIN = Preset
