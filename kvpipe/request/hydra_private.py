"""Every name of Hydra that its makers call private, in one place, and why kvpipe needs each.

A release of Hydra may change these without a word: tests/test_hydra_private.py says what is needed
of them, and what breaks when it is gone. The rest of kvpipe imports Hydra's public names only.

ConfigLoaderImpl, ConfigRepository: what composes; the guard stands in both (guarded_loader).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl as ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository as ConfigRepository
from hydra.core.override_parser.types import Override


def flags_parser() -> ArgumentParser:
    """Hydra's own flags (-m, -cp, -cn, --config-dir, --cfg, --info, -sc, ...), so that they mean
    what they mean in every Hydra program."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def show_page(hydra: Any, args: Namespace, parser: ArgumentParser, config_name: str) -> None:
    """The page of Hydra's that the flags ask for, on a Hydra that is set up. The public
    `hydra.main` reads sys.argv, where our command word is no override, and has no guard."""
    if args.help:
        hydra.app_help(config_name=config_name, args_parser=parser, args=args)
    elif args.hydra_help:
        hydra.hydra_help(config_name=config_name, args_parser=parser, args=args)
    elif args.cfg:
        hydra.show_cfg(
            config_name=config_name,
            overrides=args.overrides,
            cfg_type=args.cfg,
            package=args.package,
            resolve=args.resolve,
        )
    elif args.info:
        hydra.show_info(args.info, config_name=config_name, overrides=args.overrides)
    else:
        hydra.shell_completion(config_name=config_name, overrides=args.overrides)


def sweep_jobs(parsed: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job of a basic sweep, in the order in which Hydra numbers them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    jobs: list[list[str]] = BasicSweeper.split_arguments(list(parsed), None)[0]
    return jobs


def callbacks_of(listener: Any) -> Any:
    """The callbacks that a launcher tells of its jobs: this one, and none that a config names."""
    from hydra._internal.callbacks import Callbacks

    callbacks = Callbacks()
    callbacks.callbacks.append(listener)
    return callbacks
