"""Caches whose rows have scales of their own: refused where the planned engine stores none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.engines.base import Engine, EngineRules
from kvpipe.engines.scaled_rows import NVFP4_HEADS, OLDEST, READ, nvfp4_card_problem
from kvpipe.engines.versions import parse_version, written
from kvpipe.errors import Problem
from kvpipe.notes import Note
from kvpipe.request.config import PluginChoice
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.packed_types import PER_TOKEN_HEAD
from kvpipe.specs.scaled_rows import SCALED_ROWS
from kvpipe.stages.validation.base import ResolvedDevice
from kvpipe.stages.validation.layers import Layer

_KEY = "cache.cache_dtype"


def scaled_rows(word: str, engine: PluginChoice) -> str:
    """The word, where the planned engine lays such rows out in blocks; else ""."""
    made = engine.make(Engine)
    if word not in SCALED_ROWS or not isinstance(made, EngineRules) or not made.version:
        return ""
    return word if parse_version(made.version) >= OLDEST else ""


def row_problems(
    word: str, layers: Sequence[Layer], device: ResolvedDevice, version: str
) -> Iterator[Problem]:
    """word: of rows that are laid out. What was not read, or is refused there, is refused here."""
    if device.type == "cpu":
        yield Problem(_KEY, "a type that vLLM stores on a CPU", f"'{word}'", "device=h100_80gb")
    other = [cache.name for cache, spec in layers if not _is_read(spec)]
    if other:
        expected = "a type of layers other than full and sliding attention, too"
        got = f"'{word}' for {len(other)} layers such as {other[0]}"
        yield Problem(_KEY, expected, got, "cache.cache_dtype=fp8")
    if word not in PER_TOKEN_HEAD:
        yield from _of_heads(word, layers)
        yield from _of_cards(word, layers, device, version)


def _is_read(spec: KVCacheSpec) -> bool:
    return spec.takes_scaled_rows and [array.name for array in spec.page_arrays()] == ["kv"]


def _heads(layers: Sequence[Layer]) -> list[int]:
    return sorted({getattr(spec, "head_size", 0) for _, spec in layers if _is_read(spec)})


def _of_heads(word: str, layers: Sequence[Layer]) -> Iterator[Problem]:
    wrong = [size for size in _heads(layers) if size not in NVFP4_HEADS]
    if wrong:
        told = ", ".join(map(str, NVFP4_HEADS))
        yield Problem(_KEY, f"a type for heads of {wrong[0]} numbers", f"'{word}', for {told}")


def _of_cards(
    word: str, layers: Sequence[Layer], device: ResolvedDevice, version: str
) -> Iterator[Problem]:
    capability = device.compute_capability
    if capability is None:
        return
    for size in _heads(layers)[:1]:
        if needs := nvfp4_card_problem(parse_version(version), capability, size):
            got = f"'{word}' on {device.name} ({capability[0]}.{capability[1]}), heads of {size}"
            yield Problem(_KEY, f"with vLLM {version} {needs}", got, "cache.cache_dtype=fp8")


def row_notes(word: str, version: str) -> Iterator[Note]:
    if word and parse_version(version) not in READ:
        read = ", ".join(map(written, READ))
        text = f"bytes of {word} as vLLM {read} count them: inferred for {version}"
        yield Note(text=text, knob=_KEY)
