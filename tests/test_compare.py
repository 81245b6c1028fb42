"""`kvpipe compare`: a row is what the engine says by itself; refusals, the picture, the words."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from functools import cache

import pytest

from kvpipe.answers.block_plan import plan_blocks
from kvpipe.answers.engine_comparison import Compared, compare_engines, plan_any
from kvpipe.commands.base import Command
from kvpipe.commands.compare import SHOWN, Compare
from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.pipeline import Prepared, execute
from kvpipe.report.cards import cards, parts
from kvpipe.text.figures import size

ON_CARD = ("device=h100_80gb", "scheduler.max_model_len=8192", "backend=meta")


@cache
def prepared(*words: str) -> Prepared:
    return prepared_request([*ON_CARD, *words]).prepared


@cache
def compared(model: str) -> tuple[Compared, ...]:
    return compare_engines(prepared(f"model={model}"), SHOWN)


@pytest.mark.parametrize("model", ["llama", "gpt_oss_20b"])
def test_a_row_is_what_the_engine_says_by_itself(model: str) -> None:
    for each in compared(model):
        alone = plan_any(prepared(f"model={model}", f"engine={each.name}"))
        assert alone == each.plan


@pytest.mark.parametrize("engine", ["kvpipe", "vllm_0_17", "vllm_0_33"])
@pytest.mark.parametrize("model", ["llama", "gpt_oss_20b", "granite4"])
def test_blocks_as_a_pool_hold_what_the_run_says(engine: str, model: str) -> None:
    asked = prepared(f"model={model}", f"engine={engine}", "scheduler.max_num_seqs=4000")
    told, plan = plan_blocks(asked), execute(asked).plan
    assert plan.capacity is not None
    most = told.max_requests or 0
    assert told.users.steady == min(most, plan.capacity.requests_steady)
    assert told.users.peak == min(most, plan.capacity.requests_at_peak)
    assert told.budget.num_bytes == plan.ranks[0].available_bytes
    tokens = plan.printed[0].num_tokens
    assert tokens is not None and f"{tokens:,}" in told.printed[0]


def test_what_one_engine_refuses_stands_beside_what_others_serve(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "model=llama4_scout", "device=b300", "engines=[vllm,sglang]"]
    assert run([*words, "scheduler.max_model_len=8192"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "sglang refuses: engine.name: expected an engine that is planned with layers bounded"
        in said
    )
    assert "vllm serve meta-llama" not in said and "its flags: report=full" in said
    assert run([*words, "scheduler.max_model_len=8192", "report=full"]) == 0
    assert "vllm serve meta-llama/Llama-4-Scout" in capsys.readouterr().out


def test_an_engine_that_is_none_is_told_with_those_that_are() -> None:
    with pytest.raises(
        ConfigError,
        match="expected engines by name, got .* valid: kvpipe, llama_cpp",
    ):
        compare_engines(prepared("model=llama"), ["sglan"])


def test_engines_are_named_in_one_word() -> None:
    words = ["compare", "llama", "engines=[vllm,sglang]"]
    assert "command.engines=[vllm,sglang]" in words_to_overrides(words)


def test_the_picture_shows_every_byte_of_each_card() -> None:
    found = compared("gpt_oss_20b")
    drawn = ET.fromstring(cards(found, "a < b, \x1b[31mred"))
    told = {title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")}
    for each in found:
        assert each.plan is not None
        pieces = parts(each.plan)
        start = sum(step.num_bytes for step in each.plan.budget.steps if step.num_bytes > 0)
        assert abs(sum(part.num_bytes for part in pieces) - start) < 2**20
        assert all(f"{part.name}: {size(part.num_bytes)}" in told for part in pieces)


def test_a_sweep_has_a_column_for_each_engine() -> None:
    assert [column.title for column in Compare.columns] == list(SHOWN)
    assert Compare.fields == tuple(f"users_{name}" for name in SHOWN)


def test_find_and_replay_say_once_that_an_engine_is_planned_only(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("find", "replay"):
        words = [command, "model=llama", "device=h100_80gb", "engine=sglang"]
        assert run([*words, "trace=azure_code_sample"][: 4 if command == "find" else 5]) == 2
        told = capsys.readouterr().err
        assert told.count("which is planned only") == 1


@pytest.mark.parametrize("engine", ["sglang", "llama_cpp", "transformers", "tensorrt_llm"])
def test_a_cache_set_by_hand_that_the_card_has_not_beside_the_weights_does_not_fit(
    engine: str, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    asked = ["model=llama3_70b", "device=h100_80gb", "scheduler.max_model_len=8192"]
    words = [*asked, f"engine={engine}", "cache.kv_cache_memory_bytes=30GiB", "report=text"]
    assert run(words) == 1
    said = "30.00 GiB beside the weights (131.4 GiB) and what a step takes are 84.96 GiB more"
    assert said in capsys.readouterr().err
    ranks = "pipeline" if engine == "llama_cpp" else "tensor"  # it splits layers, not heads
    assert run([*words, f"parallel.{ranks}_parallel_size=4"]) == 0
    assert run([*words, "cache.may_exceed_device=true"]) == 0


def test_no_engine_is_compared_with_a_cache_that_the_card_has_not():
    asked = ["compare", "model=llama3_70b", "device=h100_80gb", "scheduler.max_model_len=8192"]
    prepared = prepared_request(
        words_to_overrides([*asked, "cache.kv_cache_memory_bytes=30GiB"])
    ).prepared
    answer = prepared.config.plugins["command"].make(Command).run(prepared, None)
    assert answer.exit_code == 1


@pytest.mark.parametrize(("users", "code"), [(1, 0), (2, 0), (50, 1)])
def test_the_users_that_were_asked_for_are_what_an_engine_must_run(users, code, capsys) -> None:
    words = ["compare", "llama", "device=l4", "scheduler.max_model_len=8192", "report=json"]
    assert run([*words, "engines=[vllm,transformers]", f"want.requests={users}"]) == code
    told = capsys.readouterr()
    engines = json.loads(told.out)["engines"]
    most = max(each["plan"]["users"]["steady"] for each in engines if each["plan"])
    assert (most >= users) == (code == 0)
    said = f"want.requests: {users} requests of 8,192 tokens at once were asked for, {most} run at"
    assert (said in told.err) == (code == 1)


def test_a_replay_has_the_requests_of_its_trace(capsys) -> None:
    words = ["replay", "llama", "device=l4", "trace=azure_code_sample"]
    assert run([*words, "want.requests=3"]) == 2
    assert "want.requests: expected nothing: a trace says how many" in capsys.readouterr().err


@pytest.mark.full
def test_a_sweep_over_devices_and_models_gives_one_table_and_one_picture(
    tmp_path, monkeypatch, capsys
) -> None:
    """A bar an engine and job, as wide as its users; all on one scale."""
    monkeypatch.chdir(tmp_path)
    asked = ["model=llama,mamba_2_8b", "device=l4,l40s", "command.engines=[vllm,transformers]"]
    words = ["-m", "compare", *asked, "scheduler.max_model_len=8192", "hydra.sweep.dir=out"]
    assert run(words) == 0
    assert "sweep.csv, engines.svg, and of each job" in capsys.readouterr().out
    with (tmp_path / "out/sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    users = [row[f"users_{name}"] for row in rows for name in ("vllm", "transformers")]
    drawn = ET.fromstring((tmp_path / "out/engines.svg").read_text())
    bars = [each for each in drawn.iter() if "data-users" in each.attrib]
    assert [bar.attrib["data-users"] for bar in bars] == [value or "0" for value in users]
    assert "" in users and len(set(users)) > 3
    served = [bar.attrib for bar in bars if bar.attrib["data-users"] != "0"]
    each = [float(bar["width"]) / int(bar["data-users"]) for bar in served]
    assert max(each) - min(each) < 0.05 * max(each)
    told = "".join(drawn.itertext())
    assert "model=llama device=l4" in told and "refuses, or came to nothing" in told
