"""What a page is made of: a request, the jobs of a sweep's folder, or engines side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvpipe.errors import ConfigError, KvpipeError, Problem, did_you_mean
from kvpipe.files.regular import open_regular
from kvpipe.page.axes import AskedStops, axes_of
from kvpipe.page.subject import Subject, planned
from kvpipe.pipeline import Prepared, prepare
from kvpipe.plugins import REGISTRIES
from kvpipe.request.bounded_yaml import check_yaml
from kvpipe.request.confdir import shipped_option
from kvpipe.request.plain_yaml import load_yaml

MOST_POSITIONS = 400  # plans of a page: a few seconds, and well under 500 kB
_LEAST_OF_EACH = 4
_ENOUGH_FOR_CARDS = 64  # of an engine: lengths, and cards and cache types beside
ENGINES_DIFFER = (
    "Users under vLLM and kvpipe: all decode but one, which reads its prompt; under the others: "
    "all decode. It is what `kvpipe run` says of each."
)
_LONGEST_FILE = 2**22  # bytes of a list of jobs, and of a job's config


def of_request(prepared: Prepared, asked: AskedStops) -> tuple[Subject, ...]:
    axes = axes_of(prepared, asked, MOST_POSITIONS, dense=True)
    return (planned(prepared, axes, "", prepared.words, prepared.raw),)


def of_engines(prepared: Prepared, asked: AskedStops, names: Sequence[str]) -> tuple[Subject, ...]:
    """ConfigError for a name that is none."""
    known = REGISTRIES["engine"].names()
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            expected = f"some of {', '.join(known)}"
            raise ConfigError(Problem("command.engines", expected, f"'{name}'", hint, of_name=True))
    most = max(_LEAST_OF_EACH, MOST_POSITIONS // len(names))
    axes = axes_of(prepared, asked, most, dense=most >= _ENOUGH_FOR_CARDS, keep_auto=True)
    words = [word for word in prepared.words if word.partition("=")[0] != "engine"]
    return tuple(
        planned(
            prepared,
            axes,
            name,
            [*words, f"engine={name}"],
            {**prepared.raw, "engine": _engine(prepared, name)},
        )
        for name in dict.fromkeys(names)
    )


def _engine(prepared: Prepared, name: str) -> object:
    own = prepared.raw["engine"]
    return own if own.get("name") == name else shipped_option("engine", name)


def of_sweep(folder: Path, asked: AskedStops) -> tuple[tuple[Subject, ...], tuple[str, ...]]:
    """The jobs of `kvpipe -m ...`, planned anew from the configs that they left, and a line for
    each that is left out. ConfigError where the folder has none, or more than a page holds."""
    jobs = _jobs(folder)
    most = MOST_POSITIONS // _LEAST_OF_EACH
    if len(jobs) > most:
        raise ConfigError(
            Problem("command.folder", f"a sweep of at most {most} jobs", f"{len(jobs):,} jobs")
        )
    found: list[Subject] = []
    left_out: list[str] = []
    for number, words in enumerate(jobs):
        try:
            found.append(_of_job(folder / str(number), number, words, asked, len(jobs)))
        except (OSError, KvpipeError) as error:
            left_out.append(f"job {number} ({_title(words)}): {str(error).splitlines()[0]}")
    if not found:
        wanted = "a sweep's folder with a job whose request is right"
        raise ConfigError(Problem("command.folder", wanted, left_out[0] if left_out else "none"))
    return tuple(found), tuple(left_out)


def check_folder(folder: str) -> None:
    """ConfigError for one that is no sweep's."""
    _jobs(Path(folder))


def _of_job(
    folder: Path, number: int, words: Sequence[str], asked: AskedStops, jobs: int
) -> Subject:
    path = folder / ".hydra" / "config.yaml"
    check_yaml(path)
    raw = load_yaml(_text(path))
    prepared = prepare(raw)
    axes = axes_of(prepared, asked, MOST_POSITIONS // jobs, dense=False)
    return planned(prepared, axes, _title(words) or f"job {number}", words, raw)


def _title(words: Sequence[str]) -> str:
    return " ".join(word for word in words if not word.startswith(("hydra", "command")))


def _jobs(folder: Path) -> list[list[str]]:
    wanted = "the folder of a sweep (it has a sweep.json)"
    try:
        jobs = json.loads(_text(folder / "sweep.json"))["jobs"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(Problem("command.folder", wanted, f"'{folder}'")) from error
    if not isinstance(jobs, list) or not all(
        isinstance(job, list) and all(isinstance(word, str) for word in job) for job in jobs
    ):
        raise ConfigError(Problem("command.folder", wanted, "a sweep.json of another kind"))
    return jobs


def _text(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(_LONGEST_FILE).decode("utf-8")
