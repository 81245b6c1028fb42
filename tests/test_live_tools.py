"""The tools that start real engines, as far as they run without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.live import engines, environments, proof, setup  # noqa: E402
from tools.live.cases import cases  # noqa: E402
from tools.live.compare import differences, layer_number  # noqa: E402
from tools.live.models import MODELS  # noqa: E402
from tools.live.padded import padded  # noqa: E402
from tools.live.page import anywhere  # noqa: E402
from tools.live.paired import change_percent, slope_microseconds  # noqa: E402
from tools.live.plugin import installed_in  # noqa: E402


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPIPE_LIVE_DIR", str(tmp_path / "live"))
    return tmp_path / "live"


def test_there_are_forty_models_and_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in cases()]
    assert len(MODELS) >= 40 and len(set(names)) == len(names)


def test_an_unknown_environment_is_named_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert setup.main(["vllm-9.9.9"]) == 2
    out = capsys.readouterr().out
    assert "got vllm-9.9.9" in out and "vllm-0.32.0" in out and "llama-cpp" in out


def test_an_environment_without_its_stamp_is_not_taken_for_one(cache: Path) -> None:
    environment = environments.ENVIRONMENTS["vllm-0.32.0"]
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    assert not environment.is_complete()
    assert environments.missing(["vllm-0.32.0"]) == "python tools/live/setup.py vllm-0.32.0"
    (environment.folder / environments.STAMP).write_text(environment.stamp())
    assert environment.is_complete() and environments.missing(["vllm-0.32.0"]) == ""


def test_a_half_made_environment_is_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = environments.ENVIRONMENTS["transformers"]
    (environment.folder / "half").mkdir(parents=True)

    def made(one: environments.Environment) -> str:
        assert not (one.folder / "half").exists()
        one.folder.mkdir(parents=True)
        return ""

    monkeypatch.setattr(setup, "_make", made)
    assert setup.make(environment) == 0
    assert "half made" in capsys.readouterr().out


@pytest.mark.full  # pip waits for the index
def test_an_index_that_does_not_answer_is_said_in_a_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert setup.main(["transformers"]) == 1
    out = capsys.readouterr().out
    assert "transformers: not made. " in out and "Traceback" not in out
    assert not environments.ENVIRONMENTS["transformers"].folder.exists()


def test_the_entry_point_is_found_where_an_engine_would_look(tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import entry_points as e, version; "
        "(p,) = e(group='vllm.general_plugins', name='kvpipe'); print(p.load().__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": installed_in(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "kvpipe.integrations.vllm"


def answer(**changes: object) -> dict[str, object]:
    group = {"layers": ["model.layers.0.attn"], "kind": "full", "block_size": 16, "page_size": 64}
    return {
        "started": True,
        "max_model_len": 8,
        "num_blocks": 4,
        "groups": [group],
        "pages": [["model.layers.0.attn", 256, 0, 64]],
        "printed": {"tokens": 64, "concurrency": 8.0},
        "others": [],
    } | changes


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (answer(num_blocks=5), "num_blocks: kvpipe 4, the engine 5"),
        (answer(printed={"tokens": 63, "concurrency": 8.0}), "printed tokens"),
        (answer(pages=[["model.layers.0.attn", 256, 64, 64]]), "pages: model.layers.0"),
        (answer(pages=[]), "pages: kvpipe 1 layers, the engine 0"),
        (answer(started=False, error="no"), "only kvpipe starts: no"),
        (answer(groups=[]), "groups: kvpipe"),
    ],
)
def test_what_differs_is_said(theirs: dict[str, object], words: str) -> None:
    (found,) = differences(answer(), theirs)
    assert words in found


def test_equal_answers_do_not_differ() -> None:
    assert differences(answer(), json.loads(json.dumps(answer()))) == []


def test_layers_of_a_draft_with_its_own_numbers_come_after_the_model_s() -> None:
    def plan(draft: str) -> dict[str, object]:
        layers = ["model.layers.0.attn", "model.layers.1.attn", draft]
        group = {"kind": "full", "block_size": 16, "page_size": 64, "layers": layers}
        return answer() | {"groups": [group]}

    assert differences(plan("model.layers.2.attn"), plan("mtp.layers.0.attn")) == []
    assert differences(plan("model.layers.2.attn"), plan("other.layers.0.attn")) != []


def steps(**means: int) -> list[dict[str, int]]:
    """Of ways that a machine slows alike, by up to a half."""
    draw = Random(0)
    slow = [1 + draw.random() / 2 for _ in range(200)]
    return [{way: int(mean * each) for way, mean in means.items()} for each in slow]


def test_a_difference_smaller_than_the_noise_that_both_ways_have_is_found() -> None:
    found = change_percent(steps(own=1_000_000, ours=1_010_000), "own", "ours")
    assert found.value == pytest.approx(1, abs=0.01) and 0.9 < found.low <= found.high < 1.1
    assert found.text(1, "%").startswith("+1.0% (")


def test_what_one_more_costs_is_the_slope_of_the_means() -> None:
    taken = [{"2": 100_000, "4": 110_000, "8": 130_000}] * 20
    found = slope_microseconds(taken, {"2": 2, "4": 4, "8": 8})
    assert (found.value, found.low, found.high) == pytest.approx((5, 5, 5))


def test_no_page_names_a_folder_of_the_machine_that_made_it() -> None:
    said = "cannot import name 'x' (/opt/made/lib/python3.11/site-packages/vllm/a.py)"
    assert anywhere(said) == "cannot import name 'x' (vllm/a.py)"
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    assert [
        page.name for page in pages if re.search(r"/\S+/site-packages/", page.read_text())
    ] == []


def test_layers_are_told_by_their_number() -> None:
    assert layer_number("backbone.layers.12.mixer") == 12
    assert layer_number("model.layers.3.self_attn.attn") == 3


@pytest.mark.full  # each model is planned with every size of groups
def test_the_proof_is_made_with_every_model_whose_groups_can_be_bettered() -> None:
    better, unknown = padded("0.32.0")
    # Of the last no block is in common on a CPU: the engine refuses it, too.
    assert sorted(better) == sorted((*proof.PADDED, *proof.DRAFTED))
    assert unknown == ["deepseek-v3-eagle3"]


def test_an_engine_that_is_killed_as_it_starts_costs_its_case_only(
    tmp_path: Path, cache: Path
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import json, os, signal, sys\n"
        "for line in open(sys.argv[1]):\n"
        "    case = json.loads(line)\n"
        "    if case['name'] == 'killed':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    with open(sys.argv[2], 'a') as out:\n"
        "        print(json.dumps({'name': case['name'], 'started': True}), file=out)\n"
    )
    asked = [{"name": name} for name in ("before", "killed", "after")]
    here = environments.Environment(name="here", requirements=(), module="json")
    here.python.parent.mkdir(parents=True)
    here.python.symlink_to(sys.executable)
    found = engines.asked_in(here, probe, asked)
    assert [found[name]["started"] for name in ("before", "killed", "after")] == [True, False, True]
    assert "ended with -9" in found["killed"]["error"]
