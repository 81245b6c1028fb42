"""Every name of Hydra that its makers call private, in one place, and why kvpipe needs each.

A release of Hydra may change these without a word: tests/test_hydra_private.py says what is needed
of them, and what breaks when it is gone. The rest of kvpipe imports Hydra's public names only.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.override_parser.types import Override


def flags_parser() -> ArgumentParser:
    """Hydra's own flags (-m, -cp, -cn, --config-dir, --cfg, --info, -sc, ...), so that they mean
    what they mean in every Hydra program."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def run_front_end(
    args: Namespace,
    parser: ArgumentParser,
    task: Callable[[Any], Any],
    *,
    config_path: str,
    config_name: str,
) -> None:
    """Hydra's front end with arguments that are parsed already: the public `hydra.main` reads
    sys.argv, in which our command word is no override."""
    from hydra._internal.utils import _run_hydra

    _run_hydra(
        args=args,
        args_parser=parser,
        task_function=task,
        config_path=config_path,
        config_name=config_name,
    )


def sweep_jobs(parsed: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job of a basic sweep, in the order in which Hydra numbers them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    jobs: list[list[str]] = BasicSweeper.split_arguments(list(parsed), None)[0]
    return jobs
