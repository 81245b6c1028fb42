"""A command line as people say it -> Hydra overrides, which are all that comes after.

    kvpipe llama-3.1-70b --on 2xh100 --context 32k --kv fp8 --users 16
    kvpipe model=llama3_70b device=h100_80gb parallel.tensor_parallel_size=2 \\
        scheduler.max_model_len=32768 cache.cache_dtype=fp8 want.requests=16

are one request (`--cfg job` shows it). A flag, a short key and a word each stand for one override.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from kvpipe.errors import ConfigError, Problem
from kvpipe.front.pasted_words import is_pasted_line, pasted_to_one_word, without_secrets
from kvpipe.plugins import COMMANDS
from kvpipe.request.bounded_words import check_words
from kvpipe.request.nicknames import hub_name_is_shipped, is_name_of, near_names, option_named
from kvpipe.request.typed import Typed

FLAGS = {
    "--on": "device",
    "--context": "scheduler.max_model_len",
    "--kv": "cache.cache_dtype",
    "--weights": "weights",
    "--users": "want.requests",
}
SHORT_KEYS = {
    "tp": "parallel.tensor_parallel_size",
    "pp": "parallel.pipeline_parallel_size",
    "dp": "parallel.data_parallel_size",
    "engines": "command.engines",
    "folder": "command.folder",
}
_TP, _PP = SHORT_KEYS["tp"], SHORT_KEYS["pp"]
# Of Hydra's own flags, those that are spelt like one of ours.
_HYDRAS = ("--config-name", "--config-path", "--config-dir", "--version", "--info", "--run")
_COUNTED = re.compile(r"([0-9]+) ?[x*] ?(.+)", re.IGNORECASE)
_MOST_CARDS = 9_999
_STAGES = re.compile(r"[1-9][0-9]{0,3}")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # in Hydra's grammar, without quotes
_FILES = (".json", ".gguf")


def flags_to_words(arguments: Sequence[str]) -> list[str]:
    """Our own flags (`--on h100`, `--on=h100`) become settings; Hydra's are left as they are, and
    another program's whole line is one word."""
    words: list[str] = []
    said: dict[str, str] = {}
    rest = iter(pasted_to_one_word(arguments, tuple(FLAGS)))
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag not in FLAGS:
            _check_flag(flag)
            words.append(argument)
            continue
        given = value if equals else next(rest, None)
        if not given or (given.startswith("-") and not given[1:2].isdigit()):
            raise ConfigError(Problem(flag, "a value", repr(given or ""), f"sets {FLAGS[flag]}"))
        said[flag] = given
        words.append(f"{FLAGS[flag]}={given}")
    _check_once(said, words)
    return words


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
    match = _COUNTED.fullmatch(devices)
    return Typed(said=said, card=match[2] if match else devices, is_counted=match is not None)


def _check_flag(flag: str) -> None:
    """ConfigError for one that is nearly one of ours; another is Hydra's to know."""
    if not flag.startswith("--") or flag in _HYDRAS:
        return
    from difflib import get_close_matches  # only where something may be wrong

    if near := get_close_matches(flag, FLAGS):
        hint = f"did you mean {near[0]}?"
        raise ConfigError(Problem("command line", "a known flag", f"'{flag}'", hint))


def _check_once(said: Mapping[str, str], words: Sequence[str]) -> None:
    """ConfigError where a flag says one thing and another word of the same setting another."""
    for flag, value in said.items():
        others = [word for word in words if word.partition("=")[0] == FLAGS[flag]]
        if wrong := [word for word in others if word.partition("=")[2] != value]:
            got = f"'{value}' and {wrong[0]}"
            raise ConfigError(Problem(flag, f"to be said once (it sets {FLAGS[flag]})", got))


def words_to_overrides(words: Sequence[str], config_dir: str | None = None) -> list[str]:
    """Every word as Hydra overrides; ConfigError for one that means nothing. config_dir: of option
    files of the user's own, whose models are words, too."""
    check_words(words)
    overrides: list[str] = []
    model_word, command, own = "", "", ""
    for position, word in enumerate(_joined(words)):
        if is_setting(word) and not (position == 1 and own and is_pasted_line(word, command)):
            overrides.append(word)
        elif position == 0 and (command := word.replace("-", "_")) in COMMANDS:
            overrides.append(f"command={command}")
            own = getattr(COMMANDS.get(command), "word", "")
        elif position == 1 and own:
            overrides.append(f"{own}={_quoted(without_secrets(word, command))}")
        elif model := _model(word) or _own_model(word, config_dir):
            if model_word:
                raise ConfigError(_two_models(model_word, word))
            model_word = word
            overrides += model
        else:
            raise ConfigError(_meaningless(word))
    _check_one_model(model_word, words, config_dir)
    return list(_spelled_out(overrides))


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


def _check_one_model(word: str, words: Sequence[str], config_dir: str | None) -> None:
    """ConfigError where model=... says another than the word that names one ("": none does)."""
    chosen = (_model(word) or _own_model(word, config_dir))[0] if word else ""
    for other in words if word else ():
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
    return Problem(
        "command line",
        f"a command ({', '.join(COMMANDS.names())}), a model (a preset, org/name, a folder, a "
        "config.json), group=choice or key=value",
        f"'{word}'",
        f"{hint}`kvpipe --help model` lists the presets",
    )


def _spelled_out(overrides: Sequence[str]) -> Iterator[str]:
    """Short keys written whole, devices and models by their files' names, `2xh100` as two ranks."""
    keys = {override.partition("=")[0] for override in overrides}
    named = {SHORT_KEYS.get(key, key): value for key, value in _pairs(overrides)}
    stages, copies = (_number(named.get(key, "1")) for key in (_PP, SHORT_KEYS["dp"]))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            yield override
        elif key in SHORT_KEYS:
            yield f"{SHORT_KEYS[key]}={value}"
        elif key == "device":
            cards, value = _counted(value)
            yield f"device={_by_file_name('device', value)}"
            if cards is not None and not keys & {"tp", _TP}:
                yield f"{_TP}={_ranks(cards, stages, copies)}"
            elif cards is not None:
                _check_cards(cards, _number(named.get(_TP, "")) * stages * copies)
        elif key == "model":
            yield f"model={_by_file_name('model', value)}"
        else:
            yield override


def _pairs(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for override in overrides:
        key, _, value = override.partition("=")
        yield key, value


def _counted(devices: str) -> tuple[int | None, str]:
    """`2xh100,2xh200` -> 2, "h100,h200"; None where no card is counted."""
    counted = [_COUNTED.fullmatch(name) for name in devices.split(",")]
    counts = {int(match[1][:9]) if match else None for match in counted}
    if counts == {None}:
        return None, devices
    (count, *others) = sorted(counts, key=str)
    if others or count is None:
        knob = "sweep parallel.tensor_parallel_size instead"
        raise ConfigError(Problem("device", "one number of cards", f"'{devices}'", knob))
    if not 0 < count <= _MOST_CARDS:
        raise ConfigError(Problem("device", f"1 to {_MOST_CARDS:,} cards", f"'{devices}'"))
    return count, ",".join(match[2] for match in counted if match)


def _number(said: str) -> int:
    """0 where it is no number, but a sweep's, or wrong."""
    return int(said) if _STAGES.fullmatch(said) else 0


def _ranks(cards: int, stages: int, copies: int) -> int:
    """Tensor parallel over all cards, or over those of each pipeline stage of each copy."""
    parts = max(1, stages) * max(1, copies)
    if cards % parts:
        knob = f"{_PP}={stages} needs a multiple of {parts} cards"
        if copies > 1:
            knob = f"PP x DP = {parts} needs a multiple of {parts} cards"
        raise ConfigError(Problem("device", f"cards for {parts} stages", f"{cards} cards", knob))
    return cards // parts


def _check_cards(cards: int, ranks: int) -> None:
    """ConfigError where the ranks that are named are not as many as the cards that are counted."""
    if ranks not in (0, cards):
        knob = f"leave one of the two out, or say {ranks}x"
        raise ConfigError(Problem("device", f"{ranks} cards, as TP x PP x DP", f"{cards}", knob))


def _by_file_name(group: str, said: str) -> str:
    """Every name of a sweep by its option file; what means nothing is left for Hydra to refuse."""
    return ",".join(option_named(group, name.strip()) or name for name in said.split(","))


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
