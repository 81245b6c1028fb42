"""The contract of a command: a prepared request -> an Answer.

A command is `kvpipe/commands/<name>.py` with a class and `PLUGIN`, and `conf/command/<name>.yaml`
with its options. What all commands share is done once, in front/: the report (text, JSON, none),
the folder and its files, sweeps, exit codes, `--help`, completion. The tutorial is `find.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import KvpipeError, Problem
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.sweep_table import Column


class CommandOptions(BaseModel):
    """The section `command`: the command's name. A command with options of its own adds them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str


class Command(ABC):
    """One word of the command line.

    summary: what it answers, one line, for somebody who has never seen a KV cache. reads: the
    config sections that it reads and other commands do not; wants: the keys of `want` that it
    looks at (others are refused). example: a whole command line that
    works. word: the setting that a bare word after the command sets ("": none). files: what a
    job leaves in its folder, its document first. columns: what the table of a sweep shows of
    each job, beside its status and its overrides; legend: the lines under the table that
    explain them. fields: of the answer, those that every sweep.csv has, whether or not a job
    came so far. stays: it answers until it is stopped. leaves: a job that is no part of a sweep has
    a folder, too; without, its answer is its text and nothing is written.
    """

    summary: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    wants: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    word: ClassVar[str] = ""
    columns: ClassVar[tuple[Column, ...]] = ()
    legend: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()
    stays: ClassVar[bool] = False
    leaves: ClassVar[bool] = True
    Options: ClassVar[type[BaseModel]] = CommandOptions

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        """What is wrong in the sections that this command alone reads, of the composed values: it
        is told beside the mistakes in all others."""
        return ()

    @abstractmethod
    def run(self, prepared: Prepared, job: str | None) -> Answer:
        """The answer. job: its name in a sweep, else None.

        ConfigError for what only this command can see to be wrong (nothing is written then);
        DoesNotFit where the memory is too small to answer at all.
        """

    @classmethod
    def pictures_of_sweep(cls, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        """File name -> SVG: what the jobs of a sweep are together. rows: of sweep.csv."""
        return {}

    def pictures_of_failure(self, prepared: Prepared, error: KvpipeError) -> Mapping[str, str]:
        """File name -> SVG: what a job that came to nothing leaves all the same."""
        return {}
