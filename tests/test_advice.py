"""Warnings about a model on a plan: each where the trouble is, and none in its twin without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_requests import prepared_case

from kvpipe.answers.advice import advise
from kvpipe.answers.hints import stage_notes
from kvpipe.answers.replan import replan
from kvpipe.errors import ConfigError
from kvpipe.notes import Note
from kvpipe.pipeline import Result, execute

CONF = Path(__file__).parent / "cases" / "conf"
ROOM = ["device=h100_80gb", "cache.kv_cache_memory_bytes=20GiB", "scheduler.max_num_seqs=32"]


def run(*overrides: str) -> Result:
    return execute(prepared_case([*ROOM, *overrides]))


def notes(*overrides: str) -> list[Note]:
    result = run(*overrides)
    return [*stage_notes(result.prepared, result.profile, result.plan), *advise(result)]


def found(text: str, *overrides: str) -> list[Note]:
    return [note for note in notes(*overrides) if text in note.text]


# text of the warning, the trouble, the same without it
TWINS = {
    "a draft layer sets the group size": (
        "8 draft layers",
        ["model=qwen3_6_35b_dflash", "scheduler.max_model_len=32768", "engine=vllm_0_33"],
        ["model=qwen3_6_35b", "scheduler.max_model_len=32768", "engine=vllm_0_33"],
    ),
    "few layers of a kind set the group size": (
        "of the others empty",
        ["model=mixed_20_30", "engine=vllm_0_17"],
        ["model=mixed_20_30", "engine=vllm_0_17", "cache.disable_hybrid_kv_cache_manager=true"],
    ),
    "states make giant blocks": (
        "so that one holds a state: a request leaves",
        ["model=nemotron_h", "scheduler.max_model_len=8192"],
        ["model=jamba", "scheduler.max_model_len=8192", "cache.block_size=16"],
    ),
    "fp8 gains less than two": (
        "times smaller, not 2",
        ["model=qwen3_next", "cache=fp8", "parallel=tp2", "scheduler.max_model_len=8192"],
        ["model=qwen3_32b", "cache=fp8", "scheduler.max_model_len=8192"],
    ),
    "more requests than states have room": (
        "blocks that can hold a state",
        ["model=nemotron_h", "cache.num_gpu_blocks_override=658", "scheduler.max_num_seqs=1024",
         "scheduler.max_model_len=4096"],
        ["model=nemotron_h", "cache.num_gpu_blocks_override=658", "scheduler.max_num_seqs=658",
         "scheduler.max_model_len=4096"],
    ),
    "utilization leaves nothing": (
        "utilization 1.0",
        ["model=llama", "cache.gpu_memory_utilization=1.0"],
        ["model=llama", "cache.gpu_memory_utilization=0.95"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_a_warning_is_there_with_its_knob_and_not_in_the_twin_without_the_trouble(
    name: str,
) -> None:
    text, trouble, twin = TWINS[name]
    (warning,) = found(text, *trouble)
    assert warning.is_warning
    assert bool(warning.knob) == bool(warning.changes)
    assert found(text, *twin) == []


def test_a_request_that_can_never_be_scheduled_is_named_and_its_twin_is_not() -> None:
    asked = ["model=jamba", "engine=vllm_0_17", "scheduler.max_model_len=32768"]
    short = run(*asked, "cache.num_gpu_blocks_override=40")
    enough = run(*asked)
    assert any("can never be scheduled" in note.text for note in short.plan.notes)
    assert not any("can never be scheduled" in note.text for note in enough.plan.notes)


def test_a_stage_whose_pages_cannot_be_unified_is_named_with_its_layers() -> None:
    asked = ["model=qwen3_6_35b_odd_draft", "parallel=pp2", "scheduler.max_model_len=8192"]
    with pytest.raises(ConfigError) as refused:
        run(*asked, "engine=vllm_0_17")
    line = str(refused.value)
    assert "model.layers.40.self_attn.attn" in line and "in pipeline stage 1" in line
    run(*asked, "engine=kvpipe")
    run("model=qwen3_6_35b", "parallel=pp2", "scheduler.max_model_len=8192", "engine=vllm_0_17")


def test_the_draft_warning_gives_the_shares_that_the_engine_would_print() -> None:
    asked = ["model=qwen3_6_35b_dflash", "scheduler.max_model_len=32768"]
    (note,) = found("8 draft layers", *asked, "engine=vllm_0_17")
    assert "6 places (60.00%)" in note.text
    slots, padded = run(*asked).plan, run(*asked, "engine=vllm_0_17").plan
    assert slots.capacity and padded.capacity
    assert slots.capacity.steady_bytes < 0.98 * padded.capacity.steady_bytes
    assert "in equal slots (engine=kvpipe) a request of 32,768 tokens takes" in note.text
    assert f"in {len(slots.groups)} block tables" in note.text


def test_the_largest_legal_number_of_requests_is_the_number_of_state_blocks() -> None:
    _, trouble, _ = TWINS["more requests than states have room"]
    (note,) = found("blocks that can hold a state", *trouble)
    assert "scheduler.max_num_seqs=658" in note.knob


def test_fp8s_gain_is_that_of_two_plans() -> None:
    asked = ["model=qwen3_next", "parallel=tp2", "scheduler.max_model_len=8192"]
    half = run(*asked, "cache=fp8").plan.capacity
    whole = run(*asked).plan.capacity
    assert half is not None and whole is not None
    (note,) = found("times smaller, not 2", *asked, "cache=fp8")
    assert f"{whole.steady_bytes / half.steady_bytes:.2f} times smaller" in note.text


def test_a_plan_is_made_again_with_one_setting_changed() -> None:
    result = run("model=gemma3_27b", "scheduler.max_model_len=8192")
    memory = result.profile.available_kv_bytes
    same = replan(result.prepared, memory, {})
    assert same.groups == result.plan.groups and same.num_blocks == result.plan.num_blocks
    other = replan(result.prepared, memory, {"cache.disable_hybrid_kv_cache_manager": True})
    assert len(other.groups) == 1 < len(same.groups)
    assert result.prepared.config.cache.disable_hybrid_kv_cache_manager is False


def test_equal_slots_are_named_where_they_take_less_and_nowhere_else() -> None:
    """20 full layers beside 30 of a window: a third of the windows' places are empty, which is much
    of a short request and nothing of a long one."""
    asked = ["model=mixed_20_30", "engine=vllm_0_17", "cache.kv_cache_memory_bytes=60GiB"]
    (short,) = found("of the others empty", *asked, "scheduler.max_model_len=1024")
    (long,) = found("of the others empty", *asked, "scheduler.max_model_len=32768")
    assert "; in equal slots (engine=kvpipe) a request of 1,024 tokens takes" in short.text
    assert "equal slots" not in long.text and "would leave none" not in long.text


def test_groups_are_not_merged_for_more_bytes_only_so_that_none_is_padded() -> None:
    (note,) = found(
        "of the others empty",
        *["model=mixed_20_30", "engine=vllm_0_17", "scheduler.max_model_len=32768"],
    )
    assert "disable_hybrid" not in note.knob  # full attention for 50 layers instead of 20
