"""What a log leaves out is found without hints: logs written by an engine with hidden settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpipe.answers.log_answer import LogComparison, compare_with_log
from kvpipe.front.prepared import prepared_request
from kvpipe.logs.reading import read_file
from kvpipe.pipeline import execute
from kvpipe.report.log_section import log_section

GIB = 2**30
HYBRID = "model=qwen3_next"


def written(*overrides: str, release: str = "0.17.0", memory: float = 10.0) -> str:
    """The capacity lines of that release with these settings, as it would print them."""
    made = execute(
        prepared_request(
            [
                "device=h200",
                "backend=meta",
                "scheduler.max_model_len=65536",
                "engine=vllm",
                f"engine.version={release}",
                f"cache.kv_cache_memory_bytes={round(memory * GIB)}",
                *overrides,
            ]
        ).prepared
    )
    line = made.plan.ranks[0].printed
    return (
        f"INFO Initializing a V1 LLM engine (v{release}) with config: model='/m', "
        "max_seq_len=65536\n"
        f"INFO Available KV cache memory: {memory:.2f} GiB\n"
        f"INFO GPU KV cache size: {line.num_tokens:,} tokens\n"
        f"INFO Maximum concurrency for 65,536 tokens per request: {line.max_concurrency:.2f}x\n"
    )


def compared(tmp_path: Path, log: str, *overrides: str) -> LogComparison:
    path = tmp_path / "x.log"
    path.write_text(log, encoding="utf-8")
    asked = ["device=h200", "backend=meta", "profiling=log", f"profiling.path={path}", *overrides]
    prepared = prepared_request(asked).prepared
    length = prepared.resolved.limits.max_model_len
    return compare_with_log(prepared, read_file(str(path)), length)


@pytest.mark.parametrize(
    ("model", "hidden"),
    [
        (HYBRID, ["cache.mamba_cache_mode=align"]),
        (HYBRID, ["cache.mamba_cache_mode=align", "cache.mamba_ssm_cache_dtype=float32"]),
        ("model=llama", ["cache.cache_dtype=fp8"]),
        ("model=gemma3_27b", ["scheduler.max_num_batched_tokens=16384"]),
    ],
)
def test_a_setting_that_the_log_leaves_out_is_named(
    tmp_path: Path, model: str, hidden: list[str]
) -> None:
    answer = compared(tmp_path, written(model, *hidden), model)
    assert not any(each.agrees for each in answer.by_rules)
    assert tuple(hidden) in {each.supposed for each in answer.found}
    assert {len(each.supposed) for each in answer.found} == {len(hidden)}


def test_nothing_is_searched_where_the_runs_own_settings_give_every_figure(tmp_path: Path) -> None:
    answer = compared(tmp_path, written("model=llama"), "model=llama")
    assert [each.agrees for each in answer.by_rules] == [True]
    assert answer.found == () and answer.searched == 0
    assert answer.taken == ("scheduler.max_model_len=65536",)


def test_figures_that_nothing_gives_are_said_to_be_given_by_nothing(tmp_path: Path) -> None:
    log = written("model=llama").replace("0 tokens", "1 tokens")
    answer = compared(tmp_path, log, "model=llama")
    assert answer.found == () and answer.searched > 5


def test_a_setting_that_the_log_gives_is_not_supposed_otherwise(tmp_path: Path) -> None:
    hidden = "cache.cache_dtype=fp8"
    log = written("model=llama", hidden) + "INFO non-default args: {'kv_cache_dtype': 'fp8'}\n"
    answer = compared(tmp_path, log, "model=llama")
    assert answer.agreeing == answer.by_rules and hidden in answer.taken


def test_the_release_that_the_user_names_is_used_where_the_log_names_none(tmp_path: Path) -> None:
    log = written("model=llama", release="0.24.0").replace("(v0.24.0)", "")
    answer = compared(tmp_path, log, "model=llama", "engine=vllm", "engine.version=0.24.0")
    assert [each.engine for each in answer.by_rules] == ["vllm 0.24.0"]


def test_of_a_log_without_a_release_all_rules_that_are_equally_near_are_named(
    tmp_path: Path,
) -> None:
    log = written("model=llama").replace("(v0.17.0)", "").replace("0 tokens", "1 tokens")
    answer = compared(tmp_path, log, "model=llama")
    off = [each.apart for each in answer.by_rules]
    assert {each.engine for each in answer.nearest} == {
        each.engine for each in answer.by_rules if each.apart == min(off)
    }
    assert len(answer.nearest) > 1


def test_swap_space_is_inferred_from_the_blocks_on_the_cpu(tmp_path: Path) -> None:
    log = (
        "INFO LLM engine (v0.6.4) with config: model='/m', max_seq_len=20000\n"
        "INFO kv_cache_size=3.81GiB\n# GPU blocks: 1952, # CPU blocks: 3072\n"
    )
    answer = compared(tmp_path, log, "model=llama")
    (found,) = answer.agreeing
    assert found.supposed == ("swap space 6 GiB",)


def test_copies_of_a_data_parallel_engine_are_each_compared_with_their_own_memory(
    tmp_path: Path,
) -> None:
    log = (Path(__file__).parent / "cases" / "logs" / "dp.log").read_text()
    answer = compared(tmp_path, log, "model=llama", "scheduler.max_model_len=8192")
    assert [(name, each.agrees) for name, each in answer.copies] == [("DP0", True), ("DP1", True)]


def test_a_log_without_a_capacity_is_shown_in_full(tmp_path: Path) -> None:
    """No figure to be near to: every rule is as near as the next."""
    log = "INFO Available KV cache memory: 4.00 GiB\n"
    section = log_section(compared(tmp_path, log, "model=llama"), 1)
    assert any("no capacity to compare with" in line.text for line in section.paragraphs)
