"""The jobs of a sweep -> one table: for a terminal, or as CSV.

A row is one job: `job`, `overrides`, `status`, `exit_code`, `error`, and the fields of what its
command answered. Which of them the table shows, the command says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section, lay_out, terminal_width

_FIRST = ("job", "overrides", "status", "exit_code")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table. align: "l" or "r". text: the row of a job -> its cell."""

    title: str
    align: str
    text: Callable[[Mapping[str, Any]], str]


def figure(name: str) -> Callable[[Mapping[str, Any]], str]:
    """A column's text: the row's number of that name, "-" where it has none."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]:,}"


def sweep_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    legend: Sequence[str] = (),
    width: int | None = None,
    said: Callable[[str], str] = str,
) -> str:
    """All jobs as one plain table, then each error in full. width None: the terminal's. said: an
    override -> the words that a person used for it."""
    failed = [row for row in rows if row.get("error")]
    common = said_apart(rows)
    section = Section(
        title=f"{count(len(rows), 'job')}, {_outcomes(rows)}",
        headers=("job", "status", *(column.title for column in columns), "overrides"),
        align="rl" + "".join(column.align for column in columns) + "l",
        rows=[
            (
                str(row["job"]),
                str(row.get("status", "")),
                *(column.text(row) for column in columns),
                " ".join(said(w) for w in str(row.get("overrides", "")).split() if w not in common),
            )
            for row in rows
        ],
        paragraphs=[
            *([Line(f"all with {' '.join(map(said, common))}")] if common else []),
            *(Line(text) for text in legend),
        ],
    )
    sections = [section]
    if failed:
        lines = [Line(f"job {row['job']} ({row['exit_code']}): {row['error']}") for row in failed]
        sections.append(Section(title="What went wrong (exit code)", paragraphs=lines))
    return "".join(f"{line.text}\n" for line in lay_out(sections, width or terminal_width()))


def _outcomes(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many fit, and how many may not: those whose memory is an estimate that straddles."""
    statuses = [row.get("status") for row in rows]
    may = statuses.count("may_not_fit")
    return f"{statuses.count('fits')} fit" + (f", {may} may not fit" if may else "")


def sweep_csv(rows: Sequence[Mapping[str, Any]], fields: Sequence[str] = ()) -> str:
    """One line a job; a field of several values (`printed`: engine -> tokens) is a column
    `printed_<engine>` for each that any job names. fields: columns that are there in any case."""
    flat = [_flat(row) for row in rows]
    whole = [
        key
        for key in (*fields, *dict.fromkeys(key for row in rows for key in row))
        if not any(isinstance(row.get(key), Mapping) for row in rows)
    ]
    known = {*_FIRST, "error", "errors"}
    plain = [key for key in dict.fromkeys(whole) if key not in known]
    parts = dict.fromkeys(key for row in flat for key in row if key not in {*known, *plain})
    import csv  # a sweep alone writes one

    out = StringIO()
    columns = [*_FIRST, *plain, "error", *parts]
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}_{name}": part for name, part in value.items()}
        else:
            flat[key] = value
    return flat


def said_apart(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Overrides that every job of several has: said once, above the table."""
    words = [str(row.get("overrides", "")).split() for row in rows]
    return [word for word in words[0] if all(word in w for w in words)] if len(rows) > 1 else []
