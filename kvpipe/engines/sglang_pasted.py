"""SGLang's command line as people paste it -> settings: those flags that stand for one of ours.

Source: the server's own arguments, release 0.5.23. The other flags are kept by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from kvpipe.engines.pasted import LONGEST, Pasted
from kvpipe.engines.pasted_weights import is_read
from kvpipe.text.secrets import masked_words

_KEYS = {
    "--model-path": "model",
    "--model": "model",
    "--tp": "parallel.tensor_parallel_size",
    "--tp-size": "parallel.tensor_parallel_size",
    "--tensor-parallel-size": "parallel.tensor_parallel_size",
    "--pp-size": "parallel.pipeline_parallel_size",
    "--pipeline-parallel-size": "parallel.pipeline_parallel_size",
    "--dp": "parallel.data_parallel_size",
    "--dp-size": "parallel.data_parallel_size",
    "--data-parallel-size": "parallel.data_parallel_size",
    "--context-length": "scheduler.max_model_len",
    "--max-running-requests": "scheduler.max_num_seqs",
    "--chunked-prefill-size": "scheduler.max_num_batched_tokens",
    "--mem-fraction-static": "engine.mem_fraction_static",
    "--page-size": "engine.page_size",
    "--swa-full-tokens-ratio": "engine.swa_full_tokens_ratio",
    "--mamba-full-memory-ratio": "engine.mamba_full_memory_ratio",
    "--max-mamba-cache-size": "engine.max_mamba_cache_size",
    "--kv-cache-dtype": "cache.cache_dtype",
    "--dtype": "model.dtype",
    "--quantization": "weights",
}
_SWITCHES: dict[str, tuple[str, bool]] = {
    "--disable-radix-cache": ("cache.enable_prefix_caching", False),
    "--disable-cuda-graph": ("engine.cuda_graphs", False),
}
# Its words -> ours.
_WORDS = {"half": "float16", "float": "float32", "fp8_e4m3": "fp8", "bf16": "bfloat16"}
_NUMBER = re.compile(r"[0-9]{1,12}|[0-9]{0,6}\.[0-9]{1,9}")
_ENDS = ("&&", "|", ";", "&", ">", ">>", "2>&1")


def read_sglang(text: str) -> Pasted | None:
    """The last such command in the text, its secrets masked; None where there is none."""
    found = None
    for line in text[:LONGEST].replace("\\\r\n", " ").replace("\\\n", " ").split("\n"):
        words = list(masked_words(_split(line)))
        if (start := _start(words)) is not None:
            found = _read(words[:start], words[start:])
    return found


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that does not end
        return line.split()


def _start(words: Sequence[str]) -> int | None:
    """Where the arguments begin."""
    for at, word in enumerate(words):
        if word == "sglang.launch_server" and words[at - 1 : at] == ["-m"]:
            return at + 1
        is_program = word.rpartition("/")[2] == "sglang"
        if is_program and words[at + 1 : at + 2] in (["serve"], ["launch_server"]):
            return at + 2
    return None


def _read(program: Sequence[str], words: Sequence[str]) -> Pasted:
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    ends = (at for at, word in enumerate(words) if word in _ENDS or word.startswith("#"))
    words = words[: next(ends, len(words))]
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _SWITCHES:
            key, turned = _SWITCHES[name]
            settings[key] = turned
        elif name in _KEYS:
            text = value if equals else next(rest, "")
            if text.startswith("-"):  # -1: none, which no setting of ours says
                unknown.append(f"{name} {text}")
                continue
            settings[_KEYS[name]] = _value(text)
            if _KEYS[name] == "weights" and not is_read(text):
                unknown.append(f"{name} {text} (planned as published)")
        elif name.startswith("--"):
            unknown.append(name)
    model = settings.pop("model", None)
    return Pasted(
        model=None if model is None else str(model),
        program=tuple(program),
        arguments=tuple(words),
        settings=settings,
        unknown=tuple(dict.fromkeys(unknown)),
        engine="sglang",
    )


def _value(text: str) -> Any:
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return _WORDS.get(text, text)
