"""Jobs of a sweep, one after another in this process, composed without Hydra.

Hydra's basic launcher composes each job anew and sets up logging for it: three quarters of a short
job. What it leaves is the same: the files of the job, and its composed config in .hydra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvpipe.files.folders import save_config
from kvpipe.front import job as one_job
from kvpipe.front.prepared import prepared_values
from kvpipe.request.plain_yaml import dump_sections, dump_words
from kvpipe.request.quick import quick_compose


def composes_here(jobs: Sequence[Sequence[str]]) -> bool:
    """Whether every job is plain: no list, no key that is added, no YAML of somebody's own."""
    return all(quick_compose(job) is not None for job in jobs)


def run_jobs_here(
    folder: Path, jobs: Sequence[Sequence[str]], numbers: Sequence[int], ended: Callable[[], None]
) -> None:
    """Runs the jobs of these numbers; `ended` is called after each. None of them raises."""
    for number in numbers:
        run_one_here(folder / str(number), jobs[number], number)
        ended()


def run_one_here(folder: Path, words: Sequence[str], number: int) -> None:
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    try:
        values = quick_compose(words)
        assert values is not None
        save_config(dump_sections(values), dump_words(words), folder)
        prepared = prepared_values(values, words)
        one_job.run_job(prepared, lambda: folder, None, job=str(number))
    except Exception as error:  # a job never takes the others with it
        one_job.write_outcome(folder, one_job.failure(error))
