"""The least that serves a load: searches over the pure plan, for `kvpipe find`.

Every answer is a search over the pure plan: the request is prepared again with one setting changed,
its memory estimated, its layers planned. Nothing is allocated. What fits is monotonic in each
setting searched, so bisection finds its edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvpipe.answers.as_asked import LENGTH, SEQS, AsAsked, as_asked, missing_of
from kvpipe.answers.finding import Finding
from kvpipe.answers.pasted import as_pasted
from kvpipe.answers.trials import Trial, planned_or_why
from kvpipe.cache.load import ENDS, Load, of_a_copy, running
from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.pipeline import Prepared, plan_with, prepare
from kvpipe.request.changed import changed, estimated
from kvpipe.request.confdir import shipped_cards, shipped_option
from kvpipe.request.schema import check_section
from kvpipe.request.want import Want
from kvpipe.specs.edges import largest, smallest
from kvpipe.text.figures import count, size

TENSOR_PARALLEL = (1, 2, 4, 8, 16)
PLENTY = 2**50  # bytes


def read_want(raw: Any, prepared: Prepared) -> Want:
    """The checked section; ConfigError with every key that is wrong."""
    if not raw:
        knob = "set want.requests=64 want.length=8192, or choose want=default"
        raise ConfigError(Problem("want", "the load to search for", "nothing", knob))
    want, problems = check_section("want", Want, raw)
    if problems or want is None:
        raise ConfigError(problems)
    context = prepared.resolved.model.context_length
    if want.length != "auto" and want.length > context:
        raise ConfigError(
            Problem(
                "want.length", f"1 to the model's context of {context:,} tokens", str(want.length)
            )
        )
    assert isinstance(want, Want)
    return want


@dataclass(frozen=True)
class _Candidate:
    """A setting to try: what it is called, as changes, as it is typed, and its value in JSON."""

    name: str
    changes: Mapping[str, Any]
    setting: str
    value: int | str


@dataclass(frozen=True, kw_only=True)
class Search:
    """The wanted load and the request that all candidates are made from."""

    prepared: Prepared
    want: Want

    @cached_property
    def length(self) -> int:
        """want.length; auto: the length that is planned for, else the model's context."""
        asked, planned = self.want.length, self.prepared.config.scheduler.max_model_len
        if asked != "auto":
            return asked
        return self.prepared.resolved.model.context_length if planned == "auto" else planned

    @property
    def load(self) -> Load:
        """What is searched for, and what `run` decides by."""
        return running(self.requests, self.length)

    @property
    def requests(self) -> int:
        """Of the wanted ones, those of one copy (data parallelism)."""
        return of_a_copy(self.want.requests, self.prepared.resolved.parallel.dp)

    def findings(self) -> Iterator[Finding]:
        """Each setting among them serves the load in the user's own line."""
        return (as_pasted(self.prepared, self.load, finding) for finding in self._found())

    def _found(self) -> Iterator[Finding]:
        yield self.cache_memory()
        if self.prepared.resolved.device.type != "cpu":
            yield self.as_asked.finding
            yield self.utilization()
            yield self.tensor_parallel()
            yield self.largest_max_num_seqs()
            yield self.longest()
        yield self.device()

    @cached_property
    def as_asked(self) -> AsAsked:
        return as_asked(self.prepared, self.load)

    # --- one candidate ---
    def planned(
        self, changes: Mapping[str, Any], length: int = 0, requests: int = 0
    ) -> Trial | str:
        """The wanted load with these changes, or why there is no plan of it. Memory is estimated,
        unless its size is set. The scheduler is let run as many at once, unless they say how
        many."""
        if (requests or self.requests) > self.prepared.resolved.max_num_seqs:
            changes = {SEQS: requests or self.requests, **changes}
        memory, of_length = estimated(self.prepared.raw), {LENGTH: length or self.length}
        return planned_or_why(self.prepared, memory | of_length | dict(changes))

    def missing(self, changes: Mapping[str, Any], length: int = 0, requests: int = 0) -> str:
        """Why the wanted load does not fit with these changes; "" where it does."""
        trial = self.planned(changes, length, requests)
        return missing_of(trial, requests or self.requests)

    # --- searches ---
    def cache_memory(self) -> Finding:
        """Bytes of cache that the load needs on each rank, from the plan itself."""
        question = "smallest cache on each rank"
        try:
            made = prepare(changed(self.prepared.raw, {"scheduler.max_model_len": self.length}))
            plan = plan_with(made, (PLENTY,) * len(made.resolved.ranks), compared=())
        except KvpipeError as error:
            return Finding(question=question, answer="", limit=error.lines()[0])
        blocks = blocks_for(plan, self.requests) + 1  # and the null block
        num_bytes = blocks * max(rank.config.bytes_per_block for rank in plan.ranks)
        return Finding(
            question=question,
            answer=f"{size(num_bytes)} ({count(blocks, 'block')})",
            limit=ENDS[self.load.name],
            setting=self._bytes_that_fit(num_bytes),
            value=num_bytes,
            unit="bytes",
        )

    def _bytes_that_fit(self, num_bytes: int) -> str:
        """The setting, where the device can have that much."""
        key = "cache.kv_cache_memory_bytes"
        return "" if self.missing({key: num_bytes}) else f"{key}={num_bytes}"

    def utilization(self) -> Finding:
        """Hundredths of the card."""
        question, key = "smallest utilization", "cache.gpu_memory_utilization"
        if self.prepared.config.cache.kv_cache_memory_bytes is not None:
            return Finding(question=question, answer="", limit="cache.kv_cache_memory_bytes is set")
        least = smallest(1, 100, lambda n: not self.missing({key: n / 100}))
        if least is None:
            return Finding(question=question, answer="", limit=self.missing({key: 1.0}))
        limit = self.missing({key: (least - 1) / 100}) if least > 1 else ""
        answer = f"{least / 100:.2f}"
        return Finding(
            question=question,
            answer=answer,
            limit=limit,
            setting=f"{key}={answer}",
            value=least / 100,
            unit="share of the device",
        )

    def tensor_parallel(self) -> Finding:
        key = "parallel.tensor_parallel_size"
        tried = (_Candidate(f"{tp}", {key: tp}, f"{key}={tp}", tp) for tp in TENSOR_PARALLEL)
        return self._first("smallest tensor parallel size", tried, unit="ranks", called="TP ")

    def device(self) -> Finding:
        """The shipped device with the least memory that serves the load with as many ranks."""
        tried = (
            _Candidate(name, {"device": option}, f"device={name}", name)
            for name, option in _devices()
        )
        return self._first("smallest device", tried, unit="device")

    def _first(
        self, question: str, tried: Iterable[_Candidate], *, unit: str, called: str = ""
    ) -> Finding:
        """The first candidate that serves the load; its limit is why the one before does not."""
        limit = ""
        for each in tried:
            missing = self.missing(each.changes)
            if not missing:
                return Finding(
                    question=question,
                    answer=each.name,
                    limit=limit,
                    setting=each.setting,
                    value=each.value,
                    unit=unit,
                )
            limit = f"{called}{each.name}: {missing}"
        return Finding(question=question, answer="", limit=limit)

    def largest_max_num_seqs(self) -> Finding:
        """More requests also take more memory for the sampler."""
        question, key = (
            f"largest max_num_seqs at {count(self.length, 'token')}",
            SEQS,
        )

        def serves(requests: int) -> bool:
            return not self.missing({key: requests}, requests=requests)

        most = largest(1, 2**17, serves)
        if most is None:
            return Finding(question=question, answer="", limit=self.missing({key: 1}, requests=1))
        limit = self.missing({key: most + 1}, requests=most + 1)
        return Finding(
            question=question,
            answer=f"{most:,}",
            limit=limit,
            setting=f"{key}={most}",
            value=most,
            unit="requests",
        )

    def longest(self) -> Finding:
        context = self.prepared.resolved.model.context_length
        question = f"longest length for {count(self.want.requests, 'request')}"
        most = largest(1, context, lambda n: not self.missing({}, length=n))
        if most is None:
            return Finding(question=question, answer="", limit=self.missing({}, length=1))
        limit = (
            f"the model's context of {context:,} tokens"
            if most == context
            else self.missing({}, length=most + 1)
        )
        return Finding(
            question=question,
            answer=count(most, "token"),
            limit=limit,
            setting=f"scheduler.max_model_len={most}",
            value=most,
            unit="tokens",
        )


def blocks_for(plan: Plan, requests: int) -> int:
    """Blocks of that many requests of the planned length."""
    return plan.capacity.blocks_of(requests) if plan.capacity else 0


# --- parts ---
def _devices() -> list[tuple[str, dict[str, Any]]]:
    """Shipped accelerators, the one with the least memory first."""
    from kvpipe.text.quantities import parse_size

    options = {name: shipped_option("device", name) for name in shipped_cards()}
    return sorted(options.items(), key=lambda item: int(parse_size(item[1]["memory_bytes"])))
