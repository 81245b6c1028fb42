"""The line that starts vLLM with a plan: read back, it gives the same plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_requests import prepared_case

import kvpipe
from kvpipe.answers.serve_line import line_of
from kvpipe.cache.plan import Plan
from kvpipe.engines.serve import FLAGS, read_serve_line, serve_line
from kvpipe.errors import ConfigError
from kvpipe.front.main import run as command_line
from kvpipe.pipeline import Result, execute
from kvpipe.report.of_run import report_input

CONF = Path(__file__).parent / "cases" / "conf"
ENGINES = (
    ["engine=kvpipe"],
    ["engine=vllm_0_17"],
    ["engine=vllm_0_33"],
    ["engine=vllm", "engine.version=0.10.0"],
    ["engine=vllm", "engine.version=0.21.0"],
)
RUNS = (
    ["model=llama", "device=h100_80gb"],
    ["model=llama", "device=l40s", "cache=fp8", "parallel=tp2", "scheduler.max_num_seqs=64"],
    ["model=gemma3_27b", "device=h100_80gb", "cache.kv_cache_memory_bytes=20GiB"],
    ["model=llama3_70b", "device=h200", "parallel=pp2", "cache.block_size=32"],
    [
        "model=deepseek_v3",
        "device=mi355x",
        "parallel.tensor_parallel_size=8",
        "scheduler=throughput",
    ],
    ["model=qwen3_next", "device=h200", "parallel=tp2", "cache=mamba_align"],
    ["model=qwen3_next", "device=h200", "parallel=tp2", "scheduler.max_model_len=65536"],
    ["model=gpt_oss_120b", "device=h100_80gb", "cache.gpu_memory_utilization=0.97"],
    ["model=llama", "device=h100_80gb", "cache.num_gpu_blocks_override=5000"],
)


def run(overrides: list[str]) -> Result:
    return execute(prepared_case(overrides))


def essence(plan: Plan) -> tuple[object, ...]:
    """What an engine would do alike."""
    ranks = [(r.config.num_blocks, r.config.bytes_per_block, r.config.groups) for r in plan.ranks]
    return (plan.limits, plan.num_blocks, ranks, plan.capacity, plan.printed[0])


@pytest.mark.parametrize("engine", ENGINES, ids=lambda words: words[-1])
@pytest.mark.parametrize("asked", RUNS, ids=lambda words: "-".join(words)[6:60])
def test_a_line_read_back_gives_the_same_plan(asked: list[str], engine: list[str]) -> None:
    first = run([*asked, *engine])
    line = line_of(first)
    if "cache=mamba_align" in asked and engine[-1].endswith("0.10.0"):
        assert line == ""  # that release knows no modes of states
        return
    _, settings = read_serve_line(line)
    model, device = asked[:2]
    # The number of blocks stands for the bytes where a release has no flag for these.
    share = [word for word in asked if word.startswith("cache.gpu_memory_utilization=")]
    again = run([model, device, *engine, *share, *settings])
    assert essence(again.plan) == essence(first.plan), line


@pytest.mark.parametrize("version", ["0.6.4", "0.10.0", "0.17.0", "0.33.0"])
def test_only_flags_that_the_release_has_are_written(version: str) -> None:
    settings = {flag.key: 1 for flag in FLAGS} | {"cache.num_blocks": 7}
    line = serve_line("m", settings, version)
    release = tuple(map(int, version.split(".")))
    for flag in FLAGS:
        if flag.since and flag.since > release:
            assert f"{flag.name} " not in line
    assert ("--kv-cache-memory-bytes" in line) == (release >= (0, 11, 0))


def test_an_old_release_is_given_the_number_of_blocks() -> None:
    line = line_of(run(["model=llama", "device=h100_80gb", "engine=vllm", "engine.version=0.8.0"]))
    assert "--num-gpu-blocks-override" in line and "--kv-cache-memory-bytes" not in line


def test_the_line_names_size_length_requests_ranks_and_dtype() -> None:
    line = line_of(run(["model=llama", "device=h100_80gb", "parallel=tp2", "engine=vllm_0_33"]))
    assert line.startswith("vllm serve meta-llama/Llama-3.1-8B --dtype bfloat16 ")
    for flag in ("--block-size 16", "--max-num-seqs 1024", "--tensor-parallel-size 2"):
        assert flag in line
    assert "--kv-cache-memory-bytes" in line and "--max-model-len 131072" in line


LLAMA = ["model=llama", "device=h100_80gb"]
NO_LINE = {
    "attention=sliding is a what-if": [*LLAMA, "cache=sliding"],
    "attention=chunked is a what-if": [*LLAMA, "attention=chunked"],
    "3 drafted tokens take a --speculative-config": [*LLAMA, "scheduler.num_speculative_tokens=3"],
    "weights of": ["model=llama3_70b", "device=cpu", "device.memory_bytes=64GiB"],
    "name a checkpoint in awq": [*LLAMA, "weights=awq"],
    "vLLM 0.10.0 has no --mamba-cache-mode": [
        *("model=jamba", "device=h200", "parallel=tp2", "cache=mamba_align"),
        *("engine=vllm", "engine.version=0.10.0"),
    ],
    "vLLM 0.33.0 refuses it: model.dtype": ["model=tinyllama", "device=t4", "model.dtype=bfloat16"],
}


@pytest.mark.parametrize("why", NO_LINE)
def test_where_no_line_gives_the_plan_the_report_says_why(why: str) -> None:
    result = kvpipe.run([*NO_LINE[why], "backend=meta"])
    report = report_input(result)
    assert line_of(result) == report.serve == "" and report.no_serve.startswith(why)
    document = result.to_json()
    assert (document["serve"], document["no_serve"]) == ("", report.no_serve)
    for lines in (result.answer.screen(200), result.answer.lines(200)):
        assert f"none: {why}" in "\n".join(line.text for line in lines)


def test_a_plan_with_a_line_has_no_reason_for_none() -> None:
    report = report_input(run(LLAMA))
    assert report.serve.startswith("vllm serve") and not report.no_serve


def test_a_fleet_without_a_line_says_why_and_that_the_file_is_missing(capsys, tmp_path) -> None:
    model = [word for word in LLAMA if not word.startswith("device=")]
    words = ["find", *model, "attention=chunked", "want.device=[h100]", "want.write=compose"]
    words += ["want.length=2048", f"hydra.run.dir={tmp_path}"]
    assert command_line(words) == 0
    printed = capsys.readouterr()
    assert "no line: attention=chunked is a what-if" in printed.out
    assert "want.write=compose: no file, for want of a line to start: attention=" in printed.err
    assert not list(tmp_path.glob("*compose*"))


def test_a_line_of_another_program_is_refused() -> None:
    with pytest.raises(ConfigError, match="serve line: expected vllm serve MODEL"):
        read_serve_line("sglang serve m")


def test_a_flag_that_stands_for_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match="got --swap-space"):
        read_serve_line("vllm serve m --swap-space 4")
