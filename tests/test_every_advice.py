"""Generated requests that do not fit or get a note: every change recommended, applied, keeps its
word in a fresh run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from advice_requests import generated, outcome, with_changes

from kvpipe.answers.advised import advised
from kvpipe.errors import DoesNotFit
from kvpipe.notes import Note
from kvpipe.pipeline import Result
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.of_run import report_input
from kvpipe.report.verdict import verdict_of
from kvpipe.request.typed import PLAIN


def failures(seed: int) -> Iterator[str]:
    """Every recommendation of one request that does not hold."""
    words = generated(seed)
    first = outcome(words)
    if first is None:
        return
    prepared, found = first
    if isinstance(found, DoesNotFit):
        error = advised(prepared, found)
        yield from (f"{words}: {way} is told to fit, and may not" for way in unsure(words, error))
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


def unsure(words: list[str], error: DoesNotFit) -> Iterator[str]:
    """Of the changes that are told to fit without a doubt, those of which the run itself doubts."""
    line = str(error).partition("planned, and fits: ")[2]
    ways = line.partition(". Planned, and may fit")[0].split("; ")
    for change in error.changes:
        if any(way.startswith(f"{PLAIN.words(change, {})} (") for way in ways):
            answer = outcome(with_changes(words, dict(change)))
            assert answer is not None and isinstance(answer[1], Result)
            if verdict_of(report_input(answer[1])).status != "fits":
                yield PLAIN.words(change, {})


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
