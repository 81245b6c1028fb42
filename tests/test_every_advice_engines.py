"""Engines that are planned only, `find`, `compare` and `doctor`: what they recommend works."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from advice_requests import (
    CARDS,
    MODELS,
    PLANNED_ENGINES,
    generated_for_an_engine,
    generated_line,
    with_changes,
)
from test_every_advice import unplanned

from kvpipe.answers.engine_question import question_of
from kvpipe.answers.stage_weights import stage_weights
from kvpipe.answers.trials import asked_of_a_copy
from kvpipe.commands.base import Command
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import plan_engine
from kvpipe.engines.planned import PlannedEngine
from kvpipe.engines.serve import read_serve_line
from kvpipe.errors import ConfigError, DoesNotFit, KvpipeError
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import profile_ranks, profiling_request
from kvpipe.report.base import Answer
from kvpipe.request.typed import PLAIN
from kvpipe.stages.profiling.estimate import is_packed
from kvpipe.stages.profiling.estimates import activations, context


def answered(words: list[str]) -> Answer | KvpipeError:
    try:
        prepared = prepared_request(words).prepared
        answer: Answer = prepared.config.plugins["command"].make(Command).run(prepared, None)
    except KvpipeError as error:
        return error
    return answer


def is_fit(words: list[str]) -> bool:
    return answered(words).exit_code == 0


# --- engines that are planned only ---
def of_an_engine(seed: int) -> Iterator[str]:
    """Every change that does not make its request fit; hints that nobody planned."""
    words = generated_for_an_engine(seed)
    answer = answered(words)
    if answer.exit_code != 1:
        return
    lines, changes = said(answer)
    for line in lines:
        yield from (f"{words}: {each}" for each in unplanned(line))
    for change in changes:
        again = answered(with_changes(words, change))
        surely = PLAIN.words(change, {}) in lines[-1].partition("may fit")[0]
        if again.exit_code or (surely and not serves_at_worst(with_changes(words, change))):
            yield f"{words}: {change}, told as {'sure' if surely else 'possible'}"
        if not surely and serves_at_worst(with_changes(words, change)):
            yield f"{words}: {change} is sure, and told as possible"
    for key in ("scheduler.max_model_len", "engine.mem_fraction_static"):
        yield from (f"{words}: {each}" for each in beyond(words, changes, key))


def serves_at_worst(words: list[str]) -> bool:
    """With the estimates put into the question by hand, each as large as it may be."""
    prepared = prepared_request(words).prepared
    engine, asked = prepared.config.plugins["engine"].make(Engine), question_of(prepared)
    assert isinstance(engine, PlannedEngine)
    request = profiling_request(prepared)
    if prepared.config.cache.kv_cache_memory_bytes is None:
        weights, packed = stage_weights(prepared), is_packed(asked.model, asked.served_dtype)
        most = 1.10 if packed else 1.006
        ranks = tuple(
            replace(rank, weight_bytes=item.at_most + int(item.num_bytes * most) - item.num_bytes)
            for rank, item in zip(asked.ranks, weights.values(), strict=True)
        )
        outside = context(asked.tp, asked.card.total_bytes).high
        asked = replace(asked, ranks=ranks, card=replace(asked.card, context_bytes=outside))

    def most_of_a_step(tokens: int, requests: int) -> int:
        return activations(
            asked.model,
            batched_tokens=tokens,
            max_num_seqs=requests,
            tp=request.parallel.tp,
            is_packed=is_packed(asked.model, asked.served_dtype),
        ).high

    try:
        plan = plan_engine(engine, replace(asked, end="low", activations=most_of_a_step))
    except DoesNotFit:
        return False
    try:
        over = max(rank.over_at_worst_bytes for rank in profile_ranks(prepared).ranks)
    except DoesNotFit:  # nothing is left of vLLM's share of the card, which is not this engine's
        over = 0
    users = asked_of_a_copy(prepared)
    return not over and plan.users.peak >= 1 and plan.users.steady >= users


def said(answer: Answer | KvpipeError) -> tuple[list[str], list[dict[str, Any]]]:
    if isinstance(answer, DoesNotFit):
        return answer.lines(), [dict(change) for change in answer.changes]
    assert isinstance(answer, Answer)
    return list(answer.complaints), list(answer.document["advice"])


def beyond(words: list[str], changes: list[dict[str, Any]], key: str) -> Iterator[str]:
    """A boundary that is told is the boundary: one token more, a hundredth less, does not fit, or
    not as surely."""
    step = 1 if key.endswith("len") else -0.01
    for change in changes:
        if key in change:
            further = {key: round(change[key] + step, 2)}
            here, there = (answered(with_changes(words, each)) for each in (change, further))
            if there.exit_code == 0 and (there.status, here.status) != MAY_AND_FITS:
                yield f"{change} is no boundary: {further} fits"


MAY_AND_FITS = ("may_not_fit", "fits")


@pytest.mark.parametrize("seed", [1, 1009])
def test_what_a_planned_engine_is_recommended_works(seed: int) -> None:
    assert list(of_an_engine(seed)) == []


@pytest.mark.full
@pytest.mark.parametrize("batch", range(20))
def test_what_planned_engines_are_recommended_works_for_a_thousand(batch: int) -> None:
    assert [line for i in range(50) for line in of_an_engine(1000 + 50 * batch + i)] == []


# --- find ---
def of_find(seed: int) -> Iterator[str]:
    pick = random.Random(seed)
    words = [
        "command=find",
        f"model={pick.choice(MODELS)}",
        f"device={pick.choice(CARDS)}",
        "backend=meta",
        *pick.choice((["engine=kvpipe"], ["engine=vllm_0_17"], ["engine=vllm_0_33"])),
    ]
    length = pick.choice((2048, 8192, 32768))
    load = [f"want.requests={pick.choice((1, 16, 64))}", f"want.length={length}"]
    answer = answered([*words, *load])
    if isinstance(answer, KvpipeError):
        assert isinstance(answer, ConfigError)
        return
    for finding in answer.document["findings"]:
        setting = finding["setting"]
        if not setting or "max_num_seqs" in setting or "max_model_len" in setting:
            continue
        key, _, value = setting.partition("=")
        changed = with_changes([*words, *load], {key: value})
        if finding["question"] == "smallest cache on each rank":
            changed.append("profiling=auto")
        again = answered(changed)
        rows = {} if isinstance(again, KvpipeError) else {
            each["question"]: each for each in again.document["findings"]
        }  # fmt: skip
        # By the middle of an estimate, as find says: that it may not fit is no broken promise.
        if rows.get("as asked", {}).get("value") not in ("fits", "may_not_fit"):
            yield f"{words} {load}: {setting}"


@pytest.mark.full
@pytest.mark.parametrize("batch", range(4))
def test_what_find_names_serves_the_load(batch: int) -> None:
    assert [line for i in range(10) for line in of_find(100 + 10 * batch + i)] == []


# --- compare ---
def of_compare(seed: int) -> Iterator[str]:
    """A refusal recommends nothing that was not planned; vLLM's own line gives its users."""
    pick = random.Random(seed)
    words = [f"model={pick.choice(MODELS)}", f"device={pick.choice(CARDS)}", "backend=meta"]
    words.append(f"scheduler.max_model_len={pick.choice((2048, 8192, 32768))}")
    engines = ",".join(("vllm", *PLANNED_ENGINES))
    answer = answered(["command=compare", f"command.engines=[{engines}]", *words])
    if isinstance(answer, KvpipeError):
        assert isinstance(answer, ConfigError)
        return
    for each in answer.document["engines"]:
        for line in each.get("refused") or ():
            yield from (f"{words}: {hint}" for hint in unplanned(line))
        if each["name"] == "vllm" and (line := (each.get("start") or {}).get("command")):
            _, settings = read_serve_line(line)
            again = answered([*words[:3], "engine=vllm", *settings])
            if again.exit_code != 0:
                yield f"{words}: {line}"


@pytest.mark.full
@pytest.mark.parametrize("batch", range(4))
def test_what_compare_says_of_refusals_and_lines_holds(batch: int) -> None:
    assert [line for i in range(10) for line in of_compare(100 + 10 * batch + i)] == []


# --- doctor ---
def of_doctor(seed: int) -> Iterator[str]:
    """The line to paste is healthy when it is pasted; each change told beside it fits."""
    pick = random.Random(seed)
    line, device = generated_line(seed), f"device={pick.choice(CARDS)}"
    answer = answered(["command=doctor", f"command.path='{line}'", device])
    if isinstance(answer, KvpipeError):
        yield from (f"{line}: {each}" for each in unplanned(str(answer)))
        return
    text = " ".join(each.text for each in answer.lines(10_000))
    yield from (f"{line}: {each}" for each in unplanned(text))
    paste = answer.fields["paste"]
    if paste and not is_fit(["command=doctor", f"command.path='{paste}'", device]):
        yield f"{line} {device}: {paste}"
    for flags in told_flags(answer):
        if not is_fit(["command=doctor", f"command.path='{line} {flags}'", device]):
            yield f"{line} {device}: {flags}"


def told_flags(answer: Answer) -> Iterator[str]:
    """Of each way that was planned; not of those that need another checkpoint."""
    for trouble in answer.document["troubles"]:
        _, _, told = trouble["text"].partition("Planned, and ")
        ways = re.split(r", or |[.] Planned, and |fits: |since the memory is an estimate: ", told)
        yield from (way.partition(" (")[0] for way in ways if way.startswith("--"))


@pytest.mark.full
@pytest.mark.parametrize("seed", [2])
def test_the_line_that_doctor_gives_is_healthy(seed: int) -> None:
    assert list(of_doctor(seed)) == []


@pytest.mark.full
@pytest.mark.parametrize("batch", range(10))
def test_the_lines_that_doctor_gives_are_healthy(batch: int) -> None:
    assert [line for i in range(10) for line in of_doctor(100 + 10 * batch + i)] == []
