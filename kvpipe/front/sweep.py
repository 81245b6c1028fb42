"""A sweep: all requests are tried before the first job runs; a bad job never loses the others.

Hydra's own sweepers and launchers run the jobs (basic, joblib, ...). A job never raises: it leaves
its result.json, and the table is made from these files, so that it is the same whichever process
ran them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import _run_hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.folders import new_folder
from kvpipe.request.compose import (
    CONFIG_NAME,
    compose_request,
    configuration,
    run_folder,
    use_search_path,
)
from kvpipe.request.confdir import CONF_DIR

MAX_JOBS = 100_000


def run_sweep(args: Namespace, parser: ArgumentParser) -> int:
    """The largest exit code of the jobs. ConfigError before any of them when one cannot compose."""
    wanted, jobs = check_jobs(args)
    folder = new_folder(wanted)
    args.overrides = [o for o in args.overrides if not o.startswith("hydra.sweep.dir=")]
    args.overrides.append(f"hydra.sweep.dir='{folder}'")
    try:
        run_hydra(args, parser)
    except OSError as error:  # a full disk: say so, and keep what the finished jobs left
        print(f"kvpipe: {folder}: {error.strerror or error}", file=sys.stderr)
    except ConfigError:
        # Jobs that compose one by one, but not in this combination: nothing ran.
        if not any(folder.glob("*/result.json")):
            shutil.rmtree(folder)
        raise
    return finish(folder, jobs)


def check_jobs(args: Namespace) -> tuple[Path, list[list[str]]]:
    """The sweep's folder and every job's overrides, each distinct one tried by itself."""
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
            problems += _not_swept(composed.raw)
            config = config or composed.config
        if problems:
            raise ConfigError(dict.fromkeys(problems))
        assert config is not None
        return run_folder(config, "hydra.sweep.dir"), jobs


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
        return parsed, BasicSweeper.split_arguments(parsed, None)[0]
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


def _not_swept(raw: dict[str, Any]) -> list[Problem]:
    """A sweep runs the five stages in every job; the other commands are for one request."""
    if raw.get("command") == "run":
        return []
    return [Problem("-m", "the command run, in a sweep", f"'{raw.get('command')}'", "leave out -m")]


def _unknown_keys(raw: dict[str, Any]) -> list[Problem]:
    """A key that no schema knows (`+cache.blocksize=32`) is wrong in every job."""
    from kvpipe.request.config import collect

    return [p for p in collect(raw)[1] if p.expected.startswith(("a known", "a registered"))]


def run_hydra(args: Namespace, parser: ArgumentParser) -> int:
    """Hydra's own front end (help, --cfg, completion, sweeps) on our config and search path."""
    use_search_path([args.config_dir] if args.config_dir else [])
    with _errors_raised():
        try:
            _run_hydra(
                args=args,
                args_parser=parser,
                task_function=_job,
                config_path=str(CONF_DIR),
                config_name=CONFIG_NAME,
            )
        except (HydraException, OmegaConfBaseException, ValueError, KeyError) as error:
            line = " ".join(str(error).split())
            raise ConfigError(Problem("overrides", "settings that compose", line)) from error
        except SystemExit as end:  # --help and the like end the process in Hydra's own front end
            return 2 if end.code else 0  # what Hydra refuses here is a wrong request
    return 0


@contextmanager
def _errors_raised() -> Iterator[None]:
    """Hydra prints errors its own way and exits with 1 unless this variable says to raise them."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def _job(config: DictConfig) -> float | None:
    """One job, in whichever process the launcher runs it: leaves files, raises nothing."""
    from kvpipe.front.job import failure, run_job, write_outcome
    from kvpipe.pipeline import prepare
    from kvpipe.request.compose import plain

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        outcome = run_job(prepare(plain(config)), lambda: folder, None, job=str(hydra.job.num))
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


def finish(folder: Path, jobs: Sequence[Sequence[str]]) -> int:
    """Print the table (or one JSON line a job), write sweep.csv; the largest exit code."""
    from kvpipe.files.atomic import write_atomic
    from kvpipe.report.summary import sweep_csv, sweep_table

    rows = [row_of_job(folder, number, job) for number, job in enumerate(jobs)]
    write_atomic(folder / "sweep.csv", sweep_csv(rows))
    wants_json = any(o.startswith("report=json") for job in jobs for o in job)
    if wants_json:
        for row in rows:
            print(_json_line(folder, row))
    else:
        sys.stdout.write(sweep_table(rows))
        print(f"  files: {folder}/")
        print("    sweep.csv, and of each job <job>/plan.json, memory_map.svg, result.json")
    return max((int(row["exit_code"]) for row in rows), default=0)


def _json_line(folder: Path, row: dict[str, Any]) -> str:
    """The job's plan.json, or the short document of a job that has none, on one line."""
    from kvpipe.report.json_ import short_document

    number = str(row["job"])
    try:
        document = json.loads((folder / number / "plan.json").read_text(encoding="utf-8"))
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
