"""Command lines at random: whatever is asked, the exit code is 0, 1 or 2 and nothing hangs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from random import Random

from kvpipe.front.main import run
from kvpipe.plugins import SECTIONS

_GROUPS = (*SECTIONS, "cache", "device", "parallel", "scheduler", "placement", "attention", "trace")
_KEYS = (
    "cache.block_size",
    "cache.kv_cache_memory_bytes",
    "cache.sliding_window",
    "scheduler.max_model_len",
    "parallel.pipeline_partition",
    "device.name",
    "model.repo",
    "hydra.run.dir",
    "hydra.searchpath",
    "hydra/launcher",
    "hydra",
)
_VALUES = (
    "1",
    "-1",
    "null",
    "[1]",
    "[[1]]",
    "{a: 1}",
    "{}",
    "''",
    "a",
    "${oc.select:nope}",
    "${oc.env:HOME}",
    "${cache.block_size}",
    "${",
    "1,2",
    "range(3)",
    "glob(*)",
    "1e400",
    "0x10",
    "inf",
    "nan",
    "true",
    "\\",
    "'",
    '"',
    "a" * 5000,
    "1" * 5000,
    "\x00",
    "\x1b[31m",
    "../../x",
    "/dev/zero",
    "é",
    "[" * 300,
    "a=b",
    "@x",
    "x@y",
)
_FORMS = ("{}={}", "+{}={}", "++{}={}", "~{}={}", "~{}", "{}", "{}@x={}", "{}=[{}]", "{}: {}")


def at_random(seed: Random) -> list[str]:
    words = ["backend=meta", "report=none"]
    for _ in range(seed.choice((1, 1, 1, 2, 3))):
        key = seed.choice((*_GROUPS, *_KEYS))
        word = seed.choice(_FORMS).format(key, seed.choice(_VALUES))
        if seed.random() < 0.2:
            cut = seed.randrange(len(word) + 1)
            word = word[:cut] + seed.choice(_VALUES)[:9] + word[cut:]
        words.append(word)
    return words


def wrong_with(words: Sequence[str]) -> str:
    """ "" where it ends as it should."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        try:
            code = run(list(words))
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    return "" if code in (0, 1, 2) else f"exit {code}: {said.getvalue()}"
