"""profiling=log: engines' own lines, of several versions and ranks, read and compared."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvpipe.answers.advised import advised
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.job import run_job
from kvpipe.front.prepared import prepared_request
from kvpipe.logs.figures import Figure
from kvpipe.logs.reading import read_log
from kvpipe.pipeline import plan_of, prepare
from kvpipe.request.changed import changed
from kvpipe.stages.profiling.log import LogProfiling, available_by_rank
from kvpipe.text.figures import GIB

VLLM_0_6 = """\
INFO 11-21 08:00:01 llm_engine.py:237] Initializing an LLM engine (v0.6.4) with config: \
model='meta-llama/Llama-3.1-8B', tensor_parallel_size=1, pipeline_parallel_size=1, max_seq_len=20000
INFO 11-21 08:00:31 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 11-21 08:00:40 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB \
peak_torch_memory=17.06GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB \
gpu_memory_utilization=0.90
INFO 11-21 08:00:40 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-21 08:00:40 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
"""
VLLM_0_8 = """\
(VllmWorkerProcess pid=521) INFO 04-12 [worker.py:267] the current vLLM instance can use \
total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.99) = 23.35GiB
(VllmWorkerProcess pid=521) INFO 04-12 [worker.py:267] model weights take 21.21GiB; \
non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the \
memory reserved for KV Cache is 1.57GiB.
(VllmWorkerProcess pid=577) INFO 04-12 [worker.py:267] model weights take 21.21GiB; \
non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the \
memory reserved for KV Cache is 1.55GiB.
"""
VLLM_0_27 = """\
(Worker_TP1 pid=448) INFO 08-14 14:07:22 [gpu_model_runner.py:6806] Estimated CUDA graph memory: \
0.36 GiB total
(Worker_TP1 pid=448) INFO 08-14 14:07:22 [gpu_worker.py:563] Available KV cache memory: 6.83 GiB
(Worker_TP0 pid=447) INFO 08-14 14:07:22 [gpu_worker.py:563] Available KV cache memory: 6.87 GiB
(Worker_TP0 pid=447) INFO 08-14 14:07:22 [gpu_worker.py:578] CUDA graph memory profiling is \
enabled (default since v0.21.0). The current --gpu-memory-utilization=0.8200 is equivalent to \
--gpu-memory-utilization=0.8048 without CUDA graph memory profiling.
(EngineCore pid=367) WARNING 08-14 [kv_cache_utils.py:1208] Add 3 padding layers, may waste at \
most 6.25% KV cache memory
(EngineCore pid=367) INFO 08-14 [kv_cache_utils.py:1314] GPU KV cache size: 188,640 tokens
(EngineCore pid=367) INFO 08-14 [kv_cache_utils.py:1319] Maximum concurrency for 131,072 tokens \
per request: 5.23x
"""
VLLM_REFUSED = """\
\x1b[1;36m(EngineCore_DP0 pid=1)\x1b[0;0m ValueError: To serve at least one request with the \
model's max seq len (221000), (10.12 GiB KV cache is needed, which is larger than the available \
KV cache memory (5.59 GiB). Based on the available memory, the estimated maximum model length is \
122080.
"""
SGLANG = """\
[2025-07-22 10:00:00] server_args=ServerArgs(model_path='/models/Q', mem_fraction_static=0.93, \
tp_size=2, page_size=1)
[2025-07-22 10:01:00 TP0] Load weight end. type=Q, dtype=torch.bfloat16, avail mem=17.94 GB, mem \
usage=56.11 GB.
[2025-07-22 10:01:05 TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB
[2025-07-22 10:01:05 TP1] KV Cache is allocated. #tokens: 367404, K size: 8.21 GB, V size: 8.21 GB
[2025-07-22 10:01:05 TP0] Memory pool end. avail mem=1.40 GB
[2025-07-22 10:02:05 TP0] max_total_num_tokens=367404, chunked_prefill_size=8192, \
max_running_requests=4096, context_len=40960
"""


def run(tmp_path: Path, log: str, *overrides: str) -> dict[str, Any]:
    path = tmp_path / "engine.log"
    path.write_text(log, encoding="utf-8")
    asked = ["profiling=log", f"profiling.path={path}", "report=json", *overrides]
    out = io.StringIO()
    outcome = run_job(prepared_request(asked).prepared, lambda: tmp_path, out, None)
    assert outcome.exit_code == 0, outcome.lines
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


# --- reading ---
def test_a_printed_figure_stands_for_half_a_unit_of_its_last_digit() -> None:
    figure = Figure.printed("3.81")
    assert figure.low == pytest.approx(3.805 * GIB, abs=1)
    assert figure.high == pytest.approx(3.815 * GIB, abs=1)
    assert Figure.printed("-2.14").low == pytest.approx(-2.145 * GIB, abs=1)
    assert Figure.printed("23106324992", 1) == Figure.exact(23106324992)


def test_the_lines_of_0_6_are_read() -> None:
    log = read_log(VLLM_0_6)
    (rank,) = log.ranks.values()
    assert {name: round(f.num_bytes / GIB, 2) for name, f in rank.items()} == {
        "total": 23.58,
        "weights": 14.99,
        "peak_torch": 17.06,
        "non_torch": 0.35,
        "available_kv": 3.81,
    }
    assert (log.engine, log.version, log.utilization) == ("vllm", "0.6.4", 0.90)
    assert log.counts["num_gpu_blocks"] == 1952 and log.counts["num_cpu_blocks"] == 2048
    assert log.counts["max_model_len"] == log.counts["concurrency_len"] == 20000
    assert log.max_concurrency == 1.56


def test_ranks_are_told_apart_by_process_and_the_poorest_decides() -> None:
    log = read_log(VLLM_0_8)
    assert list(log.ranks) == ["process 521", "process 577"]
    least = log.least("available_kv")
    assert least is not None and round(least.num_bytes / GIB, 2) == 1.55
    assert available_by_rank(log, 16) == (least,) * 16


def test_ranks_are_told_apart_by_their_place_and_keep_their_order() -> None:
    log = read_log(VLLM_0_27)
    assert [round(f.num_bytes / GIB, 2) for f in available_by_rank(log, 2)] == [6.87, 6.83]
    assert log.counts["kv_tokens"] == 188640 and log.padding == ((3, 6.25),)
    assert log.utilization == 0.82


@pytest.mark.parametrize(
    ("prefix", "label"),
    [
        ("(Worker_TP1 pid=448) INFO 08-14", "TP1"),
        ("(Worker_PP1_TP0 pid=448) INFO 08-14", "PP1 TP0"),
        ("(Worker_DP0_TP3_EP3 pid=4) INFO", "DP0 TP3"),
        ("(EngineCore_DP1 pid=387) INFO", "DP1"),
        ("(VllmWorker rank=3 pid=7) INFO", "rank 3"),
        ("(VllmWorkerProcess pid=521) INFO", "process 521"),
        ("[rank2]: INFO", "rank 2"),
        ("[2025-07-22 10:01:05 DP0 TP1 EP1]", "DP0 TP1"),
        ("(APIServer pid=1) INFO HTTP2 ", ""),
        ("INFO 11-21 08:00:31 worker.py:232]", ""),
    ],
)
def test_the_prefix_of_a_line_names_its_rank(prefix: str, label: str) -> None:
    log = read_log(f"{prefix} Available KV cache memory: 6.87 GiB")
    assert list(log.ranks) == [label]


def test_figures_of_many_ranks_come_in_the_order_of_the_ranks() -> None:
    lines = [f"(Worker_TP{i} pid=1) Available KV cache memory: {i}.50 GiB" for i in (10, 2, 0, 1)]
    found = available_by_rank(read_log("\n".join(lines)), 4)
    assert [round(figure.num_bytes / GIB, 1) for figure in found] == [0.5, 1.5, 2.5, 10.5]


def test_a_refusal_gives_what_was_needed_through_colour_codes() -> None:
    log = read_log(VLLM_REFUSED)
    assert log.needed == Figure.printed("10.12")
    assert log.least("available_kv") == Figure.printed("5.59")
    assert log.counts["estimated_max_len"] == 122080


def test_sglang_lines_are_read() -> None:
    log = read_log(SGLANG)
    assert log.engine == "sglang" and log.utilization == 0.93 and log.model == "/models/Q"
    assert [round(f.num_bytes / GIB, 2) for f in available_by_rank(log, 2)] == [16.46, 16.42]
    assert log.counts["kv_tokens"] == 367404 and log.counts["context_len"] == 40960


@pytest.mark.parametrize("text", ["", "INFO nothing of interest\n"])
def test_a_file_without_memory_lines_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"profiling\.path: expected the log of an engine's start"
    ):
        read_log(text)


def test_blocks_without_memory_say_what_to_set() -> None:
    log = read_log("INFO gpu_executor.py:113] # GPU blocks: 6487, # CPU blocks: 4096\n")
    with pytest.raises(ConfigError, match=r"it had 6,487 blocks"):
        available_by_rank(log, 1)


def test_a_negative_figure_does_not_fit_and_is_itemised() -> None:
    log = read_log(
        "INFO Loading model weights took 65.9651 GB\nINFO Available KV cache memory: -2.14 GiB\n"
    )
    with pytest.raises(DoesNotFit, match=r"-2\.14 GiB are left .* weights 65\.97 GiB"):
        available_by_rank(log, 1)


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("GPU KV cache size: ,,, tokens", "',,,'|''"),
        ("GPU KV cache size: 4096,00 tokens", "4096,00"),
        (f"GPU KV cache size: {'9' * 400} tokens", "9{100}"),
        (f"# GPU blocks: {'9' * 400}, # CPU blocks: 1", "9{100}"),
        ("Available KV cache memory: 5.0.0.0 GiB", "5.0.0.0"),
        (f"Available KV cache memory: {'9' * 400} GiB", "9{100}"),
        ("Available KV cache memory: 9999999999.0 GiB", "9999999999.0"),
        ("Available KV cache memory: - GiB\nmodel weights take . GiB", r"'\.'"),
        ("Available KV cache memory: ٣.٣ GiB", "٣"),
        (f"gpu_memory_utilization={'9' * 400}", "9{100}"),
        (f"Add {'9' * 30} padding layers, may waste at most 6.25%", "9{30}"),
        ("Add 3 padding layers, may waste at most 6.2.5%", "6.2.5"),
    ],
)
def test_a_figure_that_is_no_number_is_refused_by_file_and_line(line: str, got: str) -> None:
    at = 2 + line.count("\n")
    with pytest.raises(ConfigError, match=rf"than 2\*\*63 on line {at} of x\.log, got .*{got}"):
        read_log(f"INFO started\n{line}\n", "x.log")


def test_figures_end_where_their_sentence_does() -> None:
    log = read_log(
        "INFO Available KV cache memory: 3.5 GiB, try gpu_memory_utilization=0.9. Or set\n"
        "INFO gpu_memory_utilization ... higher; estimated maximum model length is 122,080, so\n"
    )
    assert log.utilization == 0.9 and log.counts["estimated_max_len"] == 122080


def test_progress_bars_do_not_hide_the_line_behind_them() -> None:
    log = read_log("Loading: 50%\rLoading: 100%\rINFO Available KV cache memory: 3.5 GiB\r\n")
    assert log.least("available_kv") == Figure.printed("3.5")


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b", "~nobody-of-that-name/x", "/", ""])
def test_a_path_that_is_no_file_is_refused_in_a_few_words(path: str) -> None:
    plugin = LogProfiling(LogProfiling.Options(name="log", path=path))
    with pytest.raises(
        ConfigError, match=r"profiling\.path: expected the log file of an"
    ) as caught:
        plugin.log()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("content", [bytes(range(256)) * 40, gzip.compress(VLLM_0_6.encode())])
def test_a_file_that_is_no_text_has_no_memory_lines(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.log").write_bytes(content)
    plugin = LogProfiling(LogProfiling.Options(name="log", path=str(tmp_path / "x.log")))
    with pytest.raises(ConfigError, match="got a file without any"):
        plugin.log()


def test_a_log_that_windows_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(VLLM_0_6.encode("utf-16"))
    plugin = LogProfiling(LogProfiling.Options(name="log", path=str(tmp_path / "x.log")))
    assert plugin.log() == read_log(VLLM_0_6)


@pytest.mark.parametrize(
    ("override", "match"),
    [
        (f"profiling.other_instances_bytes={10**40}", "other_instances_bytes: expected less than"),
        ("profiling.other_instances_bytes=-1", "other_instances_bytes: expected at least 0"),
        (f"profiling.weights_bytes={'9' * 39}.5TiB", "weights_bytes: expected less than"),
        (f"profiling.weights_bytes={'9' * 400}.5TiB", "weights_bytes: expected bytes, or a size"),
    ],
)
def test_bytes_without_bound_are_refused(override: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        prepared_request(["profiling=estimate", "device=h100_80gb", override])


# --- what gives more memory
@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["device=h100_80gb", "cache.kv_cache_memory_bytes=1MiB"], "cache.kv_cache_memory_bytes"),
        (
            ["device=h100_80gb", "profiling=estimate", "profiling.weights_bytes=68.8GiB"],
            "cache.gpu_memory_utilization",
        ),
        (["device=cpu", "profiling.budget_bytes=1MiB"], "profiling.budget_bytes"),
    ],
)
def test_a_plan_that_does_not_fit_names_settings_with_the_value_that_helps(
    overrides: list[str], key: str
) -> None:
    asked = ["model=llama", "scheduler.max_model_len=8192", *overrides]
    prepared = prepared_request(asked).prepared
    with pytest.raises(DoesNotFit) as caught:
        plan_of(prepared)
    told = advised(prepared, caught.value)
    (change,) = [dict(change) for change in told.changes if key in change]
    assert f"{key}={change[key]} (" in str(told)
    plan_of(prepare(changed(prepared.raw, change)))


def test_a_log_that_is_too_small_does_not_offer_a_share_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("INFO Available KV cache memory: 0.01 GiB\n")
    asked = ["model=llama", "device=rtx_3090", "profiling=log", "scheduler.max_model_len=8192"]
    prepared = prepared_request([*asked, f"profiling.path={tmp_path / 'x.log'}"]).prepared
    with pytest.raises(DoesNotFit) as caught:
        plan_of(prepared)
    keys = {key for change in advised(prepared, caught.value).changes for key in change}
    assert keys and not keys & {"cache.gpu_memory_utilization", "cache.kv_cache_memory_bytes"}


def test_one_block_is_not_written_as_many() -> None:
    asked = ["model=llama", "device=cpu", "scheduler.max_model_len=1", "engine=vllm_0_17"]
    with pytest.raises(DoesNotFit, match=r"of 1 token needs 1 block \("):
        plan_of(prepared_request([*asked, "cache.kv_cache_memory_bytes=1MiB"]).prepared)


# --- runs
def test_a_run_takes_the_logs_memory_and_reproduces_its_capacity(tmp_path: Path) -> None:
    document = run(tmp_path, VLLM_0_6, "device=rtx_3090", "scheduler.max_model_len=20000")
    memory = document["memory"]["ranks"][0]
    assert round(memory["available_kv"]["num_bytes"] / GIB, 2) == 3.81
    charged = {item["name"]: round(item["num_bytes"] / GIB, 2) for item in memory["charged"]}
    assert charged == {"weights": 14.99, "activations": 2.07, "other": 0.35}
    (rules,) = document["log"]["by_rules"]
    assert [term["name"] for term in rules["terms"]] == ["blocks", "concurrency", "swap blocks"]
    assert all(term["agrees"] for term in rules["terms"])
    assert document["log"]["differing"] == []


def test_a_setting_that_differs_from_the_logs_is_named(tmp_path: Path) -> None:
    document = run(tmp_path, VLLM_0_6, "device=rtx_3090", "scheduler.max_model_len=8192")
    assert document["log"]["differing"] == ["max_model_len 8,192 here, 20,000 in the log"]
    assert not all(term["agrees"] for term in document["log"]["by_rules"][0]["terms"])


def test_sglangs_capacity_line_is_said_not_to_be_reproduced(tmp_path: Path) -> None:
    path = tmp_path / "sglang.log"
    path.write_text(SGLANG, encoding="utf-8")
    asked = ["profiling=log", f"profiling.path={path}", "device=h100_80gb", "parallel=tp2"]
    out = io.StringIO()
    run_job(prepared_request(asked).prepared, lambda: tmp_path, out, None)
    text = " ".join(out.getvalue().split())
    assert "it printed 367,404 tokens" in text
    assert "how sglang comes to its capacity line is not reproduced" in text


def test_a_log_is_not_allocated_on_this_machines_cpu(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("INFO Available KV cache memory: 9000.00 GiB\n", encoding="utf-8")
    prepared = prepared_request(["device=cpu", "profiling=log", f"profiling.path={path}"]).prepared
    with pytest.raises(ConfigError, match="device: expected the device that the log is of"):
        run_job(prepared, lambda: tmp_path, None, None)


def test_a_path_without_the_plugin_says_which_plugin_it_belongs_to() -> None:
    with pytest.raises(ConfigError, match=r"path belongs to profiling=log"):
        prepared_request(["profiling.path=engine.log"])


def test_the_plugin_without_a_path_says_so() -> None:
    prepared = prepared_request(["profiling=log", "device=rtx_3090"]).prepared
    with pytest.raises(ConfigError, match=r"profiling\.path: expected the log file of an engine"):
        run_job(prepared, Path, None, None)
