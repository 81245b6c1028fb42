"""A command line as people say it -> Hydra overrides, which are all that comes after.

    kvpipe llama-3.1-70b --on 2xh100 --context 32k --kv fp8 --users 16
    kvpipe model=llama3_70b device=h100_80gb parallel.tensor_parallel_size=2 \\
        scheduler.max_model_len=32768 cache.cache_dtype=fp8 want.requests=16

are one request (`--cfg job` shows it). A flag, a short key and a word each stand for one override.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvpipe.errors import ConfigError, Problem, problems_of
from kvpipe.front.counted_cards import COUNTED, counted, ranks_said
from kvpipe.front.pasted_words import is_pasted_line, without_secrets
from kvpipe.front.read_words import ReadWords
from kvpipe.front.short_keys import FLAGS, SHORT_KEYS
from kvpipe.plugins import COMMANDS
from kvpipe.request.bounded_words import check_words
from kvpipe.request.nicknames import hub_name_is_shipped, is_name_of, near_names, option_named
from kvpipe.request.typed import Typed

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # in Hydra's grammar, without quotes
_FILES = (".json", ".gguf")
_AS_MODELS = re.compile(r"[0-9]|[a-z][-_][a-z]")  # what no command is spelt like


def typed_words(arguments: Sequence[str]) -> Typed:
    """By which word each setting of the line was said, and its card."""
    said, devices = {}, ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        word, equals, value = argument.partition("=")
        key = FLAGS.get(word) or SHORT_KEYS.get(word, word)
        if word not in FLAGS and not equals:
            continue
        said[key] = word
        if key == "device":
            devices = value if equals else following
    match = COUNTED.fullmatch(devices)
    return Typed(said=said, card=match[2] if match else devices, is_counted=match is not None)


def words_to_overrides(words: Sequence[str], config_dir: str | None = None) -> list[str]:
    """Every word as Hydra overrides; ConfigError with all that mean nothing. config_dir: of option
    files of the user's own, whose models are words, too."""
    return read_words(words, config_dir).right()


def read_words(
    words: Sequence[str], config_dir: str | None = None, sweeps: bool = False
) -> ReadWords:
    """Every word as Hydra overrides, and all that is wrong with them. sweeps: whether each of
    several values is a job of its own."""
    check_words(words)
    problems = list(_said_twice(words))
    spoken: list[str] = []
    models: list[str] = []
    command, own = "", ""
    for position, word in enumerate(_joined(words)):
        if is_setting(word) and not (position == 1 and own and is_pasted_line(word, command)):
            spoken.append(word)
        elif position == 0 and (command := word.replace("-", "_")) in COMMANDS:
            spoken.append(f"command={command}")
            own = getattr(COMMANDS.get(command), "word", "")
        elif position == 1 and own:
            spoken.append(f"{own}={_quoted(without_secrets(word, command))}")
        else:
            problems += _add_model(word, config_dir, models, spoken)
    problems += problems_of(lambda: _check_one_model(models, words, config_dir))
    return _spelled_out(spoken, problems, sweeps)


def _add_model(
    word: str, config_dir: str | None, models: list[str], spoken: list[str]
) -> Sequence[Problem]:
    """The word as the one model of a line: what it means is added, or what is wrong returned."""
    try:
        means = _model(word) or _own_model(word, config_dir)
    except ConfigError as error:
        return error.problems
    if not means:
        return [_meaningless(word)]
    if models:
        return [_two_models(models[0], word)]
    models.append(word)
    spoken += means
    return ()


def _said_twice(words: Sequence[str]) -> Iterator[Problem]:
    """Where a setting is said short and whole, and each says another value. Said twice alike the
    last one counts, as in every Hydra program."""
    first: dict[str, tuple[str, str]] = {}
    for said, value in _pairs(word for word in words if is_setting(word)):
        key = SHORT_KEYS.get(said, said)
        other, wanted = first.setdefault(key, (said, value))
        if other != said and wanted != value:
            yield Problem(key, "to be said once", f"{other}={wanted} and {said}={value}")


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether a request that came to nothing is answered in JSON: read from its words, since what
    is wrong with it may be why it has no config."""
    return bool({"report=json", "report.name=json"} & set(words))


def is_setting(word: str) -> bool:
    """An override in Hydra's grammar, not a word. A path may have a `=` in it too."""
    if word.startswith(("/", "./", "../")):
        return False
    return "=" in word or word.startswith("+") or (word.startswith("~") and "/" not in word)


def _joined(words: Sequence[str]) -> list[str]:
    """With the words after a command that takes several (`explain null block`) as one."""
    command = words[0].replace("-", "_") if words else ""
    if command not in COMMANDS or not getattr(COMMANDS.get(command), "joins_words", False):
        return list(words)
    said = [word for word in words[1:] if not is_setting(word)]
    return [words[0], *([" ".join(said)] if said else []), *filter(is_setting, words[1:])]


def _check_one_model(models: Sequence[str], words: Sequence[str], config_dir: str | None) -> None:
    """ConfigError where model=... says another than the word that names one (none: none does)."""
    for word in models:
        chosen = (_model(word) or _own_model(word, config_dir))[0]
        for other in words:
            key, _, value = other.partition("=")
            if key == "model" and f"model={_by_file_name('model', value)}" != chosen:
                raise ConfigError(_two_models(word, other))


def _two_models(first: str, second: str) -> Problem:
    knob = "say one of the two; `kvpipe -m model=A,B` plans each"
    return Problem("command line", "one model", f"two, '{first}' and '{second}'", knob)


def _model(word: str) -> list[str]:
    """`llama-3.1-70b`, `org/name`, a folder or a file: what is served."""
    is_file = word.endswith(_FILES) or os.path.isdir(word)
    if not is_file and (shipped := _shipped(word)):
        other = "/" in word and not is_name_of(shipped, word)
        return [f"model={shipped}", *([f"model.name={_quoted(word)}"] if other else [])]
    if is_file or "/" in word:
        from kvpipe.models.config_file import is_path

        key = "path" if is_path(word) else "repo"
        return ["model=hf", f"model.{key}={_quoted(word)}"]
    return []


def _own_model(word: str, config_dir: str | None) -> list[str]:
    """By the name of its option file."""
    if not config_dir or os.path.basename(word) != word:
        return []
    is_there = os.path.isfile(os.path.join(config_dir, "model", f"{word}.yaml"))
    return [f"model={word if _PLAIN.fullmatch(word) else _quoted(word)}"] if is_there else []


def _shipped(word: str) -> str | None:
    return hub_name_is_shipped(word) if "/" in word else option_named("model", word, may_begin=True)


def _meaningless(word: str) -> Problem:
    near = near_names("model", word)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    if _AS_MODELS.search(word):
        knob = (
            "`kvpipe --help model` lists the presets; any other model is its Hub id (org/name) or "
            "the folder of its config.json (model.probe=true where its type is unknown)"
        )
    else:
        knob = f"the commands are {', '.join(COMMANDS.names())}; `kvpipe --help model` lists the "
        knob += "presets"
    return Problem(
        "command line",
        "a command, a model (a preset, org/name, a folder, a config.json), group=choice or "
        "key=value",
        f"'{word}'",
        f"{hint}{knob}",
    )


def _spelled_out(spoken: Sequence[str], problems: list[Problem], sweeps: bool) -> ReadWords:
    """Short keys written whole, devices and models by their files' names, `2xh100` as two ranks."""
    named = {SHORT_KEYS.get(key, key): value for key, value in _pairs(spoken)}
    chooses = named.get("command") == "find" and not sweeps
    written: list[str] = []
    for override in spoken:
        try:
            written += _spelled(override, named, chooses)
        except ConfigError as error:
            problems += error.problems
    return ReadWords(words=tuple(written), problems=tuple(problems))


def _spelled(override: str, named: Mapping[str, str], chooses: bool) -> list[str]:
    """chooses: whether several cards are those to choose from."""
    key, equals, value = override.partition("=")
    if equals and key in SHORT_KEYS:
        return [f"{SHORT_KEYS[key]}={value}"]
    if equals and key == "model":
        return [f"model={_by_file_name('model', value)}"]
    if not equals or key != "device":
        return [override]
    cards, value = counted(value)
    devices = _by_file_name("device", value)
    ranks = [] if cards is None else ranks_said(cards, named)
    several = chooses and "," in devices
    return [f"want.device=[{devices}]" if several else f"device={devices}", *ranks]


def _pairs(overrides: Iterable[str]) -> Iterator[tuple[str, str]]:
    for override in overrides:
        key, _, value = override.partition("=")
        yield key, value


def _by_file_name(group: str, said: str) -> str:
    """Every name of a sweep by its option file; what means nothing is left for Hydra to refuse."""
    return ",".join(option_named(group, name.strip()) or name for name in said.split(","))


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
