"""Hydra's own front end (--help all, --cfg, --info, completion, sweeps) on our config."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from kvpipe.errors import ConfigError, Problem
from kvpipe.front.hydra_private import run_front_end
from kvpipe.request.compose import CONFIG_NAME, use_search_path
from kvpipe.request.confdir import CONF_DIR


def run_hydra(args: Namespace, parser: ArgumentParser, task: Callable[[Any], Any]) -> int:
    """0, or 2 where Hydra refuses. task: what each job of a sweep does with its config."""
    use_search_path([args.config_dir] if args.config_dir else [])
    with _errors_raised():
        try:
            run_front_end(args, parser, task, config_path=str(CONF_DIR), config_name=CONFIG_NAME)
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
