"""A sweep: all requests are tried before the first job runs; a bad job never loses the others.

Hydra's own sweepers and launchers run the jobs (basic, joblib, ...). A job never raises: it leaves
its result.json, and the table is made from these files, so that it is the same whichever process
ran them.
"""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from kvpipe.commands.base import Command
from kvpipe.errors import ConfigError, Problem
from kvpipe.files.folders import new_folder
from kvpipe.front.hydra_front import run_hydra
from kvpipe.front.hydra_private import sweep_jobs
from kvpipe.plugins import COMMANDS
from kvpipe.request.compose import (
    CONFIG_NAME,
    compose_request,
    configuration,
    run_folder,
)

MAX_JOBS = 100_000


def run_sweep(args: Namespace, parser: ArgumentParser) -> int:
    """The largest exit code of the jobs. ConfigError before any of them when one cannot compose."""
    wanted, jobs, command = check_jobs(args)
    folder = new_folder(wanted)
    args.overrides = [o for o in args.overrides if not o.startswith("hydra.sweep.dir=")]
    args.overrides.append(f"hydra.sweep.dir='{folder}'")
    try:
        run_hydra(args, parser, _job)
    except OSError as error:  # a full disk: say so, and keep what the finished jobs left
        print(f"kvpipe: {folder}: {error.strerror or error}", file=sys.stderr)
    except ConfigError:
        # Jobs that compose one by one, but not in this combination: nothing ran.
        if not any(folder.glob("*/result.json")):
            shutil.rmtree(folder)
        raise
    return finish(folder, jobs, command)


def check_jobs(args: Namespace) -> tuple[Path, list[list[str]], type[Command]]:
    """The sweep's folder, every job's overrides, each distinct one tried by itself, and the command
    that the jobs run."""
    with configuration(args.config_dir, args.config_path):
        parsed, jobs = _split(args.overrides)
        single = [item.input_line or "" for item in parsed if not item.is_sweep_override()]
        swept = _to_try(parsed, jobs)
        problems: list[Problem] = []
        config = None
        for choice in [[one] for one in swept] or [[]]:
            overrides = [*single, *choice]
            composed = compose_request(overrides, args.config_name or CONFIG_NAME)
            problems += [*composed.problems, *_unknown_keys(composed.raw)]
            config = config or composed.config
        if problems:
            raise ConfigError(dict.fromkeys(problems))
        assert config is not None
        return run_folder(config, "hydra.sweep.dir"), jobs, COMMANDS.get(config.command.name)


def _split(overrides: Sequence[str]) -> tuple[list[Override], list[list[str]]]:
    """The overrides, parsed, and those of every job; ConfigError where they cannot be a sweep."""
    try:
        loader = GlobalHydra.instance().config_loader()
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
        count = prod(
            sum(1 for _ in item.sweep_iterator()) for item in parsed if item.is_discrete_sweep()
        )
        if not 1 <= count <= MAX_JOBS:
            raise ConfigError(Problem("-m", f"1 to {MAX_JOBS:,} jobs", f"{count:,}"))
        return parsed, sweep_jobs(parsed)
    except (HydraException, OmegaConfBaseException) as error:
        line = " ".join(str(error).split()).partition(" See https")[0]
        raise ConfigError(Problem("-m", "overrides that make a sweep", line)) from error


def _to_try(parsed: Sequence[Override], jobs: Sequence[Sequence[str]]) -> list[str]:
    """Every swept choice of a group, and one value of every swept key: a wrong value is its own
    job's business, an unknown key is not."""
    groups = GlobalHydra.instance().config_loader().list_groups("")
    swept = {item.get_key_element(): item for item in parsed if item.is_sweep_override()}
    tried: dict[str, None] = {}
    for job in jobs:
        for override in job:
            key = override.partition("=")[0]
            if key in swept and (swept[key].key_or_group in groups or key not in tried):
                tried.setdefault(override)
                tried.setdefault(key)
    return [override for override in tried if "=" in override]


def _unknown_keys(raw: dict[str, Any]) -> list[Problem]:
    """A key that no schema knows (`+cache.blocksize=32`) is wrong in every job."""
    from kvpipe.request.config import collect

    return [p for p in collect(raw)[1] if p.expected.startswith(("a known", "a registered"))]


def _job(config: DictConfig) -> float | None:
    """One job, in whichever process the launcher runs it: leaves files, raises nothing."""
    from kvpipe.front.job import failure, run_job, write_outcome
    from kvpipe.front.prepared import prepared_values
    from kvpipe.request.compose import plain

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        prepared = prepared_values(plain(config), list(hydra.overrides.task))
        outcome = run_job(prepared, lambda: folder, None, job=str(hydra.job.num))
    except Exception as error:
        outcome = write_outcome(folder, failure(error))
    return float(outcome.exit_code)


class SweepTable(Callback):
    """Progress while the jobs of a sweep run in this process; joblib runs them elsewhere."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.total = len(_split(list(config.hydra.overrides.task))[1])

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        if not self.total:
            return
        self.done += 1
        width = 30
        bar = "#" * (width * self.done // self.total)
        if sys.stderr.isatty():
            end = "\n" if self.done == self.total else "\r"
            print(f"[{bar:<{width}}] {self.done}/{self.total} jobs", end=end, file=sys.stderr)


def finish(folder: Path, jobs: Sequence[Sequence[str]], command: type[Command]) -> int:
    """Print the table (or one JSON line a job), write sweep.csv; the largest exit code."""
    from kvpipe.files.atomic import write_atomic
    from kvpipe.report.sweep_table import sweep_csv, sweep_table

    rows = [row_of_job(folder, number, job) for number, job in enumerate(jobs)]
    write_atomic(folder / "sweep.csv", sweep_csv(rows, command.fields))
    wants_json = any(o.startswith("report=json") for job in jobs for o in job)
    if wants_json:
        for row in rows:
            print(_json_line(folder, row, command))
    else:
        left = ", ".join((*command.files, "result.json"))
        sys.stdout.write(sweep_table(rows, command.columns, command.legend))
        print(f"  files: {folder}/")
        print(f"    sweep.csv, and of each job <job>/{left}")
    return max((int(row["exit_code"]) for row in rows), default=0)


def _json_line(folder: Path, row: dict[str, Any], command: type[Command]) -> str:
    """The job's document, or the short one of a job that has none, on one line."""
    from kvpipe.report.json_ import short_document

    number = str(row["job"])
    try:
        text = (folder / number / command.files[0]).read_text(encoding="utf-8")
        document = json.loads(text)
    except (OSError, ValueError):
        errors = row.get("errors", [row["error"]])
        document = short_document(row["status"], row["exit_code"], errors, number)
    return json.dumps(document)


def row_of_job(folder: Path, number: int, overrides: Sequence[str]) -> dict[str, Any]:
    """What a job left; a job that left nothing (its process was killed) is `lost`."""
    shown = " ".join(o for o in overrides if not o.startswith("hydra"))
    row: dict[str, Any] = {"job": number, "overrides": shown}
    try:
        left = (folder / str(number) / "result.json").read_text(encoding="utf-8")
        row.update(json.loads(left))
        return row
    except (OSError, ValueError):
        return row | {"status": "lost", "exit_code": 3, "error": "the job left no result"}
