"""Hydra's own pages (--help all, --cfg, --info, completion) on our guarded config."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.named import named
from kvpipe.request.compose import configuration
from kvpipe.request.confdir import CONFIG_NAME
from kvpipe.request.hydra_private import show_page
from kvpipe.text.clean import clean_lines


def run_hydra(args: Namespace, parser: ArgumentParser) -> int:
    """0, or 2 where Hydra refuses, having said why."""
    with configuration(args.config_dir, args.config_path), hydras_errors():
        shown, code = StringIO(), 0
        try:
            with redirect_stdout(shown):
                hydra, name = GlobalHydra.instance().hydra, args.config_name or CONFIG_NAME
                show_page(hydra, args, parser, name)
        except SystemExit as end:
            code = 2 if end.code else 0
        with named("stdout"):  # pages hold names and texts of anybody's files
            sys.stdout.write(clean_lines(shown.getvalue()))
    return code


@contextmanager
def hydras_errors() -> Iterator[None]:
    """What Hydra has against a request, as a wrong request. Hydra prints errors its own way and
    exits with 1 unless a variable says to raise them."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError, KeyError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(Problem("overrides", "settings that compose", line)) from error
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before
