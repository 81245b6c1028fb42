"""The contract of a family: what a config.json of it says, and what it leaves to the class.

A published config.json is sparse: keys equal to the class's default are missing, and a missing key
and a null one may mean opposite things (Mistral's sliding_window). So a family names its class's
defaults, and a `Config` keeps the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvpipe.models._values import LARGEST, Values, unreadable
from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.classes import ClassFacts
from kvpipe.models.weight import Weight

__all__ = ["Config", "Family", "Weight", "unreadable"]

STRETCHED = ("linear", "dynamic", "yarn")  # kinds of rope scaling that stretch the context


_MISSING = object()


def _at(values: Mapping[str, Any], name: str) -> Any:
    """The value of a key, or of a dotted one (`attn_config.kv_n_heads`) inside a section."""
    if name in values:
        return values[name]
    first, dot, rest = name.partition(".")
    inside = values.get(first) if dot else None
    return _at(inside, rest) if isinstance(inside, Mapping) else _MISSING


class Config(Values):
    """A config.json with its class's defaults and its own names for standard keys.

    aliases: standard name -> the name in the file ({"hidden_size": "n_embd"}), dotted where it lies
    in a section; the standard name is understood, too. pattern: the round of layer_types that the
    class repeats where the file lists none.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        aliases: Mapping[str, str] | None = None,
        pattern: Sequence[str] | None = (),
    ) -> None:
        super().__init__(raw)
        self.defaults, self.aliases, self.pattern = defaults or {}, aliases or {}, pattern

    def get(self, key: str, default: Any = None) -> Any:
        """The file's value, null included; else the class's default; else `default`. As it stands:
        ask `count`, `flag` and the other questions of `Values` instead, which check it."""
        for values in (self.raw, self.defaults):
            for name in self._names(key):
                found = _at(values, name)
                if found is not _MISSING:
                    return found
        return default

    def _names(self, key: str) -> list[str]:
        """Under which a file may write it: the class's own name, this one, and what the class also
        takes for its own (Step's num_attention_groups are num_key_value_heads)."""
        own = self.aliases.get(key, key)
        return [own, key, *(other for other, name in self.aliases.items() if name in (own, key))]

    def written_name(self, key: str) -> str:
        """The name in the file; of a key that is not there, the class's own."""
        names = self._names(key)
        return next((name for name in names if _at(self.raw, name) is not _MISSING), names[0])

    def supplied(self, keys: Sequence[str]) -> list[str]:
        """Of the keys, those that the file leaves out and its class has a value for."""
        left_out = [key for key in keys if _at(self.raw, self.written_name(key)) is _MISSING]
        return [key for key in left_out if self.get(key) is not None]

    def having(self, **values: Any) -> Config:
        """The same file with other values under standard keys."""
        renamed = {self.aliases.get(key, key): value for key, value in values.items()}
        return Config({**self.raw, **renamed}, self.defaults, self.aliases, self.pattern)

    # The sizes that every family has.
    @property
    def hidden_size(self) -> int:
        return self.count("hidden_size")

    @property
    def num_layers(self) -> int:
        return self.layers("num_hidden_layers")

    @property
    def num_heads(self) -> int:
        return self.count("num_attention_heads")

    @property
    def num_kv_heads(self) -> int:
        """Without the key, or null: one for every query head."""
        return self.count("num_key_value_heads", self.num_heads)

    @property
    def head_size(self) -> int:
        """Without the key, or null: hidden_size / heads. Many files need the key: never divide."""
        return self.count("head_dim", self.hidden_size // self.num_heads)

    @property
    def intermediate_size(self) -> int:
        return self.count("intermediate_size")

    @property
    def context_length(self) -> int:
        """Tokens. Scaled rope stretches it, unless the file counts the stretched length already."""
        length, rope = self.count("max_position_embeddings"), self._rope
        factor, kind = rope.ratio("factor"), rope.word("rope_type", rope.word("type"))
        if kind not in STRETCHED or factor is None:
            return length
        trained = length
        if kind == "yarn":
            trained = rope.count("original_max_position_embeddings", length)
        stretched = max(length, int(trained * factor))
        if stretched > LARGEST:
            raise rope.wrong("factor", f"a context of at most {LARGEST:,} tokens", stretched)
        return stretched

    @property
    def _rope(self) -> Values:
        """transformers 5 writes rope_scaling under another key."""
        rope = self.section("rope_scaling")
        return rope if rope.raw else self.section("rope_parameters")

    @property
    def counts_before_yarn(self) -> bool:
        """Whether max_position_embeddings is the length that yarn stretches."""
        kind = self._rope.word("rope_type", self._rope.word("type"))
        return kind == "yarn" and self.context_length > self.count("max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class Family:
    """How to read one model_type. caches: what every layer stores. weights: every parameter
    (None: only headers say).

    defaults: what the class supplies for keys that files leave out. num_layers: of the part that
    generates. context_length: tokens, scaled rope included. encoder_tokens: encoder output tokens a
    request attends to. ssm_dtype: of the recurrent state, where the family fixes it. kv_dtype: of
    the KV cache, where engines know one format for it. like: the type whose class supplies
    defaults, for types that transformers does not have. has_towers: the same flat file describes
    towers, which `weights` leaves out. predicts: whether a prediction layer keeps such a cache, of
    those that the last layer keeps.
    """

    caches: Callable[[Config], list[CacheGeometry]]
    weights: Callable[[Config], list[Weight]] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    num_layers: Callable[[Config], int] = lambda config: config.num_layers
    context_length: Callable[[Config], int] = lambda config: config.context_length
    encoder_tokens: Callable[[Config], int] = lambda config: 0
    ssm_dtype: str | None = None
    kv_dtype: str | None = None
    like: str | None = None
    pattern: tuple[str, ...] | None = ()
    has_towers: bool = False
    predicts: Callable[[CacheGeometry], bool] = lambda cache: True

    def config(self, raw: Mapping[str, Any]) -> Config:
        return Config(raw, self.defaults, self.aliases, self.pattern)

    def of_class(self, facts: ClassFacts) -> Family:
        """The same family with what its class supplies under what the row itself says."""
        return replace(
            self,
            defaults={**facts.defaults, **self.defaults},
            aliases={**facts.aliases, **self.aliases},
            pattern=self.pattern or facts.pattern,
        )
