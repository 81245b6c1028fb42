"""What transformers' configuration classes supply where a file is silent: a table, not torch.

`class_defaults.json` is written by tools/class_defaults.py from the classes themselves, so that a
default is never copied by hand. None of it is knowledge of caches: families have that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ClassFacts:
    """One model_type. defaults: field -> value. aliases: standard name -> the class's own name.

    text: key and model_type of the part that generates, where that is a part; text_defaults: what
    the class of the whole gives it, where the file leaves it out. pattern: the round
    of layer_types that the class repeats where the file lists none (empty: it derives none; None:
    it derives them by a rule that its family must know).
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    text: tuple[str, str] | None = None
    text_defaults: Mapping[str, Any] = field(default_factory=dict)
    pattern: tuple[str, ...] | None = ()


@cache
def class_facts() -> dict[str, ClassFacts]:
    """By model_type; types that transformers does not have are absent."""
    table = json.loads(Path(__file__).with_name("class_defaults.json").read_text("utf-8"))
    return {
        name: ClassFacts(
            defaults=entry["defaults"],
            aliases=entry.get("aliases", {}),
            text=tuple(entry["text"]) if "text" in entry else None,
            text_defaults=entry.get("text_defaults", {}),
            pattern=None if (round_ := entry.get("pattern", ())) is None else tuple(round_),
        )
        for name, entry in table.items()
    }


def facts_of(model_type: str) -> ClassFacts:
    return class_facts().get(model_type, ClassFacts())


def generating_type(model_type: str) -> str:
    """The type of the part that generates, of a file that writes that part's keys flat."""
    seen = {model_type}
    while (text := facts_of(model_type).text) and text[1] not in seen:
        model_type = text[1]
        seen.add(model_type)
    return model_type


def has_parts(model_type: object) -> bool:
    """Whether the class of that type has a part that generates beside others."""
    return isinstance(model_type, str) and facts_of(model_type).text is not None
