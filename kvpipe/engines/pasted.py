"""A server's command line as people paste it -> settings: a shell, a Dockerfile, Kubernetes args.

`vllm serve MODEL --flag value`, `python -m vllm.entrypoints... --model MODEL --flag=value`, a JSON
array (`CMD ["vllm", "serve", ...]`), a YAML list (`- --flag=value`, a word a line), a Kubernetes or
Compose file. Flags that stand for no setting of the cache are kept by name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from kvpipe.engines.manifest import manifest_commands
from kvpipe.engines.pasted_weights import is_read
from kvpipe.engines.printed_arguments import printed_command
from kvpipe.engines.serve import FLAGS, PARTITION, SWITCHES
from kvpipe.text.secrets import masked_words

LONGEST = 2**16  # characters of a command that are read
_SHORT = {
    "-tp": "parallel.tensor_parallel_size",
    "-pp": "parallel.pipeline_parallel_size",
    "-dp": "parallel.data_parallel_size",
    "-dcp": "parallel.decode_context_parallel_size",
    "--gpu-memory-utilization": "cache.gpu_memory_utilization",
    "--model": "model",
    "-q": "weights",
    "--speculative-config": "speculative",
    "--num-speculative-tokens": "scheduler.num_speculative_tokens",
}
KEYS = {**{flag.name: flag.key for flag in FLAGS}, **_SHORT}
# Flags without a value -> (setting, value).
TURNED = {
    **SWITCHES,
    "--no-disable-hybrid-kv-cache-manager": ("cache.disable_hybrid_kv_cache_manager", "false"),
    "-ep": ("parallel.enable_expert_parallel", "true"),
    "--no-enable-expert-parallel": ("parallel.enable_expert_parallel", "false"),
    "--enforce-eager": ("profiling.enforce_eager", "true"),
    "--no-enforce-eager": ("profiling.enforce_eager", "false"),
}
_ENDS = ("&&", "|", ";", "&", ">", ">>", "2>&1")
_PROMPTS = ("$", "#", ">", "%")
_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
# As a float is read (`.5`, `5.`, `9e-1`), or with a multiple.
_NUMBER = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,3}|[kKmMgG]?)"
)
_LENGTH, _FITTED = "scheduler.max_model_len", ("auto", "-1")  # the words for what fits
_IMAGE = re.compile(r"vllm-openai:v?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})")
_SAYS = re.compile(r"\[[\w.]{1,80}\.py:\d{1,6}\] ")  # where a server's own sentence begins
_COMMAND_BEGINS = ("vllm ", "python", "exec ")
_IS_FLAG = re.compile(r"--?[A-Za-z]")
_LIST_ITEM = re.compile(r"[ \t]{0,80}- {1,4}(.{1,2000})")


@dataclass(frozen=True, kw_only=True)
class Pasted:
    """model: as written (None: none). settings: by key. unknown: flags that are no setting here.
    program, arguments: the words of the line up to the server's name, and after it; program is
    empty where arguments alone were pasted. engine: the option of `engine` ("": vLLM). shape: the
    model's name where what is written is a file's ("": as written). shared_by: sequences among
    which the model's context is divided where no length is said."""

    model: str | None = None
    program: tuple[str, ...] = field(default=(), compare=False)
    arguments: tuple[str, ...] = field(default=(), compare=False)
    settings: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    engine: str = ""
    shape: str = ""
    shared_by: int = 1

    @property
    def flags(self) -> tuple[str, ...]:
        """All of them by name, each once; negative numbers are none."""
        names = (word.partition("=")[0].replace("_", "-") for word in self.arguments)
        return tuple(dict.fromkeys(name for name in names if _IS_FLAG.match(name)))


def read_pasted(text: str) -> Pasted | None:
    """The last server command in the text, or the last that a server printed of itself, its secrets
    masked; None where there is neither."""
    found = None
    head = text[:LONGEST]
    for words in map(masked_words, chain(_commands(head), manifest_commands(head))):
        arguments = _arguments(words)
        if arguments is not None:
            found = _read(words[: len(words) - len(arguments)], arguments, _partition(words))
    if found is None and (printed := printed_command(head)):
        printed = masked_words(printed)
        found = _read(printed[:2], printed[2:], None)
    return found


def image_release(text: str) -> str:
    """The release of the last container image that is named, vllm/vllm-openai:v0.11.0; "" where
    none is, or one that says none (latest)."""
    found = _IMAGE.findall(text[:LONGEST])
    return found[-1] if found else ""


# --- finding it ---
def _commands(text: str) -> Iterator[list[str]]:
    """Word lists that may be a command: lines with their continuations, arrays, list items."""
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ")
    items: list[str] = []
    for line in joined.split("\n"):
        if item := _LIST_ITEM.fullmatch(line):
            items += _words(item[1].strip())
            continue
        if items:
            yield items
            items = []
        yield from _of_line(line)
    if items:
        yield items


def _of_line(line: str) -> Iterator[list[str]]:
    start = line.find("[")
    if start >= 0 and ('"vllm"' in line or '"serve"' in line or '"--' in line):
        try:
            array = json.loads(line[start : line.rindex("]") + 1])
        except (ValueError, RecursionError):
            array = None
        if isinstance(array, list) and all(isinstance(word, str) for word in array):
            yield array
            return
    said = _SAYS.search(line)  # "[x.py:89] Restart vllm serve with --enable-scale-out to ..."
    if said and not line[said.end() :].startswith(_COMMAND_BEGINS):
        return
    if "vllm" in line or "--" in line:
        yield _words(line)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=False)
    except ValueError:  # a quote that does not end
        return line.split()


def _arguments(words: Sequence[str]) -> list[str] | None:
    """What stands after `vllm serve`, or after the module of the older servers."""
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            return list(words[at + 2 :])
        if word.startswith("vllm.entrypoints"):
            return list(words[at + 1 :])
        if "vllm-openai" in word:  # an image whose entry point is the server
            return list(words[at + 1 :])
    is_list = bool(words) and words[0].startswith("--")
    return list(words) if is_list and any(w.partition("=")[0] in KEYS for w in words) else None


def _partition(words: Sequence[str]) -> str | None:
    for word in words:
        if word.startswith(f"{PARTITION}="):
            return word.partition("=")[2]
    return None


# --- reading it ---
def _read(program: Sequence[str], words: list[str], partition: str | None) -> Pasted:
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    model: str | None = None
    if partition:
        settings["parallel.pipeline_partition"] = [_value(n) for n in partition.split(",") if n]
    words = words[: next((at for at, word in enumerate(words) if _ends(word)), len(words))]
    rest = iter(words)
    for word in rest:
        name, has_value, value = word.partition("=")
        if not name.startswith("-"):
            model = model or name
            continue
        name = name.replace("_", "-")
        if name in TURNED:
            key, switched = TURNED[name]
            settings[key] = switched == "true"
        elif name in KEYS:
            text = value if has_value else next(rest, "")
            _set(settings, KEYS[name], text)
            if KEYS[name] == "weights" and not is_read(text):
                unknown.append(f"{name} {text} (planned as published)")
        else:
            unknown.append(name)
    model = settings.pop("model", None) or model
    program = [word for at, word in enumerate(program) if at or word not in _PROMPTS]
    return Pasted(
        model=model,
        settings=settings,
        unknown=tuple(dict.fromkeys(unknown)),
        program=tuple(program),
        arguments=tuple(words),
    )


def _ends(word: str) -> bool:
    """Another command, or a remark."""
    return word in _ENDS or word.startswith("#")


def _set(settings: dict[str, Any], key: str, text: str) -> None:
    if key == "speculative":
        tokens = re.search(r"num_speculative_tokens\W{1,4}(\d{1,3})", text[:2000])
        if tokens:
            settings["scheduler.num_speculative_tokens"] = int(tokens[1])
        return
    settings[key] = "auto" if key == _LENGTH and text in _FITTED else _value(text)


def _value(text: str) -> Any:
    """A number, with a multiple, an exponent or neither; any other word as it is."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    digits, suffix = match[1], match[2]
    if suffix[:1] in ("e", "E"):
        return float(text)
    number = float(digits) if "." in digits else int(digits)
    return int(number * _MULTIPLES[suffix]) if suffix else number
