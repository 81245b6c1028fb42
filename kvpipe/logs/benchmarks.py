"""What benchmarks write of an engine's speed: a record a run, as JSON, as a line of JSON, as a row
of a table, or printed; each becomes a sample.

vLLM    bench serve --save-result, bench sweep (a table), and what both print at their end
SGLang  bench_serving --output-file, and what it prints
llama-bench -o csv, json or jsonl: rows in which nothing but an answer was computed
any table with the columns users, tokens_per_second and, where it is known, tokens_each

A benchmark of a server gives the mean time of a token and tokens a second: their product is how
many requests decoded at once, on average. Prompts were computed meanwhile, too, so that what
decoding alone reaches is more than the sample says, never less.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.logs.throughput import Throughput
from kvpipe.request.schema import shown

BENCHMARK = "benchmark"  # the engine of a sample, where prompts were computed meanwhile
LARGEST_BYTES = 2**26
PRINTED = ("Mean TPOT (ms):", "Successful requests:")  # words of what is printed
_SERVED = ("mean_tpot_ms", "output_throughput")
_TOTALS = ("total_input_tokens", "total_output_tokens", "completed")
_LLAMA = ("n_prompt", "n_gen", "avg_ts")
_OWN = ("users", "tokens_per_second")
_LABELS = {
    "Successful requests:": "completed",
    "Total input tokens:": "total_input_tokens",
    "Total generated tokens:": "total_output_tokens",
    "Output token throughput (tok/s):": "output_throughput",
    "Mean TPOT (ms):": "mean_tpot_ms",
}


def may_be_benchmark(start: str) -> bool:
    """By the beginning of a file: JSON, or a table of known columns."""
    return start.lstrip()[:1] in ("{", "[") or bool(_columns(start))


def benchmark_samples(text: str) -> list[Throughput]:
    """Of a whole file; none where it is no benchmark's. ConfigError for a figure that is none."""
    return [
        sample
        for line, record in (_of_json(text) if text.lstrip()[:1] in ("{", "[") else _rows(text))
        if (sample := _sample(line, record)) is not None
    ]


def _of_json(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """One value, a list of them, or one a line."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines_of_json(text)
        return
    records = whole if isinstance(whole, list) else [whole]
    yield from ((n, record) for n, record in enumerate(records, 1) if isinstance(record, dict))


def _lines_of_json(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield number, record


def _rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """A table whose first line names columns that are known."""
    names = _columns(text)
    try:
        for number, row in enumerate(csv.reader(text.split("\n")), 1):
            if names and number > 1 and any(cell.strip() for cell in row):
                yield number, dict(zip(names, row, strict=False))
    except csv.Error:
        return


def _columns(text: str) -> list[str]:
    """Of a table's first line; none where they are others."""
    names = [name.strip().strip('"') for name in text.partition("\n")[0].split(",")]
    known = any(set(some) <= set(names) for some in (_SERVED, _LLAMA, _OWN))
    return names if known else []


def _sample(line: int, record: Mapping[str, Any]) -> Throughput | None:
    """None for a record of something else, or of a run in which no token came."""
    if all(name in record for name in _SERVED):
        return _served(line, record)
    if all(name in record for name in _LLAMA):
        return _llama(line, record)
    if all(name in record for name in _OWN):
        return _own(line, record)
    return None


def _served(line: int, record: Mapping[str, Any]) -> Throughput | None:
    each, rate = (_number(line, record, name) for name in _SERVED)
    if not each or not rate:
        return None
    users = max(1, round(rate * each / 1000))
    tokens = None
    if all(name in record for name in _TOTALS):
        read, written, done = (_number(line, record, name) for name in _TOTALS)
        tokens = round(users * (read + written / 2) / done) if done else None
    return Throughput(
        line=line, engine=BENCHMARK, users=users, tokens_per_s=1000 * users / each, tokens=tokens
    )


def _llama(line: int, record: Mapping[str, Any]) -> Throughput | None:
    prompt, written, rate = (_number(line, record, name) for name in _LLAMA)
    if prompt or not written or not rate:
        return None
    deep = _number(line, record, "n_depth") if "n_depth" in record else 0.0
    tokens = max(1, round(deep + written / 2))
    return Throughput(line=line, engine="llama-bench", users=1, tokens_per_s=rate, tokens=tokens)


def _own(line: int, record: Mapping[str, Any]) -> Throughput | None:
    users, rate = (_number(line, record, name) for name in _OWN)
    if not users or not rate:
        return None
    tokens = None
    if str(record.get("tokens_each", "")).strip():
        tokens = round(users * _number(line, record, "tokens_each"))
    return Throughput(
        line=line, engine="a table", users=round(users), tokens_per_s=rate, tokens=tokens
    )


def _number(line: int, record: Mapping[str, Any], name: str) -> float:
    said = record[name]
    try:
        number = float(said) if not isinstance(said, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isfinite(number) and 0 <= number < 1e12:
        return number
    expected = f"a number from 0 to 1e12 as {name} of record {line:,}"
    raise ConfigError(Problem("command.path", expected, shown(said)))


def printed_samples(lines: Iterable[tuple[int, str]]) -> Iterator[Throughput]:
    """Of what benchmarks print at their end: at the last of the labels, what all of them say."""
    found: dict[str, Any] = {}
    for number, line in lines:
        for label, name in _LABELS.items():
            at = line.find(label)
            if at >= 0:
                found[name] = line[at + len(label) :].strip()
        if "mean_tpot_ms" in found:
            sample, found = _sample(number, found), {}
            if sample is not None:
                yield sample
