"""What an engine's log printed, beside what these layers and that memory give, term by term."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.log_comparison import LogComparison, Reproduction, explain
from kvpipe.text.lines import Line, Section


def log_section(compared: LogComparison, num_ranks: int) -> Section:
    """Printed numbers against the rules that come nearest; every difference in words."""
    name = compared.engine + (f" {compared.version}" if compared.version else "")
    if compared.engine != "vllm":
        return Section(
            title=f"The log of {name}",
            paragraphs=[*_figures(compared), *_differing(compared)],
        )
    nearest = _nearest(compared)
    rows = [(t.name, t.printed, t.predicted, "yes" if t.agrees else "NO") for t in nearest.terms]
    return Section(
        title=f"The log of {name}, and what {nearest.engine} gives for its memory (exact)",
        headers=("", "printed", "these rules", "agrees"),
        align="lrrl",
        rows=rows,
        paragraphs=[*_verdict(compared, nearest, num_ranks), *_differing(compared)],
    )


def _nearest(compared: LogComparison) -> Reproduction:
    """The rules that agree on most; the newest of them."""
    return max(reversed(compared.by_rules), key=lambda r: sum(t.agrees for t in r.terms))


def _verdict(compared: LogComparison, nearest: Reproduction, num_ranks: int) -> Iterator[Line]:
    if not nearest.terms and not nearest.problem:
        yield Line("the log prints no capacity to compare with")
        return
    if nearest.agrees:
        names = ", ".join(each.engine for each in compared.agreeing)
        yield Line(f"reproduced, within the rounding of the memory figure, by {names}", "good")
        others = [each for each in compared.by_rules if not each.agrees]
        if others:
            yield Line(f"not by {', '.join(each.engine for each in others)}")
        return
    for words in explain(nearest, compared.printed, num_ranks):
        yield Line(words, "warning")


def _figures(compared: LogComparison) -> Iterator[Line]:
    if compared.printed.kv_tokens is not None:
        yield Line(f"it printed {compared.printed.kv_tokens:,} tokens")
    yield Line(
        f"the memory of its arrays is taken as given and planned by kvpipe's rules; how "
        f"{compared.engine} comes to its capacity line is not reproduced"
    )


def _differing(compared: LogComparison) -> Iterator[Line]:
    for words in compared.differing:
        yield Line(f"set differently: {words}", "warning")
