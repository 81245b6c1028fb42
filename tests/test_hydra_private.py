"""What kvpipe needs of the names that Hydra calls private, all of them in request/hydra_private.py.

Run with the oldest and the newest release of the range in pyproject.toml: when one of these fails,
that file alone has to change.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from kvpipe.errors import ConfigError
from kvpipe.request.compose import compose_request, configuration
from kvpipe.request.guarded_loader import GuardedLoader
from kvpipe.request.hydra_private import callbacks_of, flags_parser, show_page, sweep_jobs

PACKAGE = Path(__file__).parents[1] / "kvpipe"


def test_the_parser_knows_every_flag_that_the_front_end_reads() -> None:
    args = flags_parser().parse_intermixed_args(["-m", "a=1", "--config-dir", "d", "-cp", "p"])
    assert (args.multirun, args.overrides) == (True, ["a=1"])
    assert (args.config_dir, args.config_path, args.config_name) == ("d", "p", None)
    for flag in ("help", "hydra_help", "cfg", "info", "shell_completion", "experimental_rerun"):
        assert hasattr(args, flag), flag


def test_a_page_is_shown_of_the_hydra_that_is_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    parser = flags_parser()
    args = parser.parse_intermixed_args(["--cfg", "job", "-p", "cache", "cache=full"])
    with configuration():
        show_page(GlobalHydra.instance().hydra, args, parser, "config")
    assert "block_size:" in capsys.readouterr().out


def test_a_listener_is_told_of_jobs_and_is_the_only_one() -> None:
    told: list[str] = []

    class Listener:
        def on_job_end(self, config: object, job_return: object) -> None:
            told.append(str(config))

    callbacks_of(Listener()).on_job_end(config="here", job_return=None)
    assert told == ["here"]


def test_every_config_is_loaded_by_the_loader_that_is_put_in() -> None:
    with configuration():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None and isinstance(hydra.config_loader, GuardedLoader)
        assert hydra.config_loader is GlobalHydra.instance().config_loader()


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
    assert found == {"request/hydra_private.py"}


def test_a_file_of_theirs_is_read_once_a_request(tmp_path: Path) -> None:
    """What was measured is what is composed: it may be another file a moment later."""
    file = tmp_path / "config.yaml"
    file.write_text("a: {b: 1}\n")
    with configuration(config_path=str(tmp_path)):
        assert compose_request([]).raw == {"a": {"b": 1}}
        file.write_text("hydra: {job: {chdir: true}}\n")
        assert compose_request(["+c=2"]).raw == {"a": {"b": 1}, "c": 2}
    with configuration(config_path=str(tmp_path)), pytest.raises(ConfigError):
        compose_request([])


def test_what_was_read_once_is_not_changed_by_what_is_composed_of_it(tmp_path: Path) -> None:
    """Hydra sets values in what it merges, and a job of a sweep begins with the file's own."""
    (tmp_path / "config.yaml").write_text("a: {b: 1}\n")
    with configuration(config_path=str(tmp_path)):
        assert compose_request(["a.b=2"]).raw == {"a": {"b": 2}}
        assert compose_request([]).raw == {"a": {"b": 1}}
    for word in ("cache.block_size=16", "cache.block_size=32"):
        with configuration():
            config = compose_request(["model=gpt2", word]).config
            assert list(config.hydra.overrides.task) == ["model=gpt2", word]
