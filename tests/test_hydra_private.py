"""What kvpipe needs of the names that Hydra calls private, all of them in front/hydra_private.py.

Run with the oldest and the newest release of the range in pyproject.toml: when one of these fails,
that file alone has to change.
"""

from __future__ import annotations

import ast
from argparse import Namespace
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from kvpipe.front.hydra_private import flags_parser, run_front_end, sweep_jobs

PACKAGE = Path(__file__).parents[1] / "kvpipe"


def test_the_parser_knows_every_flag_that_the_front_end_reads() -> None:
    args = flags_parser().parse_intermixed_args(["-m", "a=1", "--config-dir", "d", "-cp", "p"])
    assert (args.multirun, args.overrides) == (True, ["a=1"])
    assert (args.config_dir, args.config_path, args.config_name) == ("d", "p", None)
    for flag in ("help", "hydra_help", "cfg", "info", "shell_completion", "experimental_rerun"):
        assert hasattr(args, flag), flag


def test_the_front_end_runs_a_task_with_arguments_that_are_parsed_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("a: 1\n")
    parser = flags_parser()
    args: Namespace = parser.parse_intermixed_args(["a=7", "hydra.run.dir=out"])
    seen: list[int] = []
    run_front_end(
        args, parser, lambda c: seen.append(c.a), config_path=str(tmp_path), config_name="config"
    )
    assert seen == [7]


def test_a_sweep_is_numbered_as_the_product_with_the_last_key_fastest() -> None:
    parsed = OverridesParser.create().parse_overrides(["a=1,2", "b=x,y", "c=3"])
    assert [tuple(job) for job in sweep_jobs(parsed)] == [
        ("a=1", "b=x", "c=3"),
        ("a=1", "b=y", "c=3"),
        ("a=2", "b=x", "c=3"),
        ("a=2", "b=y", "c=3"),
    ]


def test_no_other_file_imports_a_private_name_of_hydra() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("hydra")
        and any(part.startswith("_") for part in (node.module or "").split("."))
    }
    assert found == {"front/hydra_private.py"}
