"""`kvpipe fit-speed server.log --on h100`: what share of the card's speed the engine reached.

By its own throughput lines, or by what a benchmark wrote.

File: speed.json (every sample).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from kvpipe.answers.fitted_speed import FittedSpeed, Reached, fitted_speed, needs_plan
from kvpipe.answers.speed import speed_of
from kvpipe.commands.base import Command, CommandOptions
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.files.standard_input import kept_standard_input
from kvpipe.logs.benchmarks import (
    BENCHMARK,
    LARGEST_BYTES,
    PRINTED,
    benchmark_samples,
    may_be_benchmark,
    printed_samples,
)
from kvpipe.logs.lines import Lines, open_log
from kvpipe.logs.throughput import Throughput, throughputs
from kvpipe.pipeline import Prepared, block_rules, plan_of
from kvpipe.report.base import Answer
from kvpipe.report.identity import identity
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section, lay_out

SAMPLE = Path(__file__).parents[1] / "logs" / "speed_sample.log"
MOST_ROWS = 8
WORDS = ("throughput", "eval time =")  # one of them stands in every line that is read


class FitSpeed(Command):
    class Options(CommandOptions):
        path: str | None

    summary = "An engine's throughput lines or a benchmark's output: the share of the card's speed"
    example = "kvpipe fit-speed sample model=llama device=h100"
    files = ("speed.json",)
    word: ClassVar[str] = "command.path"

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        path = self.options.path
        if not path:
            knob = "kvpipe fit-speed FILE, or - for what is piped in"
            raise ConfigError(Problem("command.path", "an engine's log", "nothing", knob))
        speed = speed_of(prepared)
        if speed.bound is None:
            raise ConfigError(_no_bound(prepared, speed.why))
        with kept_standard_input(str(SAMPLE) if path == "sample" else path) as kept:
            samples = _samples(kept)
        plan = _plan(prepared) if needs_plan(samples) else None
        fitted = fitted_speed(samples, speed.bound, plan)
        if fitted is None:
            raise ConfigError(_nothing(path))
        return _answer(prepared, fitted)


def _no_bound(prepared: Prepared, why: str) -> Problem:
    if prepared.config.device.bandwidth_bytes_per_s:
        return Problem("command.path", "a request whose steps have a bound", why)
    got = f"{prepared.resolved.device.name}, which names none"
    return Problem("device", "one whose bandwidth is known", got, "--on h100")


def _samples(path: str) -> list[Throughput]:
    try:
        stream, size = open_log(path)
    except ConfigError as error:
        raise ConfigError(
            [Problem("command.path", "an engine's log", p.got) for p in error.problems]
        ) from error
    with closing(stream):
        start = stream.read(2**12).decode("utf-8-sig", "replace")
        stream.seek(0)
        if may_be_benchmark(start) and size <= LARGEST_BYTES:
            found = benchmark_samples(stream.read(size).decode("utf-8-sig", "replace"))
            if found:
                return found
            stream.seek(0)
        found = list(throughputs(Lines(stream, size, WORDS)))
        stream.seek(0)
        return [*found, *printed_samples(Lines(stream, size, PRINTED))]


def _plan(prepared: Prepared) -> Any:
    """What a printed share of the pool is of; None where nothing fits here. ConfigError under an
    engine whose pool is none of blocks."""
    engine = prepared.config.plugins["engine"]
    try:
        block_rules(prepared.config)
    except ConfigError as error:
        expected = "an engine that plans the pool of which these lines print a share"
        knob = f"leave engine={engine.name} out"
        raise ConfigError(Problem(engine.key, expected, f"'{engine.name}'", knob)) from error
    try:
        return plan_of(prepared)
    except DoesNotFit:
        return None


def _nothing(path: str) -> Problem:
    expected = (
        "a throughput line of a time in which requests only decoded: vLLM's 'Avg generation "
        "throughput', SGLang's 'gen throughput (token/s)', llama.cpp's 'eval time'; or a "
        "benchmark's output (mean_tpot_ms, output_throughput), llama-bench's, or a table with the "
        "columns users, tokens_per_second"
    )
    return Problem("command.path", expected, f"none in '{path}'")


def _answer(prepared: Prepared, fitted: FittedSpeed) -> Answer:
    share = min(1.0, fitted.efficiency)
    wrong = _too_fast(fitted)
    return Answer(
        status="does_not_fit" if wrong else "fits",
        exit_code=1 if wrong else 0,
        lines=partial(lay_out, [_section(prepared, fitted)]),
        document={
            **identity(prepared, "kvpipe.fit_speed"),
            "efficiency": share,
            "samples": [_plain(each) for each in fitted.reached],
        },
        fields={"efficiency": round(share, 3), "samples": len(fitted.reached)},
        complaints=(wrong,) if wrong else (),
    )


def _too_fast(fitted: FittedSpeed) -> str:
    if not fitted.too_fast:
        return ""
    first = fitted.too_fast[0].sample
    return (
        f"command.path: {count(len(fitted.too_fast), 'line')} faster than this model can be on "
        f"this device (line {first.line:,}: {first.tokens_per_s:,.10g} tokens/s): another model, "
        "weights=, device or number of cards ran, or drafts were accepted"
    )


def _section(prepared: Prepared, fitted: FittedSpeed) -> Section:
    shares = sorted(each.share for each in fitted.possible)
    resolved = prepared.resolved
    engines = ", ".join(sorted({each.sample.engine for each in fitted.reached}))
    lines = count(len(fitted.reached), "line")
    return Section(
        title=f"fit-speed: {lines} of {engines}, {resolved.model.name} "
        f"({resolved.served_dtype}) on {resolved.device.name}",
        headers=("line", "users", "tokens each", "tokens/s", "at best", "share"),
        align="rrrrrr",
        rows=[_row(each) for each in fitted.reached[:MOST_ROWS]],
        paragraphs=list(_told(fitted, shares)),
    )


def _told(fitted: FittedSpeed, shares: list[float]) -> Iterator[Line]:
    if (more := len(fitted.reached) - MOST_ROWS) > 0:
        yield Line(f"{count(more, 'more line')} in speed.json", "faint")
    if left_out := len(fitted.reached) - len(shares):
        first = fitted.too_fast[0]
        yield Line(
            f"left out of what follows: {count(left_out, 'line')} beyond the bound "
            f"(line {first.sample.line:,}: {first.share:,.2f})",
            "warning",
        )
    yield Line(
        f"share reached: {fitted.efficiency:.2f} (the median; {shares[0]:.2f} to {shares[-1]:.2f}) "
        "of the card's nominal speed"
        + ("" if fitted.too_fast else f": trace.efficiency={fitted.efficiency:.2f}")
    )
    if any(each.sample.engine == BENCHMARK for each in fitted.reached):
        yield Line("prompts were computed meanwhile, too: decoding alone reaches more", "faint")
    guessed = {each.length_from for each in fitted.reached}
    if "nothing" in guessed and any(each.sample.usage is not None for each in fitted.reached):
        yield Line("the pool is not known, since this does not fit here: one token each", "faint")
    elif "nothing" in guessed:
        yield Line(
            "lengths are not printed and were taken as one token: the share is more", "faint"
        )
    elif "pool" in guessed:
        yield Line("tokens each: from the printed share of the pool, as planned here", "faint")


def _row(each: Reached) -> tuple[str, ...]:
    sample = each.sample
    return (
        f"{sample.line:,}",
        f"{sample.users:,}",
        f"{each.length:,}",
        f"{sample.tokens_per_s:,.1f}",
        f"{each.best_per_s:,.1f}",
        f"{each.share:.2f}",
    )


def _plain(each: Reached) -> dict[str, Any]:
    return {
        "line": each.sample.line,
        "engine": each.sample.engine,
        "users": each.sample.users,
        "tokens_each": each.length,
        "tokens_each_from": each.length_from,
        "tokens_per_second": each.sample.tokens_per_s,
        "best_tokens_per_second": each.best_per_s,
        "share": each.share,
    }


PLUGIN = FitSpeed
