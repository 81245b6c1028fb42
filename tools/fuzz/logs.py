"""Logs at random: whatever a file holds, its figures are read or it is refused in a line, in time
that grows with its length."""

from __future__ import annotations

import io
import json
from random import Random

from fuzz.mutated import ODD_BYTES, content
from kvpipe.engines.pasted import read_pasted
from kvpipe.errors import ConfigError
from kvpipe.logs.contradictions import contradictions
from kvpipe.logs.reading import ENGINES, TRIGGERS, LogReader, read_stream
from kvpipe.logs.text import SPAN

_PHRASES = [phrase for engine in ENGINES for phrase in engine.phrases]
_STARTS = [words for engine in ENGINES for words in (*engine.starts, *engine.errors)]
_FIGURES = (
    "4.00",
    "4,096",
    "-1",
    "0",
    "1e9",
    "9" * 200,
    "." * 120,
    "auto",
    "True",
    "v0.1.2",
    "'x'",
)
_AFTER = (" GiB", " MiB", " tokens", "GB", "%", ", ", "", "\x1b[0m", "' ")
_BEFORE = ("", "(Worker_TP1 pid=7) ", "(EngineCore_DP1 pid=1) ", "\x1b[36m", "vllm-1  | ", "[TP0] ")
_SERVE = (
    "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8k -tp 2",
    'CMD ["vllm", "serve", "m", "--block-size=16"]',
    "VLLM_PP_LAYER_PARTITION=1,x vllm serve m -pp 2",
    "  - --kv-cache-dtype=fp8",
    "--gpu-memory-utilization 0.9 '",
)


def at_random(seed: Random) -> bytes:
    lines = [_line(seed) for _ in range(seed.randint(1, 12))]
    text = seed.choice(("\n", "\n", "\r\n", "\r", " ")).join(lines)
    made = text.encode(seed.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1")), "replace")
    return content(made, seed) if seed.random() < 0.5 else made


def _line(seed: Random) -> str:
    kind = seed.randrange(10)
    if kind == 0:
        return seed.choice(_SERVE)
    if kind == 1:
        return seed.choice(ODD_BYTES).decode("latin-1") * seed.choice((1, 40, 400))
    if kind == 2:
        return seed.choice(_STARTS) + seed.choice(_FIGURES)
    phrase = seed.choice(_PHRASES)
    said = f"{phrase.within} {phrase.words}{seed.choice(_FIGURES)}{seed.choice(_AFTER)}"
    if phrase.before:
        said = f"{phrase.within} {seed.choice(_FIGURES)} GiB{phrase.words}"
    line = seed.choice(_BEFORE) + said * seed.choice((1, 1, 1, 2, 60))
    if seed.random() < 0.2:
        key = seed.choice(("log", "message", "record", "textPayload"))
        inside = {key: line} if seed.random() < 0.7 else {"record": {"event": {key: line}}}
        line = json.dumps(inside)
    return line


def wrong_with(made: bytes) -> str:
    """ "" where it ends as it should."""
    try:
        log = read_stream(io.BytesIO(made), "the log")
        list(contradictions(log))
    except ConfigError as error:
        if any("\n" in line or not line.isprintable() for line in error.lines()):
            return f"a complaint of several lines: {error}"
    text = made.decode("utf-8", "replace")
    read_pasted(text)
    return _steps(text)


def _steps(text: str) -> str:
    reader = LogReader()
    for number, line in enumerate(text.split("\n"), 1):
        before = reader.steps
        try:
            reader.feed(number, line)
        except ValueError:
            return ""
        if reader.steps - before > (len(line) + 1) * (3 * len(TRIGGERS) + 4 * SPAN * len(_PHRASES)):
            return f"{reader.steps - before:,} steps for a line of {len(line):,} characters"
    return ""
