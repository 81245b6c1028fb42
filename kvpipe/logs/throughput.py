"""What engines print of their own speed while they serve: a sample a line.

vLLM     Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 42.3 tokens/s, Running: 1
         reqs, ..., GPU KV cache usage: 1.2%
SGLang   Decode batch. #running-req: 2, #token: 27373, token usage: 0.09, gen throughput (token/s):
         33.38
llama.cpp  prompt eval time = 50.00 ms / 512 tokens ( ... )
           eval time = 1234.56 ms / 127 runs ( 9.72 ms per token, 102.87 tokens per second)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvpipe.logs.text import Text

_NUMBER = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)")
_MOST = 1e9  # tokens a second: beyond any


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """users: requests that decoded. tokens_per_s: of all of them. What is printed of their lengths:
    tokens (of all together), else usage (share of the pool), else neither. steady: nothing else was
    computed meanwhile, as far as the line says."""

    line: int
    engine: str
    users: int
    tokens_per_s: float
    tokens: int | None = None
    usage: float | None = None
    steady: bool = True


def throughputs(lines: Iterable[tuple[int, str]]) -> Iterator[Throughput]:
    """lines: (number, text). A vLLM line is of the time since the one before: it is steady where
    that one had as many requests, too."""
    before: Throughput | None = None
    prompt = 0  # tokens, of the llama.cpp answer that comes next
    for number, line in lines:
        text = Text(line)
        prompt = _prompt(text) or prompt
        found = _vllm(text, number) or _sglang(text, number) or _llama_cpp(text, number, prompt)
        if found is None:
            continue
        if _counts(found, before):
            yield found
        before = found


def _counts(found: Throughput, before: Throughput | None) -> bool:
    if not found.steady or not found.users or not 0 < found.tokens_per_s < _MOST:
        return False
    return found.engine != "vLLM" or (before is not None and before.users == found.users)


def _vllm(text: Text, number: int) -> Throughput | None:
    speed = _after(text, "Avg generation throughput:")
    users = _after(text, "Running:")
    if speed is None or users is None:
        return None
    usage = _after(text, "GPU KV cache usage:")
    return Throughput(
        line=number,
        engine="vLLM",
        users=int(users),
        tokens_per_s=speed,
        usage=None if usage is None else usage / 100,
        steady=not _after(text, "Avg prompt throughput:"),
    )


def _sglang(text: Text, number: int) -> Throughput | None:
    speed = _after(text, "gen throughput (token/s):")
    users = _after(text, "#running-req:")
    if speed is None or users is None:
        return None
    tokens = _after(text, "#token:")
    if tokens is None:
        tokens = _after(text, "#full token:")
    return Throughput(
        line=number,
        engine="SGLang",
        users=int(users),
        tokens_per_s=speed,
        tokens=None if tokens is None else int(tokens),
        usage=_after(text, "token usage:"),
    )


def _prompt(text: Text) -> int:
    """llama.cpp's line of the prompt, which stands above that of its answer; 0: another line."""
    at = text.find("prompt eval time =")
    tokens = _after(text, " ms /") if at >= 0 else None
    return int(tokens) if tokens else 0


def _llama_cpp(text: Text, number: int, prompt: int) -> Throughput | None:
    """One request: its prompt, and of its answer half, on average."""
    at = text.find(" eval time =")
    if at < 0 or text.line[:at].rstrip().endswith("prompt"):
        return None
    runs = _after(text, " ms /")
    speed = _after(text, " ms per token,")
    if runs is None or speed is None:
        return None
    tokens = max(1, prompt + int(runs) // 2)
    return Throughput(line=number, engine="llama.cpp", users=1, tokens_per_s=speed, tokens=tokens)


def _after(text: Text, words: str) -> float | None:
    """The number right after the words, where they first stand."""
    at = text.find(words)
    match = text.after(_NUMBER, at + len(words)) if at >= 0 else None
    return float(match[1]) if match else None
