"""Finding a config.json, and the part of it that generates text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from errno import EFBIG
from pathlib import Path
from typing import Any

from kvpipe.errors import ConfigError, Problem, printable
from kvpipe.files.regular import open_regular
from kvpipe.models._values import Values, unreadable
from kvpipe.models.base import architectures_of
from kvpipe.models.families.classes import facts_of, generating_type
from kvpipe.models.mistral_format import NAME as PARAMS
from kvpipe.models.mistral_format import as_config, is_params

# Where files of several parts keep the language model.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "decoder", "thinker_config")
# Two classes of one model_type that store otherwise, told apart by the architecture.
_SHARED_TYPES = {("bailing_hybrid", "BailingMoeV2_5ForCausalLM"): "bailing_moe_v2_5"}
DTYPES = {"float16", "bfloat16", "float32"}
QUANTIZATION_FILE = "hf_quant_config.json"
LONGEST_FILE = 16 * 2**20  # bytes; published ones have a few thousand


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file as written. raw: all of it. text: the part that generates. folder: where it lies."""

    raw: Mapping[str, Any]
    text: Mapping[str, Any]
    folder: Path | None
    name: str

    @property
    def model_type(self) -> str:
        """The text part's; a part without one has the type that its whole's class gives it, else
        the whole's, "_text". A file that is flat although its class has parts is of its part."""
        own, whole = (Values(part).word("model_type") for part in (self.text, self.raw))
        if shared := _SHARED_TYPES.get((own, self._architecture)):
            return shared
        if own:
            return own if self.is_nested else generating_type(own)
        part = generating_type(whole)
        return part if part != whole else f"{whole}_text"

    @property
    def _architecture(self) -> str:
        names = self.text.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Of the whole; none where the file lists no text."""
        return architectures_of(self.raw)

    @property
    def is_nested(self) -> bool:
        return self.text is not self.raw

    @property
    def wholes(self) -> tuple[Mapping[str, Any], ...]:
        """What stands around the text part, the outermost first."""
        return tuple(_parts(self.raw))[:-1]

    @property
    def dtype(self) -> str | None:
        """`dtype` or `torch_dtype`, of the text part first; None where the file names none."""
        for part in (self.text, self.raw):
            for key in ("dtype", "torch_dtype"):
                if part.get(key) is not None:
                    return known_dtype(key, Values(part).word(key))
        return None

    @property
    def ssm_dtype(self) -> str | None:
        """Of the recurrent state, where the file names one."""
        for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
            if written := Values(self.text).word(key):
                return known_dtype(key, written)
        return None

    @property
    def quantization(self) -> Values | None:
        for part in (self.raw, self.text):
            found = Values(part).section("quantization_config")
            if found.raw:
                return found
        return None


def known_dtype(key: str, word: str) -> str:
    name = word.removeprefix("torch.")
    if name not in DTYPES:
        expected, knob = f"one of {', '.join(sorted(DTYPES))}", "set it to the dtype of the weights"
        raise unreadable(key, expected, f"'{word}'", knob)
    return name


def open_config(path: str) -> ConfigFile:
    """The config.json at `path`, a folder or the file; ConfigError when there is none to read."""
    expected = "a folder with a config.json, or the file"
    try:
        place = Path(path).expanduser()
        file = _inside(place) if place.is_dir() else place
        if not file.is_file():
            raise ConfigError(Problem("model.path", expected, f"'{path}'"))
        is_named = file.name in ("config.json", PARAMS)  # for what it is, not for the model
        name = file.parent.resolve().name if is_named else file.stem
        beside = file.with_name(QUANTIZATION_FILE)
        is_beside = file.name == "config.json" and beside.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, no such user
        raise ConfigError(Problem("model.path", expected, f"'{path}' ({reason(error)})")) from error
    found = parse_config(file, str(file), name, file.parent)
    return with_quantization(found, _parsed(beside, str(beside))) if is_beside else found


def _inside(folder: Path) -> Path:
    """Its config.json; Mistral's own file where it has that alone."""
    file, params = folder / "config.json", folder / PARAMS
    return params if params.is_file() and not file.exists() else file


def with_quantization(file: ConfigFile, raw: Any) -> ConfigFile:
    """What older ModelOpt writes in a file of its own, as newer ones write it in config.json."""
    inside = raw.get("quantization") if isinstance(raw, dict) else None
    if not isinstance(inside, dict) or file.quantization is not None:
        return file
    quantization = {"quant_method": "modelopt", **inside}
    merged = {**file.raw, "quantization_config": quantization}
    text = merged if file.text is file.raw else file.text
    return replace(file, raw=merged, text=text)


def is_path(word: str) -> bool:
    """Whether a word names a file or folder, there or not, rather than a repository of the Hub."""
    if word.endswith((".json", ".gguf")) or word.startswith((".", "/", "~")):
        return True
    try:
        return Path(word).exists()
    except (OSError, ValueError):
        return False


def has_config(word: str) -> bool:
    """Whether a word, which may be anything that stood in a log, names a folder of a model."""
    try:
        return (Path(word) / "config.json").is_file()
    except (OSError, ValueError):
        return False


def parse_config(text: str | Path, origin: str, name: str, folder: Path | None) -> ConfigFile:
    """The config.json of that text, or in that file. origin: what a problem calls it."""
    raw = _parsed(text, origin)
    if not isinstance(raw, dict):
        raise _unparsed(origin, "a JSON object", type(raw).__name__)
    named = Values(raw).word("_name_or_path") or name
    return config_file(raw, printable(named), folder)


def config_file(raw: Mapping[str, Any], name: str, folder: Path | None = None) -> ConfigFile:
    """Values that were read already, and the part of them that generates."""
    raw = as_config(raw) if is_params(raw) else raw
    return ConfigFile(raw=raw, text=_text_part(raw), folder=folder, name=name)


def _parsed(text: str | Path, origin: str) -> Any:
    """The one place where a file's bytes become values, and every way in which they do not."""
    try:
        raw = json.loads(text if isinstance(text, str) else _read(text))
        json.dumps(raw, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except json.JSONDecodeError as error:
        raise _unparsed(origin, "JSON", str(error)) from error
    except UnicodeError as error:
        raise _unparsed(origin, "JSON in UTF-8", str(error)) from error
    except RecursionError as error:
        raise _unparsed(origin, "JSON", "too many levels of nesting") from error
    except ValueError as error:  # Python reads no integer of more digits than 4,300
        raise _unparsed(origin, "JSON", "a number of thousands of digits") from error
    except OSError as error:
        raise _unparsed(origin, "a file that can be read", reason(error)) from error
    return raw


def _unparsed(origin: str, expected: str, got: str) -> ConfigError:
    knob = "download the file again, or name another"
    return ConfigError(Problem(origin, expected, got, knob))


def _read(file: Path) -> str:
    with open_regular(file) as stream:
        content = stream.read(LONGEST_FILE + 1)
    if len(content) > LONGEST_FILE:
        raise OSError(EFBIG, f"more than {LONGEST_FILE // 2**20} MiB")
    return content.decode("utf-8")


def reason(error: Exception) -> str:
    """What the system says, without its number and its file name."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The innermost text part; models of one part are their own."""
    return list(_parts(raw))[-1]


def _parts(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The file, the part of it that holds the text, and so on inwards."""
    yield raw
    part = raw
    while inner := next((part[k] for k in _text_keys(part) if isinstance(part.get(k), dict)), None):
        yield inner
        part = inner


def _text_keys(part: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the class keeps it; else where others do."""
    named = part.get("model_type")
    text = facts_of(named).text if isinstance(named, str) else None
    return (text[0],) if text else _TEXT_PARTS
