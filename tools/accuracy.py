"""Writes docs/accuracy.md: what engines printed, against what kvpipe gives.

Run: python tools/accuracy.py

Records and tables of expected outcomes are the tests' own, so that page and tests cannot differ.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from accuracy_records import (  # noqa: E402
    GRAPHS,
    PEAKS,
    WEIGHTS,
    graphs_of,
    outside_torch,
    peak_of,
    weights_of,
)
from engine_cases import Verdict, verdict  # noqa: E402
from engine_records import cases  # noqa: E402
from throughput_records import records as throughput  # noqa: E402

from kvpipe.engines.defaults import DEFAULTS  # noqa: E402
from kvpipe.engines.versions import RULES, Row  # noqa: E402
from kvpipe.stages.profiling.estimates import Estimate  # noqa: E402
from kvpipe.text.figures import GIB  # noqa: E402

MEANING = {
    "reproduced": "every reading of what the record leaves open gives what was printed",
    "ambiguous": "some readings do; which, below",
    "ranks": "the printed lines are of different ranks: tokens and memory are off by less than 2%",
    "sizes": "SGLang's printed sizes follow from its printed token and slot counts",
    "identity": "the printed numbers agree with each other; no more can be asked of them",
    "unexplained": "no reading gives what was printed",
    "nothing to check": "the excerpt lacks memory, tokens or geometry",
}


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def page() -> str:
    verdicts = {name: verdict(case) for name, case in cases().items()}
    lines = [
        "# Accuracy",
        "",
        "Made by `python tools/accuracy.py`; a test keeps it current.",
        "",
        *_outcomes(verdicts),
        *_ambiguous(verdicts),
        *_unexplained(verdicts),
        *_estimates(),
        *_throughput(),
        *_versions(),
    ]
    return "\n".join(lines).rstrip() + "\n"


# --- engine logs ---
def outcome_counts() -> Counter[str]:
    return Counter(verdict(case).outcome for case in cases().values())


def _outcomes(verdicts: dict[str, Verdict]) -> Iterator[str]:
    yield f"## {len(verdicts)} public engine logs"
    yield ""
    yield "Inputs are what a record prints and what it says was assumed; kvpipe adds no constant of"
    yield "its own. A setting that neither gives (release, batch budget, dtype of the cache and of"
    yield "states, drafted tokens) is not chosen: every value the engine knows is a reading, and a"
    yield "memory figure stands for all bytes that round to it."
    yield ""
    yield "| outcome | records | of them independent | meaning |"
    yield "|---|---:|---:|---|"
    counts = Counter(v.outcome for v in verdicts.values())
    strong = Counter(
        v.outcome for name, v in verdicts.items() if cases()[name]["strength"] == "independent"
    )
    for outcome, meaning in MEANING.items():
        yield f"| {outcome} | {counts[outcome]} | {strong[outcome]} | {meaning} |"
    yield ""
    fitted = {name: v for name, v in verdicts.items() if cases()[name]["strength"] == "fitted"}
    by_outcome = Counter(v.outcome for v in fitted.values())
    told = ", ".join(f"{n} {outcome}" for outcome, n in by_outcome.most_common())
    yield f"Of the {len(fitted)} fitted records: {told}."
    yield ""
    for outcome in MEANING:
        names = [name for name, v in verdicts.items() if v.outcome == outcome]
        yield f"- {outcome}: {', '.join(names)}"
    yield ""


def _ambiguous(verdicts: dict[str, Verdict]) -> Iterator[str]:
    yield "### Ambiguous: which readings agree"
    yield ""
    yield "| record | agree | first of them |"
    yield "|---|---:|---|"
    for name, found in verdicts.items():
        if found.outcome == "ambiguous":
            agree = f"{len(found.agreeing)} of {len(found.tried)}"
            yield f"| {name} | {agree} | {found.agreeing[0]} |"
    yield ""


def _unexplained(verdicts: dict[str, Verdict]) -> Iterator[str]:
    yield "### Unexplained, and lines of different ranks"
    yield ""
    yield "| record | nearest reading | what the record says about itself |"
    yield "|---|---|---|"
    for name, found in verdicts.items():
        if found.outcome in ("unexplained", "ranks"):
            note = str(cases()[name]["note"] or cases()[name]["check_detail"] or "")
            yield f"| {name} | {found.detail} | {note} |"
    yield ""


# --- estimates ---
def _estimates() -> Iterator[str]:
    yield "## `profiling=estimate` against printed figures"
    yield ""
    yield "Logs print too few of these figures to fit anything: the formulas have stated bounds, at"
    yield "least nine of ten printed values lie inside, and this is how wide the ranges must be for"
    yield "that. A record is not applicable where it prints too little, or something else."
    yield ""
    activation = {
        name: (cases()[name]["activation_gib"], peak_of(name) if peak.shape else None, peak.why)
        for name, peak in PEAKS.items()
    }
    yield from _table("Activation peak", activation)
    graph = {
        name: (cases()[name]["cuda_graph_gib"], graphs_of(name), _graph_words(name))
        for name in GRAPHS
    }
    yield from _table("CUDA graphs", graph)
    outside = {
        name: (cases()[name]["non_torch_gib"], found, f"tp {cases()[name]['tp'] or 'not printed'}")
        for name, found in outside_torch().items()
    }
    yield from _table("Memory outside torch", outside)
    loaded = {name: (cases()[name]["weights_gib"], *_weights(name)) for name in WEIGHTS}
    yield from _table("Weights, as an engine holds them", loaded)


def _weights(name: str) -> tuple[Estimate, str]:
    counted, estimate = weights_of(name)
    added = 100 * (cases()[name]["weights_gib"] / counted - 1)
    return estimate, f"{counted:.2f} counted of the file: {added:+.1f}%"


def _graph_words(name: str) -> str:
    """Layers and engine of a record."""
    return (
        f"{GRAPHS[name]} layers, {cases()[name]['engine']} {cases()[name]['engine_version'] or ''}"
    )


def _table(title: str, rows: Mapping[str, tuple[float, Estimate | None, str]]) -> Iterator[str]:
    known = {name: row for name, row in rows.items() if row[1] is not None}
    inside = [
        name for name, (printed, found, _) in known.items() if found and _is_in(printed, found)
    ]
    widths = [found.high / found.low for _, found, _ in known.values() if found]
    yield f"### {title}: {len(inside)} of {len(known)} printed values lie inside"
    yield ""
    span = f"{min(widths):.2f} to {max(widths):.2f}" if widths else "-"
    yield f"Ranges are {span} wide (high over low)."
    yield ""
    yield "| record | printed GiB | low | best | high | inside | given |"
    yield "|---|---:|---:|---:|---:|---|---|"
    for name, (printed, estimate, words) in rows.items():
        yield f"| {name} | {printed:.2f} | {_cells(printed, estimate)} | {words.strip()} |"
    yield ""


def _cells(printed: float, estimate: Estimate | None) -> str:
    if estimate is None:
        return "- | - | - | not applicable"
    bounds = " | ".join(f"{n / GIB:.2f}" for n in (estimate.low, estimate.best, estimate.high))
    return f"{bounds} | {'yes' if _is_in(printed, estimate) else 'no'}"


def _is_in(printed: float, estimate: Estimate) -> bool:
    """Within the range, as far as two printed decimals can tell."""
    return estimate.low - GIB / 200 <= printed * GIB <= estimate.high + GIB / 200


# --- speed ---
def _throughput() -> Iterator[str]:
    """Tokens a second that were published, over what a step can do at best."""
    known = list(throughput())
    share = median(record.share for record in known)
    beyond = sum(record.share > 1 for record in known)
    yield "## The bound on time against published figures"
    yield ""
    yield (
        f"{len(known)} published speeds of decoding, {beyond} of them beyond the bound; the median "
        f"reaches {share:.2f} of it. At best: the weights and what each request's layers see, read "
        "at the card's nominal bandwidth (`physics/bounds.py`). `kvpipe fit-speed LOG --on h100` "
        "gives the share of a server of yours."
    )
    yield ""
    yield "| engine | model | weights | device | users | tokens each | tokens/s | at best | share |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in known:
        yield (
            f"| [{r.engine}]({r.source}) | {r.model} | {r.weights} | {r.device} | {r.users:,} | "
            f"{r.tokens:,} | {r.per_second:,.1f} | {r.best_per_second:,.1f} | {r.share:.2f} |"
        )
    yield ""


# --- versions ---
def _versions() -> Iterator[str]:
    yield "## What changed when"
    yield ""
    yield "Rules (`kvpipe/engines/versions.py`) and defaults (`kvpipe/engines/defaults.py`) that"
    yield "changed between releases of vLLM. Where `certain` is no, the first release is not known."
    yield ""
    yield "| rule | from | until | value | certain | source |"
    yield "|---|---|---|---|---|---|"
    yield from (_row(row) for row in _changing(RULES))
    yield from (_row(row) for row in _changing(DEFAULTS))
    yield ""


def _changing(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if row.since or row.until)


def _row(row: Row) -> str:
    since, until = (".".join(map(str, v)) if v else "" for v in (row.since, row.until))
    value = (
        ", ".join(sorted(map(str, row.value)))
        if isinstance(row.value, frozenset)
        else str(row.value)
    )
    if row.rule == "merge_ignores":
        value = "see the table"
    certain = "yes" if row.certain else "no"
    return f"| {row.rule} | {since} | {until} | {value or '-'} | {certain} | {row.source} |"


if __name__ == "__main__":
    main()
