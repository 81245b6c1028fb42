"""plan.json's document -> the few figures of a sweep's row; rows -> one table, terminal or CSV.

A row is one job: `job`, `overrides`, `status`, `exit_code`, `error`, and where it fits FIELDS.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from kvpipe.report.accounts import KV_CAUSES
from kvpipe.text.figures import size
from kvpipe.text.lines import Line, Section, lay_out
from kvpipe.text.width import terminal_width

WASTE = (
    "block_tails",
    "window_alignment",
    "head_replication",
    "padding_layers",
    "page_padding",
    "null_block",
    "unused_richer_rank",
    "out_of_reach",
)
FIELDS = (
    "fits",
    "num_blocks",
    "max_model_len",
    "requests_at_peak",
    "requests_steady",
    "longest_request",
    "peak_bytes",
    "steady_bytes",
    "kv_bytes",
    "waste_percent",
    "printed",
    "mismatches",
)
_COLUMNS = ("job", "overrides", "status", "exit_code", *FIELDS, "error")


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """FIELDS of one finished job.

    kv_bytes: of rank 0. waste_percent: of the bytes given to its cache, in steady state, those that
    no request and no further request can use. printed: engine -> the tokens it would print.
    """
    plan, capacity = document["plan"], document["capacity"] or {}
    names = ("requests_at_peak", "requests_steady", "longest_request", "peak_bytes", "steady_bytes")
    return {
        "fits": capacity.get("requests_at_peak", 1) > 0,
        "num_blocks": plan["num_blocks"],
        "max_model_len": plan["max_model_len"],
        **{name: capacity.get(name) for name in names},
        "kv_bytes": plan["ranks"][0]["size_bytes"],
        "waste_percent": _waste_percent(document["bytes"]["ranks"][0]["steady"]),
        "printed": {line["engine"]: line["num_tokens"] for line in document["printed"]},
        "mismatches": document["verify"]["mismatches"],
    }


def _waste_percent(split: Mapping[str, int]) -> float:
    cache = sum(split[cause] for cause in KV_CAUSES)
    return round(100 * sum(split[cause] for cause in WASTE) / cache, 2) if cache else 0.0


def sweep_table(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """All jobs as one plain table, then each error in full. width None: the terminal's."""
    failed = [row for row in rows if row.get("error")]
    engines = list(dict.fromkeys(name for row in rows for name in row.get("printed") or {}))
    common = _common(rows)
    fits = sum(1 for row in rows if row.get("status") == "fits")
    section = Section(
        title=f"{len(rows)} jobs, {fits} fit"
        + (f"; all with {' '.join(common)}" if common else ""),
        headers=("job", "status", "max len", "peak", "steady", "KV", "waste", "overrides"),
        align="rlrrrrrl",
        rows=[_cells(row, common) for row in rows],
        paragraphs=[
            Line(
                "peak, steady: requests of max len that fit. waste: of the KV bytes, steady state"
            ),
            *([Line(f"what {', '.join(engines)} would print: in the CSV")] if engines else []),
        ],
    )
    sections = [section]
    if failed:
        lines = [Line(f"job {row['job']} ({row['exit_code']}): {row['error']}") for row in failed]
        sections.append(Section(title="What went wrong (exit code)", paragraphs=lines))
    return "".join(f"{line.text}\n" for line in lay_out(sections, width or terminal_width()))


def _common(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Overrides that every job of several has: said once, above the table."""
    words = [str(row.get("overrides", "")).split() for row in rows]
    return [word for word in words[0] if all(word in w for w in words)] if len(rows) > 1 else []


def _cells(row: Mapping[str, Any], common: Sequence[str]) -> tuple[str, ...]:
    def number(name: str) -> str:
        return "-" if row.get(name) is None else f"{row[name]:,}"

    kv, waste = row.get("kv_bytes"), row.get("waste_percent")
    return (
        str(row["job"]),
        str(row.get("status", "")),
        number("max_model_len"),
        number("requests_at_peak"),
        number("requests_steady"),
        "-" if kv is None else size(kv),
        "-" if waste is None else f"{waste:.1f}%",
        " ".join(w for w in str(row.get("overrides", "")).split() if w not in common),
    )


def sweep_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a job; a column `printed_<engine>` for each engine that any job names."""
    engines = list(dict.fromkeys(name for row in rows for name in row.get("printed") or {}))
    columns = [c for c in _COLUMNS if c != "printed"] + [f"printed_{name}" for name in engines]
    out = StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        printed = {f"printed_{k}": v for k, v in (row.get("printed") or {}).items()}
        writer.writerow({**row, **printed})
    return out.getvalue()
