"""Flags of a pasted line: those that its release refuses, and those that kvpipe does not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.answers.remedies import advice
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.arguments import Arguments, refused_arguments
from kvpipe.engines.base import Engine
from kvpipe.engines.pasted import KEYS
from kvpipe.engines.pasted_line import in_flags
from kvpipe.engines.pasted_weights import kind_needed
from kvpipe.engines.serve_flags import refused_flag

_UNPLANNED = {
    "--cpu-offload-gb": "keeps so many GiB of each card's weights in the host's memory",
    "--swap-space": "lets preempted requests keep their blocks in the host's memory",
    "--enable-lora": "takes room for adapters (model.max_loras)",
}
_BATCH, _WHOLE = "scheduler.max_num_batched_tokens", "--no-enable-chunked-prefill"


def refused_flags(pasted: PastedRequest) -> Mapping[str, str]:
    """Flag -> why the server stops at it. Nothing where a log shows that it took them."""
    version = _version(pasted)
    if pasted.command is None or pasted.log is not None or not version:
        return {}
    found = {flag: refused_flag(flag, version) for flag in pasted.command.flags}
    return {flag: why for flag, why in found.items() if why}


def taken_out(pasted: PastedRequest) -> frozenset[str]:
    """Flags that have no place in a line to run."""
    flags = pasted.command.flags if pasted.command is not None else ()
    unmet = {flag for flag in flags if pasted.unmet and KEYS.get(flag) == "weights"}
    return frozenset({*refused_flags(pasted), *unmet})


def of_checkpoint(pasted: PastedRequest, fits: bool) -> Iterator[Trouble]:
    """fits: without the flag, which is what was planned."""
    if pasted.command is None or not pasted.unmet:
        return
    word = pasted.unmet
    text = (
        f"--quantization {word} reads a checkpoint in {kind_needed(word)}, and "
        f"{pasted.command.model} is not one: no engine converts to it as it loads. Name a "
        "checkpoint of that kind, or leave the flag out (planned so)"
    )
    yield Trouble(text=text, stops=True, change={} if fits else None)


def of_flags(pasted: PastedRequest, fits: bool) -> Iterator[Trouble]:
    """fits: without these flags."""
    found = refused_flags(pasted)
    if not found:
        return
    text = "; ".join(found.values())
    if not any(key.partition(".")[0] == "engine" for key in pasted.prepared.said):
        text += f". vLLM {_version(pasted)} is supposed: say engine=vllm engine.version=... if not"
    yield Trouble(text=text, stops=True, change={} if fits else None)


def of_unplanned(pasted: PastedRequest) -> Iterator[Trouble]:
    """What changes the memory and is not planned: the verdict is without it, and says so."""
    for flag in pasted.command.flags if pasted.command is not None else ():
        if (what := _UNPLANNED.get(flag)) is not None:
            yield Trouble(
                text=f"{flag} is not planned: it {what}; the figures above are without it"
            )


def of_whole_prompts(pasted: PastedRequest) -> Iterator[Trouble]:
    """A batch that was set by hand, smaller than a prompt that may not be cut."""
    command, resolved = pasted.command, pasted.prepared.resolved
    if command is None or _BATCH not in command.settings or _WHOLE not in command.flags:
        return
    asked = Arguments(
        max_num_batched_tokens=resolved.limits.max_num_batched_tokens,
        max_num_seqs=resolved.max_num_seqs,
        dtype="auto",
        compute_capability=None,
        max_model_len=resolved.limits.max_model_len,
        chunked=False,
    )
    for problem in refused_arguments(asked, _version(pasted)):
        change = {problem.key: asked.max_model_len}
        fits = advice(pasted.prepared, change, "") is not None
        yield Trouble(text=in_flags(str(problem)), stops=True, change=change if fits else None)


def unread(pasted: PastedRequest) -> str:
    """Flags that stand for nothing here; those that the release refuses are a trouble."""
    flags = pasted.command.unknown if pasted.command is not None else ()
    left_out = taken_out(pasted)
    named = [flag for flag in flags if flag.partition(" ")[0] not in left_out]
    return f"; not read, and left as they are: {', '.join(named)}" if named else ""


def _version(pasted: PastedRequest) -> str:
    return pasted.prepared.config.plugins["engine"].make(Engine).rules.version
