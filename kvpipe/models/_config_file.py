"""Finding a config.json, and the part of it that generates text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpipe.errors import ConfigError, Problem

# Where files of several parts keep the language model.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "decoder", "thinker_config")
_DTYPES = {"float16", "bfloat16", "float32"}


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file as written. raw: all of it. text: the part that generates. folder: where it lies."""

    raw: Mapping[str, Any]
    text: Mapping[str, Any]
    folder: Path | None
    name: str

    @property
    def model_type(self) -> str:
        """The text part's; a text part without one is the whole's, "_text"."""
        own = self.text.get("model_type")
        return str(own or f"{self.raw.get('model_type', '')}_text")

    @property
    def is_nested(self) -> bool:
        return self.text is not self.raw

    @property
    def dtype(self) -> str | None:
        """`dtype` or `torch_dtype`, of the text part first; None where the file names none."""
        for part in (self.text, self.raw):
            for key in ("dtype", "torch_dtype"):
                if part.get(key) is not None:
                    return _known_dtype(key, str(part[key]))
        return None

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        for part in (self.raw, self.text):
            if part.get("quantization_config"):
                found: Mapping[str, Any] = part["quantization_config"]
                return found
        return None


def _known_dtype(key: str, word: str) -> str:
    name = word.removeprefix("torch.")
    if name not in _DTYPES:
        raise ConfigError(
            Problem(
                f"config.json: {key}",
                f"one of {', '.join(sorted(_DTYPES))}",
                f"'{word}'",
                "set it in the file to the dtype the weights are stored in",
            )
        )
    return name


def open_config(path: str) -> ConfigFile:
    """The config.json at `path`, a folder or the file; ConfigError when there is none to read."""
    place = Path(path).expanduser()
    file = place / "config.json" if place.is_dir() else place
    if not file.is_file():
        raise ConfigError(
            Problem("model.path", "a folder with a config.json, or the file", f"'{path}'")
        )
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return parse_config(file.read_text(encoding="utf-8"), str(file), name, file.parent)


def parse_config(text: str, origin: str, name: str, folder: Path | None) -> ConfigFile:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(Problem(origin, "JSON", f"{error}")) from error
    if not isinstance(raw, dict):
        raise ConfigError(Problem(origin, "a JSON object", type(raw).__name__))
    named = raw.get("_name_or_path") or name
    return ConfigFile(raw=raw, text=_text_part(raw), folder=folder, name=str(named))


def _text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The innermost text part; models of one part are their own."""
    for key in _TEXT_PARTS:
        if isinstance(raw.get(key), dict):
            return _text_part(raw[key])
    return raw
