"""ReportInput -> fits, may not fit, does not fit: one word, and one sentence with its figures.

"May not fit" is said where the memory is an estimate whose range straddles what one request needs:
the engine may start and may not.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.cache.plan import Plan
from kvpipe.report.run_input import ReportInput
from kvpipe.text.figures import count, size

_STYLES = {"fits": "good", "may not fit": "warning", "does not fit": "bad", "": "good"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """word: fits | may not fit | does not fit | "" (there is nothing to store). short: the answer,
    at most 80 columns; it also stands last on the screen. figures: what it is about."""

    word: str
    short: str
    figures: str = ""

    @property
    def style(self) -> str:
        """Of its line."""
        return _STYLES[self.word]

    @property
    def status(self) -> str:
        """For a program."""
        return self.word.replace(" ", "_") or "fits"


def verdict_of(report: ReportInput) -> Verdict:
    plan = report.plan
    if plan.capacity is None:
        return Verdict(word="", short="Nothing to store: no layer of this model keeps a cache.")
    word, short = _answer(report)
    figures = f"{count(plan.num_blocks, 'block')}, {_pools(plan)}"
    if plan.requested_len > plan.limits.max_model_len:
        figures += f"; max_model_len lowered from {plan.requested_len:,}"
    if report.weights_left_out:
        figures += f"; {size(report.weights_left_out)} of weights are not counted"
    return Verdict(word=word, short=f"{short} on {report.headline.device}", figures=figures)


def _pools(plan: Plan) -> str:
    """`20.00 GiB on each of 2 ranks`, or what each has where they differ."""
    pools = [size(rank.config.size_bytes) for rank in plan.ranks]
    if len(pools) == 1:
        return pools[0]
    if len(set(pools)) == 1:
        return f"{pools[0]} on each of {len(pools)} ranks"
    smallest = min(plan.ranks, key=lambda rank: rank.config.size_bytes)
    largest = max(plan.ranks, key=lambda rank: rank.config.size_bytes)
    ends = [
        f"{size(each.config.size_bytes)} on rank {plan.ranks.index(each)}"
        for each in (smallest, largest)
    ]
    return f"{ends[0]} to {ends[1]} of {len(pools)}"


def _answer(report: ReportInput) -> tuple[str, str]:
    plan, length = report.plan, count(report.plan.limits.max_model_len, "token")
    assert plan.capacity is not None
    if plan.capacity.requests_at_peak == 0:
        return "does not fit", f"DOES NOT FIT: no request of {length}"
    running, asked = running_at_once(report), report.requests_asked
    if running is not None and running < asked:
        return "does not fit", f"DOES NOT FIT: {running:,} of {count(asked, 'user')} of {length}"
    if over := max(account.overcommitted_bytes for account in report.accounts):
        return "does not fit", f"DOES NOT FIT: {size(over)} more than there are"
    if over := report.profile.over_at_worst_bytes:
        return "may not fit", f"MAY NOT FIT: at worst {size(over)} over the card: {length}"
    if short := report.profile.lacking_at_worst_bytes([r.required_bytes for r in plan.ranks]):
        return "may not fit", f"MAY NOT FIT: at worst {size(short)} are missing for {length}"
    if report.weights_left_out:
        total = report.profile.ranks[0].total.num_bytes
        if report.weights_left_out > total:
            return "may not fit", f"ONLY THE CACHE FITS, not the weights: {length}"
        return "fits", f"THE CACHE FITS, weights not counted: {length}"
    return "fits", f"IT FITS: {length}"


def running_at_once(report: ReportInput) -> int | None:
    """Requests of the planned length in a running server, by memory and scheduler, on all copies;
    None where nothing is stored."""
    if report.plan.capacity is None:
        return None
    of_a_copy = min(report.plan.capacity.requests_running, report.max_num_seqs or 2**31)
    return report.copies * of_a_copy
