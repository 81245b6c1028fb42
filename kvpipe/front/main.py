"""kvpipe [command] [org/name | path] [group=choice] [key=value]: one request or a sweep.

stdout carries the report and nothing else. Exit codes: 0 it fits and every stage ran, 1 it does not
fit, 2 the request is wrong (nothing was written), 3 we failed.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.files.named import in_words, named
from kvpipe.front.pydantic_alone import without_plugins
from kvpipe.front.warned import warnings_as_lines
from kvpipe.text.clean import clean

if TYPE_CHECKING:  # --version and --help need none of it
    from kvpipe.request.typed import Typed


def main() -> None:
    """The console script."""
    # Starting makes many small objects and few cycles: a search for these would find nothing.
    gc.set_threshold(200_000)
    without_plugins()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        code = run(sys.argv[1:])
        with named("stdout"):
            sys.stdout.flush()
    except BrokenPipeError:  # `kvpipe | head`: the reader has seen enough
        _stdout_to_nowhere()
        code = 0
    except OSError as error:  # a full disk behind stdout or an output folder
        complain([in_words(error)])
        _stdout_to_nowhere()
        code = 3
    except KeyboardInterrupt:
        complain(["stopped by SIGINT"])
        code = 130
    sys.exit(code)


def _stdout_to_nowhere() -> None:
    """What is still buffered would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: Sequence[str]) -> int:
    """The exit code of one command line."""
    try:
        with warnings_as_lines(complain):
            return _dispatch(list(arguments))
    except KvpipeError as error:
        complain(error.lines())
        from kvpipe.front.words import asks_for_json

        if asks_for_json(arguments):
            from kvpipe.report.json_ import failure_document
            from kvpipe.text.strict_json import strict_json

            with named("stdout"):
                sys.stdout.write(strict_json(failure_document(error), indent=2))
        return error.exit_code
    except (OSError, KeyboardInterrupt):
        raise
    except Exception as error:  # ours: say so in one line, and where
        from kvpipe.front.job import failure

        complain([*failure(error).lines, "this is a fault of kvpipe, not of your request"])
        return 3


def complain(lines: Sequence[str]) -> None:
    from kvpipe.processes.agree import world

    here = world()
    who = f"kvpipe (rank {here.rank})" if here is not None else "kvpipe"
    for line in lines:
        with suppress(OSError):  # a full disk behind stderr: the exit code still tells
            print(clean(f"{who}: {line}"), file=sys.stderr, flush=True)


def _dispatch(arguments: list[str]) -> int:
    if "--version" in arguments:
        from kvpipe import __version__

        with named("stdout"):
            print(f"kvpipe {__version__}")
        return 0
    of_help = {"--help", "-h"} & set(arguments)
    # All that a command line composes, the user's own YAML with it, is Hydra's to list.
    if of_help and ("all" not in arguments or len(arguments) == 2):
        return _help(arguments)
    from kvpipe.front.flags import read_flags
    from kvpipe.front.read_words import overrides_of
    from kvpipe.front.words import read_words, typed_words

    arguments = [word for word in arguments if word != "all" or "--help" not in arguments]
    flags = read_flags(arguments)
    typed = typed_words(arguments)
    if not any(word.startswith("-") for word in flags.words):  # none of Hydra's: it is not needed
        return _run_one(overrides_of(flags, read_words(flags.words)), typed, None, None, None)
    from kvpipe.request.hydra_private import flags_parser

    parser = flags_parser()
    parser.error = _refuse_arguments  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(list(flags.words))
    if args.experimental_rerun:
        _refuse_arguments("--experimental-rerun is Hydra's; use -cp FOLDER/.hydra")
    read = read_words(args.overrides, args.config_dir, sweeps=args.multirun)
    args.overrides = overrides_of(
        flags,
        read,
        sweeps=args.multirun,
        config_dir=args.config_dir,
        config_path=args.config_path,
        config_name=args.config_name,
    )
    if args.multirun:
        from kvpipe.front.sweep import run_sweep

        return run_sweep(args, typed)
    if args.shell_completion:
        from kvpipe.front.completion import answered_words

        with named("stdout"):
            print(answered_words(args.overrides), end="")
    if args.help or args.hydra_help or args.cfg or args.info or args.shell_completion:
        from kvpipe.front.hydra_front import run_hydra

        return run_hydra(args, parser)
    return _run_one(args.overrides, typed, args.config_dir, args.config_path, args.config_name)


def _help(arguments: Sequence[str]) -> int:
    """--help, of the command or group that is named where one is."""
    from kvpipe.front.help import help_lines
    from kvpipe.report.text import write_lines
    from kvpipe.text.lines import terminal_width

    words = [word for word in arguments if not word.startswith("-") and "=" not in word]
    about = arguments[0] in ("--help", "-h")  # of one word: else a request to be told about
    lines = list(help_lines(words, terminal_width(), search=about))
    with named("stdout"):
        write_lines(lines, sys.stdout)
    return 0


def _refuse_arguments(message: str) -> NoReturn:
    """What argparse has to say, as one problem."""
    knob = "settings are key=value, choices group=choice: see --help"
    raise ConfigError(Problem("command line", "flags that kvpipe knows", message, knob))


def _run_one(
    overrides: list[str],
    typed: Typed,
    config_dir: str | None,
    config_path: str | None,
    config_name: str | None,
) -> int:
    from kvpipe.files.folders import new_folder, save_config
    from kvpipe.front.prepared import as_typed, prepared_request
    from kvpipe.request.confdir import CONFIG_NAME
    from kvpipe.request.plain_yaml import dump_yaml

    request = prepared_request(
        overrides,
        config_dir=config_dir,
        config_path=config_path,
        config_name=config_name or CONFIG_NAME,
    )
    request = as_typed(request, typed)

    def make_folder() -> Path:
        folder = new_folder(request.wanted_folder())
        save_config(request.config(), dump_yaml(overrides), folder)
        return folder

    from kvpipe.front.job import run_beside, run_job
    from kvpipe.processes.agree import world

    here = world()
    if here is not None and here.rank:
        return run_beside(request.prepared).exit_code
    outcome = run_job(request.prepared, make_folder, sys.stdout, job=None)
    complain(outcome.lines)
    return outcome.exit_code
