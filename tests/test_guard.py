"""Nobody else's file runs, opens or hides anything: each attack through each entrance.

An attack is a file or an argument. Each ends with exit code 2 before anything is imported, opened
or written: the marker package is not imported, the victim file is whole, no folder appears. On each
commit every attack goes through the quickest entrance, and one attack through each of the others;
the full tier tries every pair.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kvpipe.front.main import run

# Settings under `hydra:`, as a file would say them. ESCAPED, VICTIM: see `scene`.
SAID_TO_HYDRA = {
    "environment": "job: {env_set: {CXX: ./cxx.sh}}",
    "environment of the launching machine": "job: {env_copy: [HOME]}",
    "environment that is not there": "job: {env_copy: [NOT_THERE]}",
    "job log file": "job_logging: {version: 1, handlers: {f: {class: logging.FileHandler, "
    "filename: VICTIM, mode: w}}, root: {handlers: [f]}}",
    "own log file": "hydra_logging: {version: 1, handlers: {f: {class: logging.FileHandler, "
    "filename: VICTIM, mode: w}}, root: {handlers: [f]}}",
    "log factory": "job_logging: {formatters: {f: {(): evil.f}}}",
    "log stream": "job_logging: {handlers: {f: {class: evil.F}}}",
    "subfolder": "output_subdir: ../../../ESCAPED",
    "no subfolder": "output_subdir: null",
    "job folder": "sweep: {subdir: '../../ESCAPED_${hydra.job.num}'}",
    "run folder": "run: {dir: ESCAPED}",
    "sweep folder": "sweep: {dir: ESCAPED}",
    "package to search": "searchpath: [pkg://evil]",
    "folder to search": "searchpath: [/tmp]",
    "what to search, as text": "searchpath: pkg://evil",
    "callback": "callbacks: {x: {_target_: evil.f}}",
    "callback by interpolation": "callbacks: {x: {_target_: '${oc.decode:evil.f}'}}",
    "launcher": "launcher: {_target_: evil.f}",
    "launcher's option": "launcher: {initializer: evil.f}",
    "sweeper": "sweeper: {_target_: evil.f}",
    "sweeper's overrides": "sweeper: {params: {hydra.job.env_set.CXX: ./cxx.sh}}",
    "folder of work": "job: {chdir: true}",
    "name": "job: {name: ../../ESCAPED}",
    "name of folders": "job: {config: {override_dirname: {kv_sep: /../}}}",
    "mode": "mode: MULTIRUN",
    "verbosity": "verbose: true",
    "help": "help: {template: '\\e]0;owned\\a'}",
    "runtime": "runtime: {output_dir: ESCAPED}",
    "overrides": "overrides: {task: [model=gpt2]}",
    "unknown key": "+x: 1",
    "nothing": "{}",
}
# Whole files, for a group option with `# @package _global_` and for a saved config.
FILES = {
    "null": "hydra: null",
    "text": "hydra: evil.f",
    "list": "hydra: [evil.f]",
    "interpolation": "hydra: ${model}",
    "merge key": "model: &x {hydra: {job: {chdir: true}}}\n<<: *x",
    "quoted key": '"hydra": {job: {chdir: true}}',
    "escaped key": '"\\x68ydra": {job: {chdir: true}}',
    "shipped option placed in Hydra": "defaults: [/model/gpt2@_global_.hydra.job.env_set]",
    "way out of the folder": "defaults: [/../outside]",
    "way out by group": "defaults: [{/model: ../../outside}]",
    "alias bomb": "a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefgh")),
    "alias of itself": "a: &a [*a]",
    "deep nesting": "a: " + "[" * 5_000,
    "python object": "a: !!python/object/apply:os.system ['touch ran']",
    "no YAML": "a: {b",
    "not a mapping": "[1, 2]",
    "a text alone, of another file": "root:x:0:0:root",
    "binary": "\x00\x01",
    "large": "a: [" + "1," * 200_000 + "]",
}
SMALL = (
    '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, '
    '"vocab_size": 100}'
)
# Values of a run that are not in the request.
ELSEWHERE = {
    "environment": "device: {name: '${oc.env:HOME}'}",
    "environment, name composed": "device: {source: oc.env, name: '${${device.source}:HOME}'}",
    "environment, with blanks": "device: {name: '${ oc.env : HOME }'}",
    "environment, decoded": "device: {name: \"${oc.decode:'${oc.env:HOME}'}\"}",
    "environment, with a default": "device: {name: '${oc.env:NOT_THERE,x}'}",
    "environment, selected": "device: {source: '${oc.env:HOME}', "
    "name: '${oc.select:device.source}'}",
    "date": "device: {name: '${now:%Y}'}",
    "where Hydra is": "device: {name: '${hydra:runtime.cwd}'}",
    "Hydra's section": "device: {name: '${hydra.runtime.cwd}'}",
    "version of Python": "device: {name: '${python_version:}'}",
    "itself": "device: {name: '${device.name}'}",
    "twice as long each": "device: {name: '${device.v0}', "
    + ", ".join(f"v{n}: '${{device.v{n + 1}}}${{device.v{n + 1}}}'" for n in range(40))
    + ", v40: x}",
}

REFUSED_BY_HYDRA = ("Hydra's section", "itself", "twice as long each")

ARGUMENTS = [
    "hydra.job.env_set.CXX=./cxx.sh",
    "+hydra.job.env_set.CXX=./cxx.sh",
    "++hydra.job.env_set.CXX=./cxx.sh",
    "hydra.job.env_set={CXX: ./cxx.sh}",
    "+hydra.job.env_copy=[HOME]",
    "hydra={job: {env_set: {CXX: ./cxx.sh}}}",
    "++hydra={job: {chdir: true}}",
    "~hydra.job_logging",
    "~hydra",
    "hydra.run={dir: x}",
    "hydra.sweep.subdir=../x",
    "hydra.output_subdir=../../x",
    "hydra.job.chdir=true",
    "hydra.mode=MULTIRUN",
    "hydra.searchpath=[pkg://evil]",
    "hydra.searchpath=pkg://evil",
    "hydra.searchpath=[structured://evil]",
    "hydra.searchpath=[http://evil/x]",
    "hydra.searchpath=['${oc.env:HOME}']",
    "hydra.searchpath=[1]",
    "hydra/job_logging=none",
    "hydra/hydra_logging=disabled",
    "hydra/callbacks=x",
    "hydra/env=x",
    "hydra/help=default",
    "hydra/launcher@hydra.callbacks.x=basic",
    "+hydra/launcher@model.x=basic",
    "+model@hydra.job.env_set=gpt2",
    "+model@hydra=gpt2",
    "model=../../outside",
    "hydra.launcher._target_=evil.f",
    "+hydra.launcher.x._target_=evil.f",
    "hydra.sweeper._target_=evil.f",
    "+hydra.callbacks.x._target_=evil.f",
    "hydra.job_logging.handlers.f.class=evil.F",
    "hydra.hydra_logging={version: 1}",
    "hydra.runtime.output_dir=x",
    "hydra.overrides.task=[a=1]",
    "hydra.verbose.x=1",
    "hydra.job.name=x",
]


SWEPT = [
    "hydra.job.env_set.CXX=./a.sh,./b.sh",
    "+hydra.job.env_set.CXX=./a.sh,./b.sh",
    "hydra.sweep.subdir=../a,../b",
    "hydra.sweep.dir=a,b",
    "hydra.run.dir=a,b",
    "hydra.output_subdir=../a,../b",
    "hydra.searchpath=[pkg://evil],[/tmp]",
    "hydra.mode=RUN,MULTIRUN",
    "hydra/launcher=basic,joblib",
    "hydra/job_logging=none,default",
    "hydra.launcher._target_=evil.f,evil.F",
    "hydra.sweeper.params={hydra.job.chdir: true},{}",
    "+model@hydra.job.env_set=gpt2,llama",
    "model=../../outside,gpt2",
    "device.name='${oc.env:HOME}','${now:%Y}'",
]


@pytest.fixture(autouse=True)
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a package that shows when it is imported, and a file to be damaged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "evil"
    package.mkdir()
    (package / "__init__.py").write_text("open('ran', 'w')\ndef f(*a, **k): ...\nF = f\n")
    (tmp_path / "victim.txt").write_text("precious")
    (tmp_path / "outside.yaml").write_text("name: read from outside\n")
    return tmp_path


def config_dir(text: str) -> list[str]:
    """A folder of options from somebody else, one chosen on the command line."""
    _write("mine/example/theirs.yaml", f"# @package _global_\n{text}\n")
    return ["--config-dir", "mine", "example=theirs"]


def saved(text: str) -> list[str]:
    """A folder of a run from somebody else."""
    _write("theirs/.hydra/config.yaml", f"{text}\n")
    return ["-cp", "theirs/.hydra"]


def sweep_of_options(text: str) -> list[str]:
    return ["-m", *config_dir(text), "cache.block_size=16,32"]


def sweep_of_saved(text: str) -> list[str]:
    return ["-m", *saved(text), "+cache.block_size=16,32"]


def joblib(text: str) -> list[str]:
    return [*sweep_of_options(text), "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]


def page(text: str) -> list[str]:
    return [*config_dir(text), "--help", "all"]


def shown(text: str) -> list[str]:
    return [*saved(text), "--cfg", "all"]


def argument(text: str) -> list[str]:
    return [text]


def sweep_argument(text: str) -> list[str]:
    return ["-m", text, "cache.block_size=16,32"]


def joblib_argument(text: str) -> list[str]:
    return [*sweep_argument(text), "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]


def page_argument(text: str) -> list[str]:
    return ["--cfg", "hydra", text]


def _write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text.replace("ESCAPED", "escaped").replace("VICTIM", "victim.txt"))


Entrance = Callable[[str], list[str]]
OF_FILES: list[Entrance] = [
    saved,
    config_dir,
    sweep_of_options,
    sweep_of_saved,
    joblib,
    page,
    shown,
]
OF_ARGUMENTS: list[Entrance] = [page_argument, argument, sweep_argument, joblib_argument]
full = pytest.mark.full


def pairs(attacks: list[str], entrances: list[Entrance]) -> list[object]:
    """Every attack through every entrance. On each commit all go through the first, which composes
    one file, and an attack of its own through each other one."""
    return [
        pytest.param(
            entrance,
            attack,
            id=f"{entrance.__name__}-{attack[:40]}",
            marks=() if place == 0 or place == number else full,
        )
        for number, attack in enumerate(attacks)
        for place, entrance in enumerate(entrances)
    ]


def assert_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Exit 2 and one line a problem; nothing imported, opened, set or written. What was said."""
    environment, before = dict(os.environ), set(Path.cwd().rglob("*"))
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err and "Traceback" not in err
    assert all(line.startswith("kvpipe: ") for line in err.splitlines()), err
    assert "fault of kvpipe" not in err
    assert dict(os.environ) == environment
    assert set(Path.cwd().rglob("*")) == before
    assert Path("victim.txt").read_text() == "precious"
    assert "evil" not in sys.modules
    return err


@pytest.mark.parametrize(("entrance", "attack"), pairs(list(SAID_TO_HYDRA), OF_FILES))
def test_a_file_says_nothing_to_hydra(entrance, attack, capsys):
    arguments = entrance(f"hydra:\n  {SAID_TO_HYDRA[attack]}")
    assert "hydra" in assert_refused(arguments, capsys)


@pytest.mark.parametrize(("entrance", "attack"), pairs(list(FILES), OF_FILES))
def test_a_file_of_any_shape_is_refused_and_bounded(entrance, attack, capsys):
    assert_refused(entrance(FILES[attack]), capsys)


@pytest.mark.parametrize(
    "defaults",
    [
        "[l{next}@a, l{next}@b, _self_]",  # a million files, asked for one by one
        pytest.param("[l{this}@a, _self_]", marks=pytest.mark.full),
        pytest.param("[{{/model@a: '${{model}}'}}, _self_]", marks=pytest.mark.full),
    ],
    ids=["each twice", "itself", "what is chosen"],
)
def test_lists_of_defaults_have_an_end(defaults, capsys, monkeypatch):
    monkeypatch.setattr("kvpipe.request.guarded_loader.MAX_LOADS", 200)
    for number in range(20):
        named = defaults.format(this=number, next=number + 1)
        _write(f"theirs/model/l{number}.yaml", f"defaults: {named}\nx: 1\n")
    _write("theirs/model/l20.yaml", "x: 1\n")
    said = assert_refused(["--config-dir", "theirs", "model=l0", "backend=meta"], capsys)
    assert "lists of defaults that end, got more than 200 files" in said


def test_a_text_that_is_another_file_is_not_repeated(capsys):
    """A link in the place of a saved config: YAML takes the whole of it for one text."""
    _write("theirs/config.yaml", "root:x:0:0:root:/root")
    assert run(["-cp", "theirs"]) == 2
    err = capsys.readouterr().err
    assert "a config of settings" in err and "root:x" not in err


def test_what_hydra_raises_without_a_word_is_told_by_its_cause(capsys):
    _write("theirs/model/x.yaml", "name: !!set {a, b}\n")
    said = assert_refused(["--config-dir", "theirs", "model=x", "backend=meta"], capsys)
    assert "got \n" not in said and "got;" not in said and "set" in said


@pytest.mark.parametrize("key", ["name", "path"])
def test_a_name_in_a_line_that_starts_a_server_is_no_flag_of_it(key, capsys):
    """`vllm serve --trust-remote-code` would run code of the model's."""
    said = "model.name='--trust-remote-code'"
    if key == "path":
        _write("-m/config.json", SMALL)
        said = "model.path=./-m"
    reader = ["model=hf"] if key == "path" else ["model=gpt2"]
    assert run([*reader, said, "backend=meta", "device=h100_80gb"]) == 2
    assert "a name that no server takes for a flag" in capsys.readouterr().err


SERVERS = [
    "transformers",
    *(pytest.param(n, marks=pytest.mark.full) for n in ("sglang", "llama_cpp", "tensorrt_llm")),
    "kvpipe",
]


@pytest.mark.parametrize("engine", SERVERS)
def test_a_name_in_a_line_for_a_shell_is_one_word_of_it(engine, capsys):
    named = "model.name='x $(touch ran); y'"
    device = "device=h100_80gb"
    assert run([f"engine={engine}", "model=gpt2", named, device, "backend=meta"]) in (0, 1)
    lines = capsys.readouterr().out.replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if " --" in line and "touch" in line]
    assert any("x $(touch ran); y" in word for word in shlex.split(line)), line


@pytest.mark.parametrize(
    ("entrance", "attack"), pairs(list(ELSEWHERE), [saved, config_dir, sweep_of_options, joblib])
)
def test_no_value_of_a_run_comes_from_elsewhere(entrance, attack, capsys):
    said = assert_refused(entrance(ELSEWHERE[attack]), capsys)
    assert "a value in YAML or on the command line" in said or attack in REFUSED_BY_HYDRA, said


@pytest.mark.parametrize(("entrance", "attack"), pairs(ARGUMENTS, OF_ARGUMENTS))
def test_the_command_line_says_to_hydra_what_is_listed(entrance, attack, capsys):
    assert_refused(entrance(attack), capsys)


@pytest.mark.parametrize("launcher", ["basic", pytest.param("joblib", marks=full)])
@pytest.mark.parametrize("swept", [SWEPT[0], *(pytest.param(s, marks=full) for s in SWEPT[1:])])
def test_a_sweep_over_settings_of_hydra_is_refused(swept, launcher, capsys):
    chosen = [] if swept.startswith("hydra/launcher") else [f"hydra/launcher={launcher}"]
    assert_refused(["-m", swept, *chosen], capsys)


@pytest.mark.parametrize(
    "name",
    [
        "hydra/env/default",
        "hydra/launcher/basic",
        "hydra/sweeper/basic",
        "hydra/config",
        "model/theirs@hydra.job",
    ],
)
def test_a_folder_of_options_cannot_stand_in_for_hydras_own(name, capsys):
    """Hydra looks for these names in every folder; `env/default` needs no choice at all."""
    name, _, package = name.partition("@")
    _write(f"mine/{name}.yaml", f"# @package {package or name.replace('/', '.')}\nx: 1\n")
    if name == "hydra/env/default":  # Hydra's own comes first: the file is not even read
        assert run(["--config-dir", "mine", "model=gpt2", "backend=meta", "report=none"]) == 0
        return
    chosen = [] if name.startswith("hydra") else ["+model=theirs"]
    assert_refused(["--config-dir", "mine", *chosen], capsys)


@pytest.mark.parametrize(
    "override",
    ["hydra/launcher: joblib", "hydra/job_logging: none", "hydra/callbacks: x", "hydra/env: x"],
)
@pytest.mark.parametrize(
    "entrance", [saved, shown, pytest.param(sweep_of_saved, marks=pytest.mark.full)]
)
def test_a_saved_config_does_not_choose_for_hydra(entrance, override, capsys):
    _write("theirs/.hydra/hydra/callbacks/x.yaml", "x: {_target_: evil.f}")
    assert_refused(entrance(f"defaults: [_self_, override {override}]\ncommand: run\n"), capsys)


def test_a_choice_does_not_depend_on_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("MODEL", "gpt2")
    assert_refused(config_dir("defaults: [{/model@model: '${oc.env:MODEL}'}]"), capsys)


@pytest.mark.parametrize(
    ("entrance", "attacks"),
    [
        ([], ["environment"]),
        pytest.param([], list(SAID_TO_HYDRA), marks=full),
        pytest.param(["-m", "cache.block_size=16,32"], list(SAID_TO_HYDRA), marks=full),
        pytest.param(["--help", "all"], list(SAID_TO_HYDRA), marks=full),
    ],
)
def test_a_plugins_yaml_is_a_file_like_any_other(entrance, attacks, capsys, monkeypatch):
    """Entry points of the group kvpipe.conf add a package's YAML to the search."""
    import kvpipe.request.compose as compose

    class Point:
        name, value = "theirs", "theirs.conf"

    _write("theirs/__init__.py", "")
    _write("theirs/conf/__init__.py", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # theirs is installed, and imported
    monkeypatch.setattr(compose, "entry_points", lambda group: [Point()])
    for attack in attacks:
        text = f"# @package _global_\nhydra:\n  {SAID_TO_HYDRA[attack]}\n"
        _write("theirs/conf/example/theirs.yaml", text)
        assert_refused([*entrance, "example=theirs"], capsys)


def test_what_acts_is_settled_even_where_a_setting_gets_through(monkeypatch):
    """The last of the three rules holds by itself: without the look at files, nothing acts."""
    import kvpipe.request.guarded_loader as loader
    from kvpipe.request.compose import compose_request, configuration

    monkeypatch.setattr(loader, "_of_hydra", lambda *_: [])
    text = "\n  ".join(
        ("job: {env_set: {CXX: x}, chdir: true, name: ../x}", "output_subdir: ../x")
        + ("sweep: {subdir: ../x}", "callbacks: {x: {_target_: evil.f}}")
    )
    arguments = config_dir(f"hydra:\n  {text}")
    with configuration(arguments[1]):
        hydra = compose_request([arguments[2]]).config.hydra
    assert (hydra.job.env_set, hydra.job.chdir, hydra.job.name) == ({}, False, "kvpipe")
    assert (hydra.output_subdir, hydra.callbacks) == (None, {})
    with pytest.raises(Exception, match="hydra.job.num"):
        _ = hydra.sweep.subdir


def test_the_command_line_may_say_what_is_listed(tmp_path):
    _write("more/cache/mine.yaml", "defaults: [full]\nblock_size: 32\n")
    asked = ["backend=meta", "report=none", "hydra.run.dir=here", "hydra.searchpath=[more]"]
    assert run([*asked, "cache=mine", "hydra.verbose=false"]) == 0
    assert "block_size: 32" in (tmp_path / "here/.hydra/config.yaml").read_text()


def test_values_of_a_file_may_name_one_another(tmp_path):
    text = "device: {source: mine, name: '${device.source} ${oc.select:no,x}'}"
    arguments = config_dir(f"example: {{}}\n{text}")
    assert run([*arguments, "backend=meta", "report=none", "hydra.run.dir=here"]) == 0
    assert "name: mine x" in (tmp_path / "here/.hydra/config.yaml").read_text()
