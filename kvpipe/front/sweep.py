"""A sweep: all requests are tried before the first job runs; a bad job never loses the others.

Hydra's launchers run the jobs (basic, joblib, ...). A job never raises: it leaves its result.json,
and the table is made from these files, so that it is the same whichever process ran them. SIGTERM
and SIGINT end a sweep with the table of what is done.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvpipe.commands.base import Command
from kvpipe.errors import ConfigError, Problem
from kvpipe.files.named import in_words, named
from kvpipe.front.hydra_front import hydras_errors
from kvpipe.front.jobs_here import composes_here, run_jobs_here
from kvpipe.front.signals import Stopped, stopped_by_signals
from kvpipe.front.sweep_folder import in_a_shell, pending, quoted, row_of_job, sweep_folder
from kvpipe.front.words import asks_for_json
from kvpipe.plugins import COMMANDS
from kvpipe.request.compose import as_yaml, compose_request, configuration, run_folder
from kvpipe.request.confdir import CONFIG_NAME
from kvpipe.request.hydra_private import callbacks_of, sweep_jobs
from kvpipe.request.schema import shown
from kvpipe.request.typed import Typed
from kvpipe.text.clean import clean_lines
from kvpipe.text.figures import count
from kvpipe.text.strict_json import strict_json

MAX_JOBS = 100_000


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep asks for. jobs: the overrides of each. of_hydra: those for Hydra, the sweep's
    folder left out. command: what every job runs. here: jobs run in this process, without Hydra:
    all are plain, and no other launcher was chosen."""

    wanted: Path
    jobs: list[list[str]]
    of_hydra: list[str]
    command: type[Command]
    here: bool


def run_sweep(args: Namespace, typed: Typed) -> int:
    """The largest exit code of the jobs; 128 + the signal's number where one stopped the sweep.
    ConfigError before any job runs when one cannot compose. typed: in whose words the table is."""
    with configuration(args.config_dir, args.config_path):
        shipped = args.config_path is None and args.config_name in (None, CONFIG_NAME)
        sweep = check_jobs(args.overrides, args.config_name or CONFIG_NAME, shipped)
        with sweep_folder(sweep.wanted, sweep.jobs) as folder:
            stopped = _launch(sweep, folder, args.config_name or CONFIG_NAME)
            return max(stopped, finish(folder, sweep.jobs, sweep.command, typed))


def check_jobs(overrides: Sequence[str], config_name: str, shipped: bool) -> Sweep:
    """The sweep, each distinct override of it tried by itself, and then every job. shipped: it
    starts from our own config, not from a saved one."""
    parsed, jobs = _split(overrides)
    here = shipped and composes_here(jobs)
    single = [item.input_line or "" for item in parsed if not item.is_sweep_override()]
    problems: list[Problem] = []
    config = None
    for choice in [[one] for one in _to_try(parsed, jobs)] or [[]]:
        composed = compose_request([*single, *choice], config_name)
        problems += [*composed.problems, *_unknown_keys(composed.raw)]
        config = config or composed.config
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    assert config is not None
    of_hydra = [item.input_line or "" for item in parsed if item.is_hydra_override()]
    with hydras_errors():  # jobs that compose one by one, but not in this combination
        loader = GlobalHydra.instance().config_loader()
        plain = jobs[:1] if of_hydra else []  # are known to compose: what is Hydra's is tried
        for job in plain if here else jobs:
            loader.load_configuration(config_name, [*of_hydra, *job], RunMode.RUN)
    return Sweep(
        wanted=run_folder(config, "hydra.sweep.dir"),
        jobs=jobs,
        of_hydra=[line for line in of_hydra if not line.startswith("hydra.sweep.dir=")],
        command=_command(config),
        here=here and str(config.hydra.launcher._target_).endswith(".BasicLauncher"),
    )


def _command(config: DictConfig) -> type[Command]:
    """What every job runs; ConfigError where a saved config names none."""
    name = OmegaConf.select(config, "command.name")
    if not isinstance(name, str) or name not in COMMANDS:
        expected = f"one of {', '.join(COMMANDS.names())}"
        raise ConfigError(Problem("command.name", expected, shown(name)))
    command: type[Command] = COMMANDS.get(name)
    return command


def _launch(sweep: Sweep, folder: Path, config_name: str) -> int:
    """Run the jobs that are not done with the launcher that the command line chose; 0, or the exit
    code of what stopped them."""
    numbers = pending(folder, sweep.jobs)
    if done := len(sweep.jobs) - len(numbers):
        left = f"{count(done, 'job')} done, {len(numbers):,} to go"
        print(f"kvpipe: {folder}: {left}", file=sys.stderr)
    try:
        with stopped_by_signals(), hydras_errors(), named(folder):
            progress = Progress(len(numbers))
            if sweep.here:
                run_jobs_here(folder, sweep.jobs, numbers, progress.step)
                return 0
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            config = hydra.compose_config(
                config_name=config_name,
                overrides=[*sweep.of_hydra, f"hydra.sweep.dir={quoted(folder)}"],
                run_mode=RunMode.MULTIRUN,
                with_log_configuration=True,
            )
            callbacks = callbacks_of(progress)
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(config_loader=hydra.config_loader, callbacks=callbacks),
                task_function=_job,
                config=config,
            )
            for first, last in _runs(numbers):
                launcher.launch(sweep.jobs[first : last + 1], initial_job_idx=first)
    except OSError as error:  # a full disk: say so, and keep what the finished jobs left
        print(f"kvpipe: {in_words(error)}", file=sys.stderr)
    except Stopped as stop:
        print(
            f"kvpipe: stopped by {stop.signal.name}; the same command with "
            f"{in_a_shell(folder)} goes on from here",
            file=sys.stderr,
        )
        return 128 + stop.signal
    return 0


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers: Hydra numbers jobs from a first one."""
    grouped = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in grouped]
    return [(run[0], run[-1]) for run in runs]


def _split(overrides: Sequence[str]) -> tuple[list[Override], list[list[str]]]:
    """The overrides, parsed, and those of every job; ConfigError where they cannot be a sweep."""
    try:
        loader = GlobalHydra.instance().config_loader()
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
        num_jobs = prod(
            sum(1 for _ in item.sweep_iterator()) for item in parsed if item.is_discrete_sweep()
        )
        if not 1 <= num_jobs <= MAX_JOBS:
            raise ConfigError(Problem("-m", f"1 to {MAX_JOBS:,} jobs", f"{num_jobs:,}"))
        return parsed, sweep_jobs([item for item in parsed if not item.is_hydra_override()])
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
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

    return [problem for problem in collect(raw)[1] if problem.of_name]


def _job(config: DictConfig) -> float | None:
    """One job, in whichever process the launcher runs it: leaves files, raises nothing."""
    from kvpipe.files.folders import save_config
    from kvpipe.front.job import failure, run_job, write_outcome
    from kvpipe.front.prepared import prepared_values
    from kvpipe.request.compose import plain
    from kvpipe.request.plain_yaml import dump_yaml

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        values, words = plain(config), list(hydra.overrides.task)
        save_config(as_yaml(config), dump_yaml(words), folder)
        prepared = prepared_values(values, words)
        outcome = run_job(prepared, lambda: folder, None, job=str(hydra.job.num))
    except Exception as error:
        outcome = write_outcome(folder, failure(error))
    return float(outcome.exit_code)


class Progress(Callback):
    """A bar while the jobs of a sweep run in this process; joblib runs them elsewhere."""

    def __init__(self, total: int) -> None:
        self.done = 0
        self.total = total

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        self.step()

    def step(self) -> None:
        self.done += 1
        width = 30
        bar = "#" * (width * self.done // self.total)
        if sys.stderr.isatty():
            end = "\n" if self.done == self.total else "\r"
            print(f"[{bar:<{width}}] {self.done}/{self.total} jobs", end=end, file=sys.stderr)


def finish(
    folder: Path, jobs: Sequence[Sequence[str]], command: type[Command], typed: Typed
) -> int:
    """Print the table (or one JSON line a job), write sweep.csv; the largest exit code."""
    from kvpipe.files.atomic import write_atomic
    from kvpipe.report.sweep_table import sweep_csv

    rows = [row_of_job(folder, number, job) for number, job in enumerate(jobs)]
    write_atomic(folder / "sweep.csv", sweep_csv(rows, command.fields))
    drawn = command.pictures_of_sweep(rows)
    for name, picture in drawn.items():
        write_atomic(folder / name, picture)
    with named("stdout"):
        if any(asks_for_json(job) for job in jobs):
            for row in rows:
                sys.stdout.write(_json_line(folder, row, command))
        else:
            _print_table(folder, rows, command, ", ".join(["sweep.csv", *drawn]), typed)
    return max((_exit_code(row) for row in rows), default=0)


def _exit_code(row: Mapping[str, Any]) -> int:
    """Of a job that was not even begun: as of one that is lost."""
    return 3 if row["exit_code"] is None else int(row["exit_code"])


def _print_table(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    command: type[Command],
    whole: str,
    typed: Typed,
) -> None:
    """whole: the files of all jobs together."""
    from kvpipe.report.sweep_table import sweep_table

    left = ", ".join((*command.files, "result.json"))
    table = sweep_table(rows, command.columns, command.legend, said=typed.override)
    sys.stdout.write(clean_lines(table))
    print(f"  files: {folder}/")
    print(f"    {whole}, and of each job <job>/{left}")


def _json_line(folder: Path, row: dict[str, Any], command: type[Command]) -> str:
    """The job's document, or the short one of a job that has none, on one line."""
    from kvpipe.report.json_ import short_document

    number = str(row["job"])
    try:
        text = (folder / number / command.files[0]).read_text(encoding="utf-8")
        document = json.loads(text)
    except (OSError, ValueError, RecursionError):
        errors = row.get("errors", [row["error"]] if row["error"] else [])
        document = short_document(row["status"], row["exit_code"], errors, number)
    return strict_json(document)
