"""What somebody pasted (a log, a command line, both) -> the request that it stands for.

What the user says on kvpipe's own command line wins; then what the engine printed; then the pasted
command. A model or a device that nothing names is asked for, never guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kvpipe.answers.log_settings import usable
from kvpipe.answers.pasted_checkpoint import unmet_word
from kvpipe.engines.drafting import drafting_of
from kvpipe.engines.other_servers import server_of_another
from kvpipe.engines.pasted import Pasted, image_release, read_pasted
from kvpipe.engines.pasted_weights import weights_of
from kvpipe.engines.server_lines import read_server_line
from kvpipe.engines.versions import NEWEST, parse_version, written
from kvpipe.errors import ConfigError, Problem
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.lines import encoding_of, no_log, open_log
from kvpipe.logs.reading import NO_FIGURES, read_file
from kvpipe.models.config_file import has_config
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.changed import changed
from kvpipe.request.confdir import shipped_cards, shipped_option
from kvpipe.request.nicknames import hub_name_is_shipped, is_name_of, option_named
from kvpipe.request.schema import shown
from kvpipe.text.quantities import parse_size

HEAD = 2**17  # bytes of the file in which a command line is looked for
_WANTED = "a file with an engine's log or a command line"
_LENGTH = "scheduler.max_model_len"
# A machine's memory is as large as some card's.
_ON_A_CPU = re.compile(r"\bdevice_config=cpu\b|\bCPU KV cache size: ")
STAND_IN = "h100_80gb"  # a device that refuses no argument, for what else there is to say
NEAR = 0.012  # share by which a card's printed memory differs from the shipped figure
# Endings that leave the shape of a model as it is.
_SAME_SHAPE = re.compile(
    r"(?:[-_](?:instruct|it|chat|hf|base|pt|awq|gptq|fp8|w8a8|int4|int8|quantized|dynamic|"
    r"2407|v0\.[0-9]|[48]bit))+$"
)


class TooLittleSaid(ConfigError):
    """A model or a device that nothing names; log: what was pasted says something without them."""

    def __init__(self, problems: list[Problem], log: EngineLog | None) -> None:
        super().__init__(problems)
        self.log = log


@dataclass(frozen=True, kw_only=True)
class PastedRequest:
    """log, command: what was found (None: not there). prepared: the request they stand for. unmet:
    the word of `--quantization` that cannot read the checkpoint, which is planned as published."""

    prepared: Prepared
    log: EngineLog | None
    command: Pasted | None
    unmet: str = ""


def read_pasted_request(prepared: Prepared, path: str) -> PastedRequest:
    """prepared: the request without the file, which says what the user said. TooLittleSaid with
    what is missing."""
    with _of_the_file():
        text = _head(path)
        log, command = _log(path), read_pasted(text)
    if log is None and command is None:
        command = read_server_line(text)
    if log is None and command is None:
        raise ConfigError(_nothing_read(text, path))
    raw = _filled(prepared, log, command, text, path)
    said = any(_is_said(prepared.said, section) for section in ("model", "weights"))
    unmet = "" if said or log is not None else unmet_word(raw, command)
    if unmet:
        raw["weights"] = shipped_option("weights", "published")
    made = prepare(raw, prepared.raw)
    if command is not None and _takes_the_context(command, log, prepared.said):
        # A server that is told no length takes the model's, and stops where that does not fit.
        length = max(1, made.resolved.model.context_length // command.shared_by)
        made = prepare(changed(raw, {_LENGTH: length}), prepared.raw)
    made = replace(made, said=prepared.said)
    return PastedRequest(prepared=made, log=log, command=command, unmet=unmet)


def _nothing_read(text: str, path: str) -> Problem:
    if (other := server_of_another(text)) is not None:
        engine, option = other
        knob = f"kvpipe run engine={option} plans it, and its log is read" if option else ""
        wanted = (
            "a line of vLLM's, SGLang's, llama.cpp's or TensorRT-LLM's server: the flags of others "
            "are not read"
        )
        return Problem("command.path", wanted, f"one of {engine}", knob)
    wanted = "an engine's log with its memory lines, or a line such as vllm serve MODEL ..."
    return Problem("command.path", wanted, f"neither in {path}")


def _takes_the_context(command: Pasted, log: EngineLog | None, said: frozenset[str]) -> bool:
    """Nobody states a length: not the user, not the line, not the log of its start."""
    stated = {*said, *command.settings, *_of_log(log)}
    return not stated & {_LENGTH, "scheduler"}


@contextmanager
def _of_the_file() -> Iterator[None]:
    """What is wrong with the file is a problem of the word that names it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([replace(each, key="command.path", expected=_WANTED, knob="")
                           if each == no_log(each.got).problems[0]
                           else replace(each, key="command.path")
                           for each in error.problems]) from error  # fmt: skip


def _head(path: str) -> str:
    stream, _ = open_log(path)
    try:
        with stream:
            start = stream.read(HEAD)
    except OSError as error:
        raise no_log(f"{shown(path)} ({error.strerror})") from error
    return start.decode(encoding_of(start), errors="replace")


def _log(path: str) -> EngineLog | None:
    try:
        return read_file(path)
    except ConfigError as error:
        if error.problems[0].got == NO_FIGURES:
            return None
        raise


# --- the request ---
def _filled(
    prepared: Prepared, log: EngineLog | None, command: Pasted | None, text: str, path: str
) -> dict[str, Any]:
    raw = dict(prepared.raw)
    said = prepared.said
    problems: list[Problem] = []
    if not _is_said(said, "model"):
        raw["model"] = _model(log, command, problems)
        if not problems and not _is_said(said, "weights"):
            raw["weights"] = _weights(log, command)
    has_model = not problems
    if not _is_said(said, "device"):
        raw["device"] = _device(log, text, problems)
    if not _is_said(said, "engine"):
        raw["engine"] = _engine(log, command, text)
    if not _is_said(said, "scheduler"):
        raw["scheduler"] = shipped_option("scheduler", "default") | _of_the_engine()
    if not _is_said(said, "profiling"):
        raw["profiling"] = _profiling(log, path)
    settings = {**_of_command(command), **_of_log(log)}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if key not in said and name in raw.get(section, {}):
            raw[section] = {**raw[section], name: value}
    raw["backend"] = shipped_option("backend", "meta")
    if problems:
        others = _others(raw, prepared.raw) if has_model else ()
        raise TooLittleSaid([*problems, *others], log)
    return raw


def _others(raw: Mapping[str, Any], fallback: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong beside the missing device; fallback: for sections of a wrong shape."""
    try:
        prepare(raw, fallback)
    except ConfigError as error:
        yield from (each for each in error.problems if not each.key.startswith("device"))


def _is_said(said: frozenset[str], section: str) -> bool:
    return any(key == section or key.startswith(f"{section}.") for key in said)


def _of_the_engine() -> dict[str, Any]:
    """What a server sets when nobody does."""
    return {
        "max_num_batched_tokens": "auto",
        "max_num_seqs": "auto",
        "max_concurrent_batches": "auto",
    }


def _engine(log: EngineLog | None, command: Pasted | None, text: str) -> dict[str, Any]:
    """Of the release that a log names, or the image of a pasted line; else the newest."""
    if command is not None and command.engine and log is None:
        return shipped_option("engine", command.engine)
    version = (log.version if log is not None else None) or image_release(text)
    try:
        release = parse_version(f"{version}.0" if version.count(".") == 1 else version)
    except ValueError:
        release = NEWEST
    return shipped_option("engine", "vllm") | {"version": written(release)}


def _profiling(log: EngineLog | None, path: str) -> dict[str, Any]:
    gives = log is not None and (log.per_rank("available_kv") or log.per_rank("pools"))
    if gives or (log is not None and log.left_nothing):
        return {"name": "log", "path": path}
    return shipped_option("profiling", "estimate")


def _of_command(command: Pasted | None) -> dict[str, Any]:
    """Its settings, and what drafts, where that is in the model's file or a folder here."""
    if command is None:
        return {}
    drafting = drafting_of(command.arguments)
    place = drafting.place if drafting is not None and not drafting.is_looked_up else ""
    is_known = place == "mtp" or (bool(place) and has_config(place))
    return {**command.settings, **({"model.draft": place} if is_known else {})}


def _of_log(log: EngineLog | None) -> dict[str, Any]:
    """Its settings, its share of the card, and what others held of it."""
    if log is None:
        return {}
    settings = usable(log)
    if log.utilization is not None and log.engine == "vllm":
        settings["cache.gpu_memory_utilization"] = log.utilization
    if log.held_by_others:
        settings["profiling.other_instances_bytes"] = log.held_by_others
    return settings


def _model(
    log: EngineLog | None, command: Pasted | None, problems: list[Problem]
) -> dict[str, Any]:
    names = [command.model if command else None, log.model if log else None]
    for name in filter(None, names):
        # A folder that is there is that model, whatever shipped one its name is like.
        is_here = os.path.exists(name) and has_config(name)  # False of what is no name, too
        shape = command.shape if command is not None and name == command.model else ""
        if not is_here and (preset := _preset(shape or name)):
            return shipped_option("model", preset)
        if is_here or has_config(name):
            return {**shipped_option("model", "hf"), "path": name}
    got = f"'{next(filter(None, names))}'" if any(names) else "none that the file names"
    knob = "say model=<preset>, a folder or org/name after the file"
    problems.append(Problem("model", "a model whose shape kvpipe has", got, knob))
    return {}


def _weights(log: EngineLog | None, command: Pasted | None) -> dict[str, Any]:
    """As the command or the checkpoint's name says; a name that kvpipe ships, or a folder with a
    config.json, has its own."""
    word = str(command.settings.get("weights", "")) if command is not None else ""
    names = [command.model if command else None, log.model if log else None]
    name = next(filter(None, names), "")
    if name.endswith(".gguf") and has_config(name):  # a file that is there has its own sizes
        return shipped_option("weights", "published")
    preset = hub_name_is_shipped(name)
    is_itself = (preset is not None and is_name_of(preset, name)) or has_config(name)
    option = weights_of(word or None, "" if is_itself else name)
    return shipped_option("weights", option or "published")


def _preset(name: str) -> str | None:
    """The shipped model of that Hub name, or with the same last part but for endings that leave the
    shape alone."""
    last = name.rstrip("/").rpartition("/")[2]
    plain = _SAME_SHAPE.sub("", last.lower())
    try:
        return (
            hub_name_is_shipped(name)
            or option_named("model", last)
            or option_named("model", plain)
            or option_named("model", plain.removeprefix("meta-"))  # Meta-Llama-3.1-8B
        )
    except ConfigError:  # a name that fits two presets is none
        return None


def _device(log: EngineLog | None, text: str, problems: list[Problem]) -> dict[str, Any]:
    if _ON_A_CPU.search(text):
        return shipped_option("device", "cpu")
    total = log.least("total") if log is not None else None
    if total is not None and (name := device_of(total.num_bytes)):
        return shipped_option("device", name)
    for name in _devices():
        words = name.replace("_", "[ _-]?")
        if re.search(rf"\b{words}\b", text[:HEAD], re.IGNORECASE):
            return shipped_option("device", name)
    knob = "say --on CARD, such as --on h100: with it, what makes it fit and the line to run follow"
    problems.append(Problem("device", "a device, which the file does not name", "nothing", knob))
    return shipped_option("device", STAND_IN)


def device_of(total_bytes: int) -> str | None:
    """The shipped accelerator whose memory is nearest, if it is near."""
    sizes = {name: size for name, size in _devices().items()}
    name = min(sizes, key=lambda each: abs(sizes[each] - total_bytes))
    return name if abs(sizes[name] - total_bytes) <= NEAR * total_bytes else None


@cache
def _devices() -> Mapping[str, int]:
    options = {name: shipped_option("device", name) for name in shipped_cards()}
    return {name: int(parse_size(option["memory_bytes"])) for name, option in options.items()}
