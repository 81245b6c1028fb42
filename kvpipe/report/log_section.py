"""What an engine's log printed, beside what these layers and that memory give, term by term."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.log_answer import LogComparison, explain
from kvpipe.answers.log_comparison import Reproduction
from kvpipe.text.lines import Line, Section

MOST_NAMED = 6  # readings that are named one by one


def log_section(compared: LogComparison, num_ranks: int) -> Section:
    """Printed numbers against the rules that come nearest; every difference in words."""
    name = compared.engine + (f" {compared.version}" if compared.version else "")
    if not compared.by_rules:
        return Section(
            title=f"The log of {name}",
            paragraphs=[*_figures(compared), *_settings(compared)],
        )
    shown = compared.agreeing[-1] if compared.agreeing else compared.nearest[-1]
    rows = [(t.name, t.printed, t.predicted, "yes" if t.agrees else "NO") for t in shown.terms]
    return Section(
        title=f"The log of {name}, and what {shown.engine} gives for its memory (exact)",
        headers=("", "printed", "these rules", "agrees"),
        align="lrrl",
        rows=rows,
        paragraphs=[
            *_verdict(compared, shown, num_ranks),
            *_copies(compared),
            *_settings(compared),
        ],
    )


def _verdict(compared: LogComparison, shown: Reproduction, num_ranks: int) -> Iterator[Line]:
    if not shown.terms and not shown.problem:
        yield Line("the log prints no capacity to compare with")
        return
    if compared.found:
        yield from _found(compared)
        return
    if shown.agrees:
        names = ", ".join(each.engine for each in compared.agreeing)
        supposed = f", with {' and '.join(shown.supposed)}" if shown.supposed else ""
        yield Line(
            f"reproduced, within the rounding of the memory figure, by {names}{supposed}", "good"
        )
        others = [each for each in compared.by_rules if not each.agrees]
        if others:
            yield Line(f"not by {', '.join(each.engine for each in others)}")
        return
    if len(compared.nearest) > 1:
        yield Line(f"nearest, equally far off: {', '.join(n.engine for n in compared.nearest)}")
    for words in explain(shown, compared.printed, num_ranks):
        yield Line(words, "warning")
    if compared.searched:
        yield Line(
            f"none of {compared.searched:,} readings of what the log leaves out gives every figure",
            "warning",
        )


def _found(compared: LogComparison) -> Iterator[Line]:
    """Which settings give every figure, where the run's own do not."""
    named: dict[tuple[str, ...], list[str]] = {}
    for each in compared.found:
        named.setdefault(each.supposed, []).append(each.engine)
    for supposed, engines in list(named.items())[:MOST_NAMED]:
        words = " and ".join(supposed)
        yield Line(f"every figure comes out with {words} ({', '.join(engines)})", "good")
    if len(named) > MOST_NAMED:
        yield Line(f"and with {len(named) - MOST_NAMED} other readings of what the log leaves out")


def _copies(compared: LogComparison) -> Iterator[Line]:
    for name, result in compared.copies:
        told = ", ".join(f"{t.name} {t.printed}" for t in result.terms)
        word = "reproduced" if result.agrees else "not reproduced"
        yield Line(f"{name}: {told}: {word}", "good" if result.agrees else "warning")


def _figures(compared: LogComparison) -> Iterator[Line]:
    if compared.printed.kv_tokens is not None:
        yield Line(f"it printed {compared.printed.kv_tokens:,} tokens")
    yield Line(
        f"the memory of its arrays is taken as given and planned by kvpipe's rules; how "
        f"{compared.engine} comes to its capacity line is not reproduced"
    )


def _settings(compared: LogComparison) -> Iterator[Line]:
    if compared.taken:
        yield Line(f"from the log: {', '.join(compared.taken)}")
    for words in compared.differing:
        yield Line(f"set differently: {words}", "warning")
    if compared.error:
        yield Line(f"the log ends with: {compared.error}", "warning")
