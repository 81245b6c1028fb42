"""Every command line and file that once ended in a fault of ours: a wrong request is exit code 2.

Add what tools/fuzz finds. The nightly tier runs the fuzzers themselves.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest
from fuzz.fuzzers import FUZZERS, search

from kvpipe import run as run_api
from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.front.prepared import checked
from kvpipe.plugins import COMMANDS
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.guarded_loader import GuardedLoader
from kvpipe.request.quick import quick_compose

ONCE_FAILED = [
    ["layout=[[1]]"],
    ["cache=[1]"],
    ["model=[1]"],
    ["validation=${oc.select:nope}"],
    ["cache=" + "a" * 5000],
    ["cache.block_size=" + "1" * 5000],
    ["cache={a: 1}"],
    ["model=\x00"],
    ["a" * 5000],
    ["device=2xh100", "pp=0"],
    ["device=" + "1" * 5000 + "xh100"],
    ["cache.block_size=\x00"],
    ["device.name=${" + "a" * 400 + "}"],
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", ONCE_FAILED, ids=lambda line: line[0][:30])
def test_a_wrong_request_of_any_shape_is_a_config_error(line):
    with pytest.raises(ConfigError) as error:
        run_api([*line, "backend=meta"])
    assert all(len(one) < 5000 for one in error.value.lines())  # names of all presets


@pytest.mark.parametrize(
    "line",
    [ONCE_FAILED[0], *(pytest.param(line, marks=pytest.mark.full) for line in ONCE_FAILED[1:])],
    ids=lambda line: line[0][:30],
)
def test_a_wrong_request_of_any_shape_is_exit_2(line, capsys):
    assert run([*line, "backend=meta", "report=none"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "fault of kvpipe" not in err and "Traceback" not in err


@pytest.mark.parametrize("text", ["a: {b", "a: !!python/object/apply:f ['x']", "- 1", "\x01"])
def test_a_saved_config_that_is_no_config_is_exit_2(text, capsys):
    Path("my").mkdir()
    Path("my/config.yaml").write_text(text)
    assert run(["-cp", "my"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvpipe: ") and "config" in err and "fault of kvpipe" not in err


@pytest.mark.parametrize("arguments", [["-cp", "\0"], ["-cp", "a" * 5000], ["-m", "-cp", "my"]])
def test_a_place_that_holds_no_whole_config_is_exit_2(arguments, capsys):
    Path("my").mkdir()
    Path("my/config.yaml").write_text("model: {name: x}\n")
    assert run(arguments) == 2
    assert "fault of kvpipe" not in capsys.readouterr().err


# A value of any shape, in the place of a section or of a setting.
SHAPES = (
    float("nan"),
    "x",
    [1],
    [[1]],
    10**400,
    True,
    {"a": 1},
    {1: 2},
    None,
    "\ud800",
    "a" * 5000,
)


@pytest.mark.parametrize(
    "value", [".nan", *(pytest.param(value, marks=pytest.mark.full) for value in ("2", "x"))]
)
@pytest.mark.parametrize("section", ["want", "trace"])
def test_a_section_that_is_no_section_is_exit_2(section, value, capsys):
    Path("my").mkdir()
    for command in ("run", "find", "replay"):
        text = f"command: {{name: {command}}}\n{section}: {value}\na: 1\n"
        Path("my/config.yaml").write_text(text)
        assert run(["-cp", "my"]) == 2
        assert "fault of kvpipe" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["compare", *(pytest.param(name, marks=pytest.mark.full) for name in COMMANDS.names())],
)
def test_a_setting_of_any_shape_is_a_config_error(command):
    """Every section and setting of every command; the commit tier tries one command's own."""
    words = [f"command={command}", "model=gpt2", "device=h100_80gb", "backend=meta"]
    raw = quick_compose(words)
    for section in ("command",) if command == "compare" else raw:
        for key in (None, *raw[section]):
            for value in SHAPES:
                there = value if key is None else {**raw[section], key: value}
                with suppress(ConfigError):
                    checked({**raw, section: there}, words, (), lambda: raw)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(  # deeper than Python's stack
            ["device.name=" + "{a:" * 900 + "1" + "}" * 900], marks=pytest.mark.full
        ),
        ["device.name=[" + "1," * 5_000 + "1]"],  # Hydra's grammar: the square of the length
        [f"cache.x{n}=1" for n in range(3_000)],
        ["device.name=" + "a" * 70_000],
        ["./m\udcff"],  # a name of bytes that are no text
        ["--help", "a" * 5_000],
        ["--help", "/etc"],
        ["--help", "../.."],
        ["--config-dir", "a" * 5_000, "model=x"],
        ["serve-page", "folder=" + "a" * 5_000],
        ["compare", "command.engines=[[vllm]]"],
    ],
    ids=lambda line: line[0][:30],
)
def test_what_is_too_long_or_no_text_is_exit_2(line, capsys):
    assert run(line) == 2
    err = capsys.readouterr().err
    assert "fault of kvpipe" not in err and len(err) < 5_000


def test_every_unknown_key_is_told_without_composing_each(monkeypatch):
    composed: list[object] = []
    real = GuardedLoader.load_configuration
    monkeypatch.setattr(
        GuardedLoader,
        "load_configuration",
        lambda *args, **kwargs: composed.append(0) or real(*args, **kwargs),
    )
    with pytest.raises(ConfigError) as error:
        run_api([f"cache.nothing{n}=1" for n in range(50)])
    assert len(error.value.lines()) == 50 and len(composed) < 6


def test_what_hydra_warns_of_is_a_line_of_ours(capsys):
    """A list of defaults that does not say where the file itself comes."""
    Path("my").mkdir()
    Path("my/config.yaml").write_text("defaults: [/model/gpt2@model]\na: 1\n")
    assert run(["-cp", "my"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("missing `_self_`" in line for line in lines)
    assert all(line.startswith("kvpipe: ") for line in lines)


def test_a_saved_config_that_is_no_file_is_refused_at_once(capsys):
    Path("my").mkdir()
    os.mkfifo("my/config.yaml")
    assert run(["-cp", "my"]) == 2
    assert "Cannot find primary config 'config'" in capsys.readouterr().err


def test_a_trace_that_is_a_pipe_is_not_waited_for(capsys):
    os.mkfifo("t.csv")
    assert run(["replay", "backend=meta", "trace=azure", "trace.path=t.csv"]) == 2
    assert "a FIFO, which may never end" in capsys.readouterr().err


def test_a_relative_saved_config_is_swept(tmp_path):
    """And every job starts from what was saved, not from what is shipped."""
    assert run(["model=gpt2", "backend=meta", "report=none", "hydra.run.dir=base"]) == 0
    sweep = ["-m", "-cp", "base", "cache.block_size=16,32", "hydra.sweep.dir=s"]
    assert run(sweep) == 0
    for job in ("0", "1"):
        saved = (tmp_path / f"s/{job}/.hydra/config.yaml").read_text()
        assert "name: openai-community/gpt2" in saved


# --- what somebody pasted ----------------------------------------------------------------------
PASTED = [
    "VLLM_PP_LAYER_PARTITION=1,x vllm serve meta-llama/Llama-3.1-8B -pp 2",  # int("x")
    f'vllm serve "--x" {"[" * 50_000}]',  # a stack of brackets
    f"vllm serve {'a' * 5_000} --max-model-len 10",  # a name longer than a file's may be
    # records in records, as deep as the parser of JSON just takes them, and deeper
    "\n".join('{"record": ' * n + '"x"' + "}" * n for n in range(850, 1000, 2)),
]


@pytest.mark.parametrize("text", PASTED, ids=lambda text: text[:12])
def test_whatever_is_pasted_doctor_answers(text, capsys):
    Path("pasted").write_text(f"{text}\n")
    assert run(["doctor", "pasted", "backend=meta"]) in (1, 2)
    assert "fault of kvpipe" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["a device", "more than"])
def test_what_is_piped_in_has_an_end(kind, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("kvpipe.files.standard_input.MOST_BYTES", 2**20)
    Path("long").write_bytes(b"x" * 2**21)
    with open("/dev/zero" if kind == "a device" else "long") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["doctor", "-", "backend=meta"]) == 2
    assert f"got {kind}" in capsys.readouterr().err
    assert not list(tmp_path.glob("kvpipe-*")), "what was kept is removed"


@pytest.mark.parametrize("text", ["hello", "Available KV cache memory: 99999999999999999999 GiB"])
def test_what_is_piped_in_is_not_called_by_the_name_it_is_kept_under(text, capsys, monkeypatch):
    Path("junk").write_text(f"{text}\n")
    with open("junk") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["doctor", "-", "backend=meta"]) == 2
    told = capsys.readouterr().err
    assert "standard input" in told and "kvpipe-" not in told


# --- files that are no files ---------------------------------------------------------------------
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "m.gguf"])
def test_a_model_file_that_is_a_pipe_is_not_waited_for(name, capsys):
    Path("m").mkdir()
    Path("m/config.json").write_text('{"model_type": "llama"}')
    os.mkfifo(f"m/{name}")
    if name.endswith(".index.json"):  # then there is no index, and no file that it names
        assert run(["./m", "backend=meta", "report=none"]) == 0
        return
    path = "./m/m.gguf" if name == "m.gguf" else "./m"
    assert run([path, "backend=meta"]) == 2
    assert "a FIFO, which may never end" in capsys.readouterr().err


def test_a_gguf_header_has_an_end(capsys):
    """A key of 300 MB in a file of holes."""
    with open("m.gguf", "wb") as file:
        file.write(b"GGUF" + pack("<IQQQ", 3, 0, 1, 300 * 2**20))
        file.truncate(400 * 2**20)
    assert run(["./m.gguf", "backend=meta"]) == 2
    assert "a header of more than" in capsys.readouterr().err


# --- the fuzzers --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["logs", "configs", "gguf"])
def test_files_at_random_are_read_or_refused(name):
    assert search(FUZZERS[name], 3, range(60)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(FUZZERS))
def test_ten_thousand_of_each(name):
    assert search(FUZZERS[name], 1, range(10_000)) == []


def test_a_case_is_the_same_wherever_a_run_begins():
    """A run that was cut off goes on where it ended, and processes share the cases."""
    at: list[int] = []
    tried: list[object] = []
    fuzzer = replace(FUZZERS["logs"], wrong_with=lambda case: tried.append(case) or "")
    search(fuzzer, 5, range(6), lambda number, *_: at.append(number))
    search(fuzzer, 5, range(3, 6))
    assert at == [*range(6)] and tried[3:6] == tried[6:]


NO_NUMBERS = ("null", "'8'", "[1]", "1.5", "-3", "{a: 1}", "true")


@pytest.mark.parametrize(
    ("model", "field"), [("gpt2", "num_kv_heads: 12"), ("deepseek_v2_lite", "tokens_per_state: 1")]
)
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_field_of_a_model_file_that_is_no_number_is_named(model, field, value, capsys):
    """Read before the spec is made, by what counts heads and rows of all layers."""
    name = field.partition(":")[0]
    text = (CONF_DIR / "model" / f"{model}.yaml").read_text()
    text = text.replace("{spec: mla, ", "{spec: mla, tokens_per_state: 1, ").replace(
        field, f"{name}: {value}"
    )
    assert f"{name}: {value}" in text
    Path("own/model").mkdir(parents=True)
    Path("own/model/odd.yaml").write_text(text)
    words = ["model=odd", "--config-dir", "own", "device=h100_80gb", "cache.block_size=32"]
    assert run([*words, "report=none"]) == 2
    err = capsys.readouterr().err
    assert "model.layers (" in err and name in err and "fault of kvpipe" not in err
