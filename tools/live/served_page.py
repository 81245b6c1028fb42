"""What `serving.py` found -> its part of docs/live.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]
_HEAD = """\
Made by `python tools/live/serving.py {name}`: `vllm serve` as users start it, every process of its
own, the plug-in found by its entry point; once without and once with
`--additional-config '{{"kvpipe": {{"grouping": "optimal"}}}}'`. The same requests over HTTP
(`/v1/completions`, greedy, all at once), then the engine's own `vllm bench serve`. Its seconds are
of a machine that others share, one run each; CPU seconds are the engine's own.
"""
_COLUMNS = "| way | model | processes | tokens printed | preemptions | prefix hits | tokens equal |"
_BENCH = (
    ("output_throughput", "tokens a second"),
    ("mean_ttft_ms", "first token, ms"),
    ("mean_tpot_ms", "each further token, ms"),
    ("engine_cpu_seconds", "CPU seconds of the engine"),
)


def served_lines(name: str, found: Mapping[str, Json]) -> Iterator[str]:
    """found: what was kept, by the name of the way."""
    yield f"\n## {name}, served\n"
    yield _HEAD.format(name=name)
    yield _COLUMNS
    yield f"|{'---|' * 7}"
    good = {way: one for way, one in found.items() if "error" not in one}
    for way, one in good.items():
        yield _row(way, one)
    yield ""
    for way, one in good.items():
        yield f"- {way}: the engine's log has `kvpipe: {one['ours']['line']}`"
    for way, one in found.items():
        if way not in good:
            last = one["error"].strip().splitlines()[-1][:200]
            yield f"- {way}: does not start here: {last}"
    yield ""
    for way, one in good.items():
        if one["ours"]["bench"]:
            yield from _bench(way, one["own"]["bench"], one["ours"]["bench"])


def _row(way: str, one: Json) -> str:
    own, ours = one["own"], one["ours"]
    more = f"{100 * (ours['printed'] / own['printed'] - 1):+.1f}%"
    cells = [
        way,
        one["kind"],
        ", ".join(ours["processes"]),
        f"{own['printed']:,} -> {ours['printed']:,} ({more})",
        f"{own['preemptions']} -> {ours['preemptions']}",
        f"{own['hits']:,} -> {ours['hits']:,}",
        f"{one['equal']} of {one['asked']}",
    ]
    return f"| {' | '.join(cells)} |"


def _bench(way: str, own: Json, ours: Json) -> Iterator[str]:
    yield f"`vllm bench serve`, {way}, {ours['completed']} requests:\n"
    yield "| | the engine's groups | kvpipe's groups |"
    yield "|---|---:|---:|"
    for key, words in _BENCH:
        yield f"| {words} | {own[key]:,.1f} | {ours[key]:,.1f} |"
    yield ""
