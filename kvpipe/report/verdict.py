"""ReportInput -> fits, may not fit, does not fit: one word, and one sentence with its figures.

"May not fit" is said where the memory is an estimate whose range straddles what the users that were
asked for need (one, where nobody said how many): the engine may serve them and may not.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.answers.cache_range import cache_words, poorest, range_words
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.cache.load import of_a_copy
from kvpipe.cache.plan import Plan
from kvpipe.report.last_line import STYLES
from kvpipe.report.run_input import ReportInput
from kvpipe.text.figures import count, size

_WIDTH = 80  # columns of a headline


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """word: fits | may not fit | does not fit | "" (there is nothing to store). short: the answer,
    at most 80 columns; it also stands last on the screen. figures: what it is about. serves: by the
    best value of the memory, where that is an estimate."""

    word: str
    short: str
    figures: str = ""
    serves: bool = True

    @property
    def style(self) -> str:
        """Of its line."""
        return STYLES[self.word]

    @property
    def status(self) -> str:
        """For a program."""
        return self.word.replace(" ", "_") or "fits"


def verdict_of(report: ReportInput) -> Verdict:
    plan = report.plan
    if plan.capacity is None:
        return Verdict(word="", short="Nothing to store: no layer of this model keeps a cache.")
    refusal = _refusal(report)
    word, short = refusal or _answer(report)
    figures = f"{count(plan.num_blocks, 'block')}, {_pools(plan)}"
    if refusal is None and word == "may not fit" and (missing := _missing(report)):
        figures += f"; at worst {size(missing)} are missing"
    if plan.requested_len > plan.limits.max_model_len:
        figures += f"; max_model_len lowered from {plan.requested_len:,}"
    if report.weights_left_out:
        figures += f"; {size(report.weights_left_out)} of weights are not counted"
    short = f"{short} on {report.headline.device}"
    short += _of_cache(report, _WIDTH - len(short))
    return Verdict(word=word, short=short, figures=figures, serves=refusal is None)


def _of_cache(report: ReportInput, columns: int) -> str:
    """`, 2.70 GiB of cache (1.10 to 3.90)`: the poorest rank's, where it is an estimate; shorter,
    or nothing, where there are not the columns for it."""
    cache = poorest(report.profile)
    if not (ends := range_words(cache)):
        return ""
    ways = (f", {cache_words(cache)}", f", {size(cache.num_bytes)} ({ends})", "")
    return next(words for words in ways if len(words) <= max(0, columns))


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


def _refusal(report: ReportInput) -> tuple[str, str] | None:
    """Where the plan does not serve; None where it does. What the high end of an estimate would
    hold may fit."""
    plan, length = report.plan, count(report.plan.limits.max_model_len, "token")
    assert plan.capacity is not None
    may = report.held_at_most is not None
    word, said = ("may not fit", "MAY NOT FIT") if may else ("does not fit", "DOES NOT FIT")
    if plan.capacity.requests_at_peak == 0:
        return word, f"{said}: no request of {length}"
    running, asked = running_at_once(report), report.requests_asked
    if running is not None and running < asked:
        return word, f"{said}: only {running:,} of {count(asked, 'user')} of {length}"
    if over := max(account.overcommitted_bytes for account in report.accounts):
        return word, f"{said}: {size(over)} more than there are"
    return None


def _answer(report: ReportInput) -> tuple[str, str]:
    """Where the plan serves."""
    length, asked = count(report.plan.limits.max_model_len, "token"), report.requests_asked
    if over := report.profile.over_at_worst_bytes:
        return "may not fit", f"MAY NOT FIT: at worst {size(over)} over the card: {length}"
    if _missing(report):
        users = f"{count(asked, 'user')} of " if asked > 1 else ""
        return "may not fit", f"MAY NOT FIT: {users}{length}"
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
    running = min(report.plan.capacity.requests_running, report.max_num_seqs or 2**31)
    return report.copies * running


def _missing(report: ReportInput) -> int:
    """Bytes that the users asked for lack on a copy at the low end of the memory's range."""
    if report.plan.capacity is None or not report.plan.capacity.requests_at_peak:
        return 0
    asked = of_a_copy(report.requests_asked, report.copies)
    return missing_at_low_end(report.plan, report.profile, asked)
