"""Generated requests that do not fit or get a note: every change recommended, applied, keeps its
word in a fresh run."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kvpipe.answers.remedies import advised
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.prepared import prepared_request
from kvpipe.notes import Note
from kvpipe.pipeline import Prepared, Result, execute
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.of_run import report_input
from kvpipe.stages.profiling.estimates import GIB

MODELS = (
    "llama", "llama3_70b", "gemma3_27b", "gpt_oss_20b", "mistral_7b", "qwen3_next", "nemotron_h",
    "jamba", "deepseek_v2_lite", "whisper_large_v3", "qwen3_30b_a3b", "mamba_2_8b", "llama4_scout",
)  # fmt: skip
DEVICES = ("rtx_3090", "h100_80gb", "l4", "a100_40gb", "h200", "t4")
ENGINES = (
    ["engine=kvpipe"],
    ["engine=vllm_0_17"],
    ["engine=vllm_0_33"],
    *(
        ["engine=vllm", f"engine.version={v}"]
        for v in ("0.6.4", "0.8.5", "0.10.2", "0.20.0", "0.21.0", "0.24.0", "0.28.0")
    ),
)


def generated(seed: int) -> list[str]:
    """One request, as words of a command line."""
    pick = random.Random(seed)
    words = [
        f"model={pick.choice(MODELS)}",
        f"device={pick.choice(DEVICES)}",
        "backend=meta",
        *pick.choice(ENGINES),
        f"parallel.tensor_parallel_size={pick.choice((1, 1, 1, 2, 4))}",
        f"scheduler.max_model_len={pick.choice(('auto', 2048, 8192, 16384, 32768))}",
        f"scheduler.max_num_seqs={pick.choice((16, 256, 1024))}",
        f"scheduler.max_num_batched_tokens={pick.choice((1024, 2048, 8192))}",
        f"cache.cache_dtype={pick.choice(('auto', 'auto', 'fp8'))}",
    ]
    memory = pick.random()
    if memory < 0.5:
        words.append(f"cache.kv_cache_memory_bytes={pick.randrange(2**24, 2**33)}")
    elif memory < 0.6:
        words.append(f"cache.num_gpu_blocks_override={pick.randrange(2, 4000)}")
        words.append("cache.kv_cache_memory_bytes=8GiB")
    else:
        words += ["profiling=estimate", f"cache.gpu_memory_utilization={pick.uniform(0.3, 0.95)}"]
        if pick.random() < 0.3:
            words.append(f"profiling.other_instances_bytes={pick.randrange(20) * GIB}")
    return words


def outcome(words: list[str]) -> tuple[Prepared, Result | DoesNotFit] | None:
    """None: the request is wrong. A plan that can run nothing does not fit."""
    try:
        prepared = prepared_request(words).prepared
    except ConfigError:
        return None
    try:
        result = execute(prepared)
    except DoesNotFit as error:
        return prepared, error
    except ConfigError:
        return None
    held = result.plan.capacity
    if held is not None and not held.requests_at_peak:
        return prepared, DoesNotFit("starts, and runs nothing")
    return prepared, result


def with_changes(words: list[str], changes: dict[str, Any]) -> list[str]:
    kept = [word for word in words if word.partition("=")[0] not in changes]
    written = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    return [*kept, *written]


def failures(seed: int) -> Iterator[str]:
    """Every recommendation of one request that does not hold."""
    words = generated(seed)
    first = outcome(words)
    if first is None:
        return
    prepared, found = first
    if isinstance(found, DoesNotFit):
        error = advised(prepared, found)
        changes = [dict(change) for change in error.changes]
        yield from (f"{words}: {line}" for line in unplanned(str(found)))
        if lowered := re.search(r"Lower it to ([\d,]+)", str(found)):
            changes.append({"scheduler.max_model_len": lowered[1].replace(",", "")})
        yield from (f"{words}: {c}" for c in changes if not runs(with_changes(words, c)))
        return
    for note in notes_of(found):
        if not (note.changes or BARE_KEY.fullmatch(note.knob)):
            yield f"{words}: a hint that nobody planned: {note.knob}"
        for change in note.changes:
            changed = with_changes(words, dict(change))
            if not runs(changed) or is_repeated(note.text, changed):
                yield f"{words}: {change} for {note.text}"


def unplanned(message: str) -> Iterator[str]:
    """What a refusal recommends without an amount."""
    for match in re.finditer(r"(?:raise|lower|increase|reduce) [a-z_. ]*", message, re.IGNORECASE):
        said = match[0].strip()
        if not re.search(r"(?:\bto|\babove)$", said):
            yield f"a hint without an amount: {said}"


def runs(words: list[str]) -> bool:
    answer = outcome(words)
    return answer is not None and isinstance(answer[1], Result)


def is_repeated(text: str, words: list[str]) -> bool:
    """Whether the run with the change still says the same of itself."""
    answer = outcome(words)
    assert answer is not None and isinstance(answer[1], Result)
    return text in {note.text for note in notes_of(answer[1])}


def notes_of(result: Result) -> list[Note]:
    """Everything that a report says beside its numbers."""
    return list(all_notes(report_input(result)))


# Where nothing was planned, a note names at most the key that decides, without a direction.
BARE_KEY = re.compile(r"(?:[a-z_]+(?:\.[a-z_0-9]+)+)?")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_recommended_works(seed: int) -> None:
    assert list(failures(seed)) == []


@pytest.mark.full
@pytest.mark.parametrize("batch", range(40))
def test_what_is_recommended_works_for_thousands_of_requests(batch: int) -> None:
    wrong = [line for i in range(50) for line in failures(1000 + 50 * batch + i)]
    assert wrong == []


def test_the_boundary_that_is_printed_is_the_boundary() -> None:
    """One token more than "Lower it to" names does not run; the share named does."""
    words = ["model=llama", "device=h100_80gb", "backend=meta", "engine=vllm_0_33"]
    words.append("cache.kv_cache_memory_bytes=5.59GiB")
    answer = outcome([*words, "scheduler.max_model_len=131072"])
    assert answer is not None and isinstance(answer[1], DoesNotFit)
    lowered = re.search(r"Lower it to ([\d,]+)", str(answer[1]))
    assert lowered is not None
    length = int(lowered[1].replace(",", ""))
    assert runs([*words, f"scheduler.max_model_len={length}"])
    assert not runs([*words, f"scheduler.max_model_len={length + 1}"])
