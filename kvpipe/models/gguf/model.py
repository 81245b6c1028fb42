"""A GGUF file, or its parts -> ModelGeometry: K/V of every layer as its tensors have it.

Heads and sizes come from the tensor table and must agree with the header's keys. Which layers have
a window is a rule of the architecture where the file lists none; what is neither is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from kvpipe.errors import ConfigError, Problem, printable
from kvpipe.models._values import Values, unreadable
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.models.gguf.header import Header, Length, Tensor, read_header
from kvpipe.models.gguf.types import num_by_type, num_bytes, unknown_kinds

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# A full layer after so many with a window, where a file of this architecture lists no layers
# (llama.cpp: src/llama-model.cpp, set_swa_pattern). 1: it keeps every token, whatever window the
# file has (docs/live.md).
_EVERY = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "gptoss": 2, "cohere2": 4, "exaone4": 4,
    "olmo2": 4, "phi3": 1,
}  # fmt: skip
# Tensors of layers that keep something other than K/V.
_OTHER = re.compile(r"(ssm_|time_mix|channel_mix|shortconv|attn_rot|wkv|cross_attn|indexer)")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.weight")
_KNOB = "name its config.json instead"


def is_gguf(path: str) -> bool:
    return path.lower().endswith(SUFFIX)


def read_gguf(path: str) -> ModelGeometry:
    """The geometry of a file, or of all parts of one; ConfigError where it is broken or unknown."""
    place = Path(path).expanduser()
    headers = [read_header(file) for file in _parts(place)]
    tensors = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    if strange := unknown_kinds(tensors.values()):
        raise _refused(place, "ggml types that kvpipe knows", ", ".join(map(str, strange)))
    try:
        return _Reading(headers[0], tensors, place.stem).geometry()
    except ConfigError as error:
        raise ConfigError([_named(place, problem) for problem in error.problems]) from error


def _named(place: Path, problem: Problem) -> Problem:
    key = f"model.path ({place.name}: {problem.key.removeprefix('config.json: ')})"
    return Problem(key, problem.expected, problem.got, _KNOB)


def _parts(place: Path) -> list[Path]:
    """The file, or all files that its name counts; ConfigError naming those that are missing."""
    match = _PART.fullmatch(place.name)
    if match is None:
        return [place]
    count = int(match["count"])
    if not 1 <= count <= 999:
        raise _refused(place, "a name that counts 1 to 999 parts", match["count"])
    files = [
        place.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)
    ]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise _refused(place, f"all {count} parts", f"{len(missing)} missing: {missing[0]}")
    return files


def _refused(place: Path, expected: str, got: str) -> ConfigError:
    return ConfigError(Problem(f"model.path ({place.name})", expected, printable(got), _KNOB))


class _Reading:
    """One file's values under the names that its architecture prefixes."""

    def __init__(self, header: Header, tensors: Mapping[str, Tensor], name: str) -> None:
        self.tensors, self.pairs = tensors, Values(header.pairs)
        self.name = printable(self.pairs.word("general.name") or name)
        self.arch = self.pairs.word("general.architecture")
        if not self.arch:
            raise unreadable("general.architecture", "a name", "nothing")
        self.layers = self.pairs.layers(self._key("block_count"))
        self.heads = self._of_layers("attention.head_count")
        if not self.heads:
            raise unreadable(self._key("attention.head_count"), "a number of heads", "nothing")
        self.kv_heads = self._of_layers("attention.head_count_kv") or self.heads

    def geometry(self) -> ModelGeometry:
        types = num_by_type(self.tensors.values())
        total = sum(map(num_bytes, self.tensors.values()))
        widths = ", ".join(f"{name} {size / total:.0%}" for name, size in types.items() if total)
        return ModelGeometry(
            name=self.name,
            file_dtype="float16",
            context_length=self._count("context_length"),
            num_layers=self.layers,
            caches=tuple(self.caches()),
            hidden_size=self._count("embedding_length"),
            intermediate_size=self._number("feed_forward_length"),
            vocab_size=self._vocabulary(),
            num_attention_heads=max(self.heads),
            parameter_count=sum(prod(tensor.shape) for tensor in self.tensors.values()),
            weight_bytes=total,
            experts_per_token=self._number("expert_used_count"),
            expert_size=self._number("expert_feed_forward_length"),
            source="GGUF header and tensor table",
            notes=(f"weights as stored: {widths}", "cache dtype auto is float16, as llama.cpp's"),
        )

    def caches(self) -> list[CacheGeometry]:
        self._check_kinds()
        kinds, shared = self._windows(), self._number("attention.shared_kv_layers")
        last: dict[bool, str] = {}
        caches = []
        for layer, slides in enumerate(kinds):
            cache = self._cache(layer, slides)
            if layer >= self.layers - shared:
                if slides not in last:
                    raise unreadable(
                        self._key("attention.shared_kv_layers"),
                        "a layer of each kind before the shared ones",
                        shared,
                    )
                cache = replace(cache, shares_with=last[slides])
            else:
                last[slides] = cache.name
            caches.append(cache)
        return caches

    # --- one layer ---------------------------------------------------------------------------
    def _cache(self, layer: int, slides: bool) -> CacheGeometry:
        name = f"model.layers.{layer}.self_attn.attn"
        latent = self.tensors.get(f"blk.{layer}.attn_kv_a_mqa.weight")
        if latent is not None:
            if len(latent.shape) != 2 or not latent.shape[1]:
                raise unreadable(f"blk.{layer}.attn_kv_a_mqa", "a matrix", latent.shape)
            fields: dict[str, Any] = {"head_size": latent.shape[1]}
            return CacheGeometry(name=name, layer=layer, spec="mla", fields=fields)
        suffix = "_swa" if slides and self.pairs.get(self._key("attention.key_length_swa")) else ""
        head = self._count("embedding_length") // self.heads[layer]
        key = self._number(f"attention.key_length{suffix}") or head
        value = self._number(f"attention.value_length{suffix}") or head
        heads = self.kv_heads[layer]
        self._agree(layer, heads * key, heads * value, self.heads[layer] * key)
        fields = {"num_kv_heads": heads, "head_size": key}
        fields |= {"head_size_v": value} if value != key else {}
        fields |= {"sliding_window": self._number("attention.sliding_window")} if slides else {}
        spec = "sliding" if slides else "full"
        return CacheGeometry(name=name, layer=layer, spec=spec, fields=fields)

    def _agree(self, layer: int, key: int, value: int, query: int) -> None:
        """The tensors have the rows that the keys say."""
        rows = {"attn_k": key, "attn_v": value, "attn_qkv": query + key + value}
        seen = False
        for part, wanted in rows.items():
            tensor = self.tensors.get(f"blk.{layer}.{part}.weight")
            seen = seen or tensor is not None
            if tensor is not None and tensor.shape[1:2] != (wanted,):
                got = ", ".join(map(str, tensor.shape))
                raise unreadable(f"blk.{layer}.{part}", f"{wanted:,} rows, as its keys say", got)
        if not seen:
            raise unreadable(f"blk.{layer}", "attn_k, attn_qkv or attn_kv_a_mqa", "none of them")

    # --- what layers are ----------------------------------------------------------------------
    def _check_kinds(self) -> None:
        names = [m[2] for name in self.tensors if (m := _BLOCK.fullmatch(name))]
        other = sorted({name for name in names if _OTHER.match(name)})
        if other:
            raise unreadable("tensors", "K/V of attention alone", printable(other[0]))
        if not names or self.pairs.get(self._key("pooling_type")) is not None:
            raise unreadable("general.architecture", "a decoder (blk.*)", f"'{self.arch}'")

    def _windows(self) -> list[bool]:
        """Whether each layer slides."""
        window = self._number("attention.sliding_window")
        if not 0 < window < self._count("context_length"):
            return [False] * self.layers
        listed = self.pairs.get(self._key("attention.sliding_window_pattern"))
        if isinstance(listed, list):
            if len(listed) != self.layers or not all(isinstance(x, (bool, int)) for x in listed):
                raise unreadable(
                    self._key("attention.sliding_window_pattern"),
                    f"{self.layers} of true and false",
                    f"{len(listed)}",
                )
            return [bool(slides) for slides in listed]
        every = listed if isinstance(listed, int) else _EVERY.get(self.arch)
        if every is None:
            expected = f"a known rule of which layers slide in '{self.arch}'"
            raise unreadable(self._key("attention.sliding_window_pattern"), expected, "nothing")
        return [every == 0 or (i + 1) % every != 0 for i in range(self.layers)]

    # --- values -------------------------------------------------------------------------------
    def _key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def _count(self, name: str) -> int:
        return self.pairs.count(self._key(name))

    def _number(self, name: str) -> int:
        """0 where it is missing, or one a layer."""
        value = self.pairs.get(self._key(name))
        return 0 if isinstance(value, (list, Length)) else self.pairs.number(self._key(name))

    def _of_layers(self, name: str) -> Sequence[int]:
        """One a layer, or one for all; nothing where the key is missing."""
        key = self._key(name)
        value = self.pairs.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            return [self.pairs.count(key)] * self.layers
        numbers = self.pairs.numbers(key) or []
        if len(numbers) != self.layers or 0 in numbers:
            raise self.pairs.wrong(key, f"{self.layers} numbers of heads", numbers)
        return numbers

    def _vocabulary(self) -> int:
        tokens = self.pairs.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Length):
            return tokens.entries
        return len(tokens) if isinstance(tokens, list) else self._number("vocab_size")
