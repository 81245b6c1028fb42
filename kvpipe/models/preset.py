"""A model section of conf/model/*.yaml -> ModelGeometry: the geometry is written in the file.

`pattern` names a kind for every layer and repeats until `count`; `kinds` says what a layer of each
kind stores. A cache is `{spec: <kind of cache>, <its numbers>}`, or `{shares_with: <layer index>}`
for a layer that reads the cache of the same name in that layer and stores nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.models.base import CacheGeometry, ModelGeometry

ServedDtype = Literal["auto", "float16", "bfloat16", "float32"]
_REPEATED = re.compile(r"(?P<kind>\S+)(?:\s+x\s+(?P<times>\d+))?")


class Closed(BaseModel):
    """Frozen, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Layers(Closed):
    """prefix: what cache names start with. pattern: kinds in order, "attention x 5" is five."""

    prefix: str
    count: int = Field(ge=1)
    pattern: tuple[str, ...] = Field(min_length=1)
    kinds: dict[str, dict[str, dict[str, Any]]]

    def kind_of_each_layer(self) -> list[str]:
        """The pattern written out and repeated to `count` entries."""
        return list(islice(cycle(self.pattern_written_out()), self.count))

    def pattern_written_out(self) -> list[str]:
        written: list[str] = []
        for entry in self.pattern:
            match = _REPEATED.fullmatch(entry.strip())
            kind, times = match.group("kind", "times") if match else (entry, None)
            written += [kind] * int(times or 1)
        return written


class Preset:
    """Reader of a preset. `read` reports every mistake of the section at once."""

    class Options(Closed):
        """Lengths in tokens, sizes in numbers; `auto` dtype is the file's."""

        reader: str
        name: str
        dtype: ServedDtype
        file_dtype: Literal["float16", "bfloat16", "float32"]
        context_length: int = Field(ge=1)
        layers: Layers
        hidden_size: int = Field(default=0, ge=0)
        intermediate_size: int = Field(default=0, ge=0)
        vocab_size: int = Field(default=0, ge=0)
        num_attention_heads: int = Field(default=0, ge=0)
        parameter_count: int | None = Field(default=None, ge=1)
        weight_bytes: int | None = Field(default=None, ge=1)
        encoder_tokens: int = Field(default=0, ge=0)
        num_draft_layers: int = Field(default=0, ge=0)
        experts_per_token: int = Field(default=0, ge=0)
        expert_size: int = Field(default=0, ge=0)
        conv_dtype: str | None = None
        ssm_dtype: str | None = None
        notes: tuple[str, ...] = ()

    def __init__(self, options: Preset.Options) -> None:
        self.options = options

    def read(self) -> ModelGeometry:
        """The geometry; ConfigError naming each wrong kind, cache or target of sharing."""
        options = self.options
        problems = [*_pattern_problems(options.layers), *_cache_problems(options.layers)]
        if problems:
            raise ConfigError(problems)
        fields = options.model_dump(exclude={"reader", "dtype", "layers"})
        return ModelGeometry(
            num_layers=options.layers.count,
            caches=_caches(options.layers),
            source="preset",
            **fields,
        )


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
    if not isinstance(target, int) or not 0 <= target < layers.count:
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
