"""The contract of a report: all that a run found out -> text, JSON or nothing, on one stream.

A report explains; it computes no plan. It is given values, never a stage or a config object, and
needs no torch. The tutorial is `none.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.notes import Note
from kvpipe.report.accounts import RankAccount
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.profiling.base import MemoryProfile

if TYPE_CHECKING:  # needed for logs alone
    from kvpipe.answers.log_answer import LogComparison


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
    serve: the command that starts vLLM with this plan ("": none does).
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


class Report(ABC):
    """One way to tell it. A plugin also has `Options` and takes them in its constructor."""

    @abstractmethod
    def render(self, report: ReportInput, stream: TextIO) -> None:
        """Write the report of a run whose plan fits."""

    def render_failure(self, error: KvpipeError, job: str | None, stream: TextIO) -> None:
        """Write what a run that ended with `error` has to say here. The error's own lines go to
        stderr whatever the report is, so most reports say nothing."""
        return None
