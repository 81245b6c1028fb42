"""Everything that the reports of a run are written from: values, each made by a stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvpipe.cache.plan import Plan
from kvpipe.notes import Note
from kvpipe.report.accounts import RankAccount
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.profiling.base import MemoryProfile

if TYPE_CHECKING:  # needed for logs alone
    from kvpipe.answers.log_answer import LogComparison
    from kvpipe.answers.served import Held


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Which run this is, in words. backend_reason: why that backend was chosen."""

    model: str
    engine: str
    device: str
    backend: str
    backend_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportInput:
    """Everything a report may show.

    accounts: one a rank, where its bytes go. verify: the self-proof. address_map: where every array
    of every layer lies, as JSON (None: allocation was not asked).
    timings: seconds a stage, in order. config: the run's settings as they were composed. job: the
    job of a sweep, else None. log: an engine's log beside this plan (profiling=log).
    serve: the command that starts vLLM with this plan ("": none does); no_serve: why there
    is none.
    max_num_seqs: requests that the scheduler runs at once. weights_left_out: bytes of weights that
    the device would have to hold, too, but that no item of the profile charges (a CPU run loads
    none).
    requests_asked: of the planned length, at once (want.requests). copies: of the planned ranks,
    which share these (data parallelism). held_at_most: where the plan does not serve them, what the
    high end of the memory's estimate would hold (None: not these, either). unread: why the rules of
    the engine's release are those of another ("": they are its own).
    """

    headline: Headline
    plan: Plan
    profile: MemoryProfile
    accounts: tuple[RankAccount, ...]
    verify: VerifyReport
    address_map: Mapping[str, Any] | None = None
    notes: tuple[Note, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    backend_facts: Mapping[str, str] = field(default_factory=dict)
    job: str | None = None
    log: LogComparison | None = None
    serve: str = ""
    no_serve: str = ""
    max_num_seqs: int | None = None
    weights_left_out: int = 0
    requests_asked: int = 1
    copies: int = 1
    held_at_most: Held | None = None
    unread: str = ""
