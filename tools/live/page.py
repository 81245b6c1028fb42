"""Compared cases -> docs/live.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.live.served_page import served_lines

Json = dict[str, Any]
Records = Mapping[str, tuple[str, list[Json]]]

_HEAD = """\
# Running engines against kvpipe

Made by `python tools/live/matrix.py` from engines that were started, on a CPU, with tiny models and
random weights: each case is said once in kvpipe's words and once in the engine's, and neither is
told what the other answered. Environments: `python tools/live/setup.py`.

Compared: whether it starts; groups (kind, block, page, layers); number of blocks; offset and stride
of every layer's pages; printed tokens and concurrency, to the last digit; length; batch. Then the
engine's own planner is asked for the least memory it starts with, to the byte: kvpipe must refuse
one byte fewer, start with that, and plan alike with an eighth more.

From 0.26 on the engine caches prefixes of models with states and attention unless it is told not
to, and plans `mamba_cache_mode=align` then; kvpipe plans no kept states unless asked: these cases
ask it. Two things are not compared: what a GPU build would choose, and speed.

Encoder-decoders: Whisper, started with a feature extractor and a tokenizer beside random weights.
0.28 to 0.32 plan its cross attention for as many tokens as a step's batch has, whatever the encoder
puts out (1,500), as 0.17 did. Beside it Cohere ASR and Nemotron Parse are registered (FireRedLID,
too, in 0.28); BART and its like only with somebody else's plug-in. Those were not started.

Not run on every commit. CI's machine starts from nothing: vLLM's environment alone is a download of
325 MB (133 its wheel, 192 torch) and 3.1 GB of files. It was made in one and a half minutes of two
idle cores, and in 31 on a machine of two with twenty other processes: five minutes cannot be
promised. `pytest -m live` runs a choice of cases where the environments stand.

Beside the matrix, one command each:
"""


_COMMANDS = {
    'tools/live/matrix.py vllm-0.32.0 --only "serve line"': "the engine, given the line that "
    "kvpipe prints and nothing else, plans what kvpipe planned",
    "tools/live/logs.py vllm-0.32.0": "what the engines printed, given to `kvpipe doctor` as it "
    "is, is reproduced: 51 of 51 on 2026-11-30",
    "tools/live/serving.py vllm-0.32.0": "the plug-in in `vllm serve`: clients over HTTP, two "
    "workers, `vllm bench`",
    "tools/live/block_race.py vllm-0.32.0": "vLLM's block manager and kvpipe's, call by call "
    "([blocks.md](blocks.md))",
    "tools/live/proof.py vllm-0.32.0": "an engine on kvpipe's groups: the same tokens, more "
    "requests ([vllm.md](vllm.md))",
    "tools/live/step_cost.py vllm-0.32.0 tables": "what a block table costs a step, with its "
    "interval ([vllm.md](vllm.md))",
    "examples/engine.py": "an engine of kvpipe's parts beside transformers' continuous batching",
}
_PLANNED_HEADS = {
    "transformers": """\
Continuous batching (`generate_batch`) on a CPU, sdpa or eager attention. The memory that it is told
is free stands in for the machine's; what follows is its own: batches are generated, and its cache
is looked at. Compared: sectors, their bytes, the pool with its two spare sectors, blocks of each
kind in a sector, requests in a batch, requests of 512 tokens that find their blocks (by its own
count), and the sectors with one byte less than it starts with, with that, and an eighth more.
"generates here": it makes a cache for models, too, that it then cannot run.
""",
    "llama-cpp": """\
Contexts of files with zero weights. Compared: `n_ctx`, sequences, and every line that it prints
about its caches, character by character but for spaces: cells, layers, sequences and streams, types
and MiB of K and V, rows of states. The build is that of a wheel, b64739e: newer ones print one more
figure for states (0 here) and read the list of windows in a gemma3 file, which this one does not.
""",
}


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """An engine that is planned only: one row a case, cells under `columns`."""

    name: str
    day: str
    records: Sequence[Json]
    num_cases: int
    columns: Sequence[str]


def write_page(
    path: Path,
    records: Records,
    num_cases: int,
    planned: Sequence[PlannedTable] = (),
    served: Mapping[str, Mapping[str, Json]] = MappingProxyType({}),
) -> None:
    """num_cases: of vLLM's whole matrix, those that were not run included. served: engine ->
    what serving.py found."""
    text = "\n".join(_lines(records, num_cases, planned, served))
    path.write_text(text.rstrip("\n") + "\n")


def _lines(
    records: Records,
    num_cases: int,
    planned: Sequence[PlannedTable],
    served: Mapping[str, Mapping[str, Json]],
) -> Iterator[str]:
    yield _HEAD
    yield from (f"- `python {command}`: {shows}" for command, shows in _COMMANDS.items())
    yield ""
    yield "| engine | on | cases run | started | equal | refused by both |"
    yield "|---|---|---:|---:|---:|---:|"
    for name, (day, found) in records.items():
        yield _counts(name, day, found, num_cases)
    for table in planned:
        yield _counts(table.name, table.day, table.records, table.num_cases)
    for name, ways in served.items():
        yield from served_lines(name, ways)
    for name, (_, found) in records.items():
        yield f"\n## {name}\n"
        yield from _differences(found)
        yield from _refused(found)
        yield from _cases(found)
    for table in planned:
        yield from _planned(table)


def _counts(name: str, day: str, found: Sequence[Json], num_cases: int) -> str:
    started = [r for r in found if r["engine"]["started"]]
    equal = [r for r in started if not r["differences"]]
    both = [r for r in found if not r["engine"]["started"] and not r["differences"]]
    ran = f"{len(found)} of {num_cases}"
    return f"| {' | '.join(map(str, [name, day, ran, len(started), len(equal), len(both)]))} |"


def _planned(table: PlannedTable) -> Iterator[str]:
    yield f"\n## {table.name}\n"
    yield _PLANNED_HEADS[table.name]
    yield from _differences(table.records)
    yield from _refused(table.records)
    yield "### Cases that started\n"
    yield f"| case | cache | {' | '.join(table.columns)} | equal |"
    yield f"|---|---|{'---|' * len(table.columns)}---|"
    for record in table.records:
        if record["engine"]["started"]:
            equal = "no" if record["differences"] else "yes"
            yield f"| {' | '.join([record['case'], record['kind'], *record['row'], equal])} |"


def _differences(found: Sequence[Json]) -> Iterator[str]:
    wrong = [record for record in found if record["differences"]]
    if not wrong:
        yield "No case differs.\n"
        return
    yield "### What differs\n"
    for record in wrong:
        yield f"- **{record['case']}** ({record['kind']}): {_short(record['differences'])}"
    yield ""


def anywhere(text: str) -> str:
    """Paths of the machine that ran it, as far as they say something elsewhere."""
    return re.sub(r"/[^\s()']*/site-packages/", "", text)


def _short(differences: list[str]) -> str:
    text = "; ".join(anywhere(difference)[:300] for difference in differences[:3])
    more = len(differences) - 3
    return " ".join(text.split()) + (f"; and {more} more" if more > 0 else "")


def _refused(found: Sequence[Json]) -> Iterator[str]:
    both = [r for r in found if not r["engine"]["started"]]
    if not both:
        return
    yield "### What the engine does not start here\n"
    for record in both:
        reason = anywhere(" ".join(record["engine"]["error"].split()))[:200].replace("|", "/")
        yield f"- {record['case']}: {reason}"
    yield ""


def _cases(found: list[Json]) -> Iterator[str]:
    yield "### Cases that started\n"
    yield "| case | cache | groups | blocks | tokens | least bytes | equal |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for record in found:
        engine = record["engine"]
        if engine["started"]:
            yield f"| {' | '.join(_row(record, engine))} |"


def _row(record: Json, engine: Json) -> list[str]:
    tokens = engine["printed"]["tokens"]
    least = engine["others"][1]["memory"] if len(engine["others"]) > 1 else None
    return [
        record["case"],
        record["kind"],
        str(len(engine["groups"])),
        f"{engine['num_blocks']:,}",
        "-" if tokens is None else f"{tokens:,}",
        "-" if least is None else f"{least:,}",
        "no" if record["differences"] else "yes",
    ]
