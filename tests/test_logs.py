"""Logs as people paste them: wrapped, coloured, cut, of several ranks, copies, starts."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.logs.contradictions import contradictions
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.figures import Figure
from kvpipe.logs.lines import BLOCK, LONGEST_LINE, Lines
from kvpipe.logs.reading import ENGINES, LogReader, read_file, read_log, read_stream
from kvpipe.logs.text import SPAN
from kvpipe.simulation.traces.base import lines as trace_lines
from kvpipe.text.figures import GIB

LOGS = Path(__file__).parent / "cases" / "logs"


def gib(log: EngineLog, name: str) -> list[float]:
    return [round(figure.num_bytes / GIB, 2) for figure in log.per_rank(name)]


# --- wrappers ---
@pytest.mark.parametrize(
    "name",
    ["plain", "ansi", "ansi2", "cri", "docker", "compose", "ray", "kubectl", "gcp"],
)
def test_two_ranks_are_told_apart_whatever_is_wrapped_around_their_lines(name: str) -> None:
    log = read_file(str(LOGS / f"{name}.log"))
    assert gib(log, "available_kv") == [4.0, 6.0]
    assert gib(log, "weights") == [13.2, 13.2]
    assert log.counts["kv_tokens"] == 65536


def test_the_release_stands_in_a_banner_without_the_engines_name() -> None:
    assert read_file(str(LOGS / "banner.log")).version == "0.25.1"


def test_of_several_token_lines_by_one_engine_the_fewest_count_without_the_others_concurrency() -> (
    None
):
    log = read_file(str(LOGS / "asc.log"))
    assert log.counts["kv_tokens"] == 166272
    assert log.max_concurrency is None  # it was printed after another line
    assert log.least("available_kv") is not None


def test_each_copy_of_a_data_parallel_engine_has_its_tokens_beside_its_own_memory() -> None:
    copies = read_file(str(LOGS / "dp.log")).by_copy()
    found = {
        name: (gib(log, "available_kv"), log.counts["kv_tokens"]) for name, log in copies.items()
    }
    assert found == {"DP0": ([4.0], 32768), "DP1": ([6.0], 49152)}


def test_pools_of_one_rank_add_up() -> None:
    assert gib(read_file(str(LOGS / "two_pools.log")), "pools") == [66.0]


def test_a_drafts_pools_count_and_its_weights_do_not_replace_the_models() -> None:
    log = read_file(str(LOGS / "eagle.log"))
    assert gib(log, "pools") == [41.26]
    assert gib(log, "weights") == [15.0] and gib(log, "draft_weights") == [0.8]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_the_encoding_is_seen_even_where_a_cut_took_its_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes((LOGS / "plain.log").read_text().encode(encoding))
    assert gib(read_file(str(path)), "available_kv") == [4.0, 6.0]


@pytest.mark.parametrize("zeros", [0, 2000, 100_000])
def test_a_log_that_a_crash_left_with_zeros_at_its_end_is_read(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "x.log"
    path.write_bytes((LOGS / "plain.log").read_bytes() + b"\0" * zeros)
    assert gib(read_file(str(path)), "available_kv") == [4.0, 6.0]


def test_labels_of_a_json_record_name_the_rank() -> None:
    lines = [
        {"process": f"(Worker_TP{i} pid=1)", "message": f"Available KV cache memory: {g} GiB"}
        for i, g in enumerate((4, 6))
    ]
    log = read_log("\n".join(map(json.dumps, lines)))
    assert gib(log, "available_kv") == [4.0, 6.0]


def test_an_unlabelled_figure_that_is_repeated_is_the_least() -> None:
    log = read_log("Available KV cache memory: 4.00 GiB\nAvailable KV cache memory: 6.00 GiB")
    assert gib(log, "available_kv") == [4.0]


# --- starts and engines ---
START = """\
INFO [api_server.py:1] vLLM API server version 0.{release}.0
INFO [core.py:1] Initializing a V1 LLM engine (v0.{release}.0) with config: model='/m', \
dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=1, kv_cache_dtype=auto
INFO [gpu_worker.py:1] Available KV cache memory: {memory} GiB
INFO [kv_cache_utils.py:1] GPU KV cache size: {tokens} tokens
"""


def test_the_last_of_two_starts_is_read_and_the_first_is_said() -> None:
    first = START.format(release=11, memory="9.00", tokens="73,728")
    last = START.format(release=12, memory="4.00", tokens="32,768")
    log = read_log(first + last)
    assert (log.version, gib(log, "available_kv"), log.starts) == ("0.12.0", [4.0], 2)
    assert log.notes == ("the file has 2 starts: the last one is read",)


def test_two_engines_in_one_file_are_kept_apart() -> None:
    a = START.format(release=11, memory="9.00", tokens="73,728").replace("INFO", "vllm-1  | INFO")
    b = START.format(release=12, memory="4.00", tokens="32,768").replace("INFO", "vllm-2  | INFO")
    mixed = "\n".join(
        line for pair in zip(a.split("\n"), b.split("\n"), strict=True) for line in pair
    )
    log = read_log(mixed)
    assert (log.version, gib(log, "available_kv")) == ("0.12.0", [4.0])
    assert log.notes == ("the file has 2 engines: vllm vllm-2 is read, not vllm vllm-1",)


def test_a_sglang_start_after_a_start_is_told_from_a_draft() -> None:
    text = (LOGS / "eagle.log").read_text()
    assert gib(read_log(text + text), "pools") == [41.26]


def test_the_engines_own_settings_are_read_from_either_form() -> None:
    log = read_log(
        "INFO non-default args: {'model': '/m', 'max_model_len': 8192, 'block_size': 32, "
        "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}, "
        "'kv_cache_dtype': 'fp8', 'max_num_seqs': 64, 'enable_prefix_caching': False}\n"
        + START.format(release=12, memory="4.00", tokens="32,768")
    )
    assert log.settings == {
        "scheduler.max_model_len": 4096,
        "scheduler.max_num_seqs": 64,
        "scheduler.num_speculative_tokens": 3,
        "cache.block_size": 32,
        "cache.cache_dtype": "auto",  # the configuration line comes later
        "cache.enable_prefix_caching": False,
        "model.dtype": "bfloat16",
        "parallel.tensor_parallel_size": 1,
    }
    assert log.model == "/m"


@pytest.mark.parametrize(("fits", "length"), [("reduced from 4096 to 384", 384), ("", 4096)])
def test_a_length_that_was_fitted_is_the_one_that_the_capacity_is_of(
    fits: str, length: int
) -> None:
    fitted = f"INFO Auto-fit max_model_len: {fits} to fit in memory\n" if fits else ""
    log = read_log(
        "INFO Initializing a V1 LLM engine (v0.32.0) with config: model='/m', max_seq_len=4096,\n"
        f"{fitted}INFO CPU KV cache size: 409 tokens, Maximum concurrency for 384 tokens per "
        "request: 1.07x\n"
    )
    assert log.settings["scheduler.max_model_len"] == length


def test_a_cache_printed_as_nothing_stands_for_any_bytes_but_those_that_were_set() -> None:
    line = "INFO Explicitly set (0.0/23.54) GiB for KV cache on node 0.\n"
    asked = "INFO non-default args: {'model': '/m', 'kv_cache_memory_bytes': 2097152}\n"
    assert read_log(line).least("available_kv") == Figure.printed("0.0")
    assert read_log(asked + line).least("available_kv") == Figure.exact(2097152)
    other = asked.replace("2097152", "2147483648")
    assert read_log(other + line).least("available_kv") == Figure.printed("0.0")


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ("SpeculativeConfig(method='eagle', model='/a/draft', num_spec_tokens=2)", "/a/draft"),
        ("SpeculativeConfig(method='eagle3', model='org/name', num_spec_tokens=2)", "org/name"),
        ("SpeculativeConfig(method='mtp', model='/m', num_spec_tokens=1)", "mtp"),
        ("SpeculativeConfig(method='deepseek_mtp', model='/m', num_spec_tokens=1)", "mtp"),
        ("SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)", None),
        ("SpeculativeConfig(method='medusa', model='/a/heads', num_spec_tokens=3)", None),
        ("None", None),
    ],
)
def test_a_draft_that_stores_a_cache_is_read_from_the_line_that_names_it(
    drafts: str, expected: str | None
) -> None:
    line = f"INFO Initializing a V1 LLM engine (v0.32.0) with config: model='/m', {drafts}, dtype=x"
    log = read_log(f"{line}\nINFO KV cache size: 32,768 tokens\n")
    assert log.settings.get("model.draft") == expected and log.model == "/m"


def test_lines_of_tensorrt_llm_and_llama_cpp_give_their_memory() -> None:
    trt = read_log(
        "[TensorRT-LLM] TensorRT-LLM version: 1.0.0\n"
        "[TRT-LLM] [I] Allocated 5.12 GiB for max tokens in paged KV cache (41984).\n"
    )
    assert (trt.engine, trt.version, gib(trt, "available_kv")) == ("tensorrt-llm", "1.0.0", [5.12])
    assert trt.counts["kv_tokens"] == 41984
    cpp = read_log(
        "load_tensors:        CUDA0 model buffer size =  4685.30 MiB\n"
        "llama_context: n_ctx = 8192\n"
        "llama_kv_cache:      CUDA0 KV buffer size =   896.00 MiB\n"
        "llama_kv_cache:      CUDA1 KV buffer size =   128.00 MiB\n"
    )
    assert (cpp.engine, gib(cpp, "pools")) == ("llama.cpp", [1.0])
    assert cpp.settings == {"scheduler.max_model_len": 8192}


@pytest.mark.parametrize(
    ("line", "requested"),
    [
        ("Explicitly set (0.06/23.54) GiB for KV cache on node 0.", []),
        (
            "Auto set (0.06/23.54) GiB for KV cache on node 0, with 21.65 GiB requested memory for "
            "the worker. 0.71 GiB memory was consumed by non-kv usages.",
            [21.65],
        ),
    ],
)
def test_a_cpu_worker_of_vllm_gives_its_memory(line: str, requested: list[float]) -> None:
    prefix = "(MainProcess pid=25139) INFO 11-30 08:55:47 "
    log = read_log(
        f"{prefix}[core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'\n"
        f"{prefix}[cpu_worker.py:260] {line}\n"
        f"{prefix}[kv_cache_utils.py:2327] CPU KV cache size: 14,979 tokens, Maximum concurrency "
        "for 1,024 tokens per request: 14.63x\n"
    )
    assert (log.version, gib(log, "available_kv"), gib(log, "total")) == ("0.32.0", [0.06], [23.54])
    assert gib(log, "requested") == requested
    assert log.counts["kv_tokens"] == 14979


def test_lines_of_older_releases_are_read_as_their_users_pasted_them() -> None:
    """ggml-org/llama.cpp, pull request 8035; NVIDIA/TensorRT-LLM, issue 1400; Triton's tutorials,
    pull request 150. The sums are the engines' own, or bytes a token by hand."""
    cpp = read_log(
        "llm_load_tensors:        CPU buffer size = 22994.45 MiB\n"
        "llm_load_tensors:      CUDA0 buffer size = 12633.25 MiB\n"
        "llm_load_tensors:      CUDA1 buffer size =  8652.00 MiB\n"
        "llama_new_context_with_model: n_ctx      = 8192\n"
        "llama_kv_cache_init:  CUDA_Host KV buffer size =    64.00 MiB\n"
        "llama_kv_cache_init:      CUDA0 KV buffer size =  1472.00 MiB\n"
        "llama_kv_cache_init:      CUDA1 KV buffer size =  1024.00 MiB\n"
        "llama_new_context_with_model: KV self size  = 2560.00 MiB, K (f16): 1280.00 MiB\n"
        "llama_new_context_with_model:      CUDA0 compute buffer size =  1108.50 MiB\n"
    )
    assert gib(cpp, "pools") == gib(cpp, "pool_check") == [2.5]  # MiB, 2560 of them
    assert gib(cpp, "weights") == [43.24] and gib(cpp, "activations") == [1.08]
    assert cpp.settings == {"scheduler.max_model_len": 8192}
    old = read_log(
        "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n"
        "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.\n"
    )
    assert (old.engine, old.counts["kv_tokens"]) == ("tensorrt-llm", 132608)
    (figure,) = old.per_rank("available_kv")
    assert figure.num_bytes == 132608 * 32 * 2 * 32 * 128 * 2  # Llama-2-7B in 16 bits
    new = read_log(
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 78.30 GiB for max tokens in paged KV "
        "cache (3731744).\n"
    )
    assert gib(new, "available_kv") == [78.3] and new.counts["kv_tokens"] == 3731744


# --- how a start ended ---
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total "
    "capacity of 22.05 GiB of which 60.12 MiB is free. {}Of the allocated memory 14.20 GiB is "
    "allocated by PyTorch, and 41.53 MiB is reserved by PyTorch but unallocated."
)
HEAD = "INFO 11-30 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='m'\n"
PREFIX = "(EngineCore pid=57) ERROR 11-30 09:12:58 [core.py:718] "


@pytest.mark.parametrize(
    ("processes", "mine", "others"),
    [
        ("", None, None),
        (
            "Process 3911 has 7.30 GiB memory in use. Including non-PyTorch memory, this process "
            "has 14.68 GiB memory in use. ",
            14.68,
            7.3,
        ),
        # In a container a process does not know its own number.
        ("Process 3911 has 7.30 GiB memory in use. Process 7 has 14.68 GiB memory in use. ", 14.68,
         7.3),
        ("Process 7 has 14.68 GiB memory in use. ", 14.68, None),
        ("Process 3911 has 512.00 MiB memory in use. ", None, 0.5),
    ],
)  # fmt: skip
def test_a_card_that_ran_out_says_who_holds_it(
    processes: str, mine: float | None, others: float | None
) -> None:
    found = read_log(HEAD + PREFIX + OUT_OF_MEMORY.format(processes)).ran_out
    assert found is not None and (found.asked, found.total) == (896 * 2**20, round(22.05 * 2**30))
    assert found.free == round(60.12 * 2**20)
    assert found.mine == (None if mine is None else round(mine * 2**30))
    assert found.others == (None if others is None else round(others * 2**30))


@pytest.mark.parametrize(
    ("line", "mine", "others"),
    [
        # The head says that process 57 is the engine's own.
        ("Process 57 has 14.68 GiB memory in use. Process 8 has 7.30 GiB memory in use. ",
         None, 7.3),
        # 14.68 twice is more than the card: one process by two numbers.
        ("Process 7 has 14.68 GiB memory in use. Including non-PyTorch memory, this process has "
         "14.68 GiB memory in use. ", 14.68, None),
        # The driver does not say: torch prints 2**64 less something.
        ("Process 7 has 14.68 GiB memory in use. Including non-PyTorch memory, this process has "
         "17179869184.00 GiB memory in use. ", 14.68, None),
    ],
)  # fmt: skip
def test_only_a_process_that_is_not_the_engines_is_another(
    line: str, mine: float | None, others: float | None
) -> None:
    found = read_log(HEAD + PREFIX + OUT_OF_MEMORY.format(line)).ran_out
    assert found is not None
    assert found.mine == (None if mine is None else round(mine * 2**30))
    assert found.others == (None if others is None else round(others * 2**30))


def test_a_process_alone_may_be_the_engine() -> None:
    line = OUT_OF_MEMORY.format("Process 7 has 21.98 GiB memory in use. ").split("Of the all")[0]
    found = read_log(HEAD + PREFIX + line).ran_out
    assert found is not None and (found.mine, found.others) == (None, None)


def test_the_engine_that_spoke_before_is_the_one_that_ran_out() -> None:
    sglang = "[2026-01-01 12:00:00] server_args=ServerArgs(model_path='m', tp_size=1)\n"
    sglang += "[2026-01-01 12:00:09] Load weight end. type=X, avail mem=7.01 GB, mem usage=14.99 GB"
    log = read_log(f"{sglang}\n{OUT_OF_MEMORY.format('')}\n")
    assert log.engine == "sglang" and log.ran_out is not None
    assert log.error.startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_an_error_begins_at_its_name_and_one_that_points_at_it_does_not_replace_it() -> None:
    error = "ValueError: Free memory on device cuda:0 (9.87/22.05 GiB) on startup is less than "
    error += "desired GPU memory utilization (0.85, 18.74 GiB). Decrease GPU memory utilization or "
    error += "reduce GPU memory used by other processes."
    end = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."
    log = read_log(f"{HEAD}{PREFIX}{error}\n{end} Failed core proc(s): {{}}\n")
    assert log.error == error
    assert (log.utilization, log.held_by_others) == (0.85, round(22.05 * GIB) - round(9.87 * GIB))
    alone = read_log(f"{HEAD}{end}\n")
    assert alone.error.startswith("RuntimeError: Engine core initialization failed.")


def test_a_long_error_ends_with_a_sentence() -> None:
    text = "ValueError: " + "One sentence of an error. " * 40
    error = read_log(HEAD + PREFIX + text).error
    assert len(error) < 500 and error.endswith("an error.")


# --- contradictions ---
def test_figures_that_cannot_all_be_true_are_said_with_their_lines() -> None:
    text = (
        "[x TP0] KV Cache is allocated. #tokens: 10, K size: 4.00 GB, V size: 4.03 GB\n"
        "[x TP0] SWAKVPool mem usage: 77.63 GB\n"
    )
    (said,) = contradictions(read_log(text))
    assert "8.03 GiB" in said and "77.63 GiB" in said and "(lines 1 and 2)" in said
    whole = text.replace("4.00 GB", "40.00 GB").replace("4.03 GB", "37.63 GB")
    assert list(contradictions(read_log(whole))) == []


# --- time and memory ---
PHRASES = [phrase for engine in ENGINES for phrase in engine.phrases]
CORPUS = [
    "0" * 60_000,
    "(" * 60_000,
    "[0;" * 20_000,
    "{" * 60_000,
    '{"a":' * 10_000,
    "(Worker pid=" * 8_000,
    "TP1 rank " * 8_000,
    *(phrase.within + phrase.words for phrase in PHRASES),
    *(phrase.words + "9" * 50 for phrase in PHRASES),
    *(phrase.words + "." * 200 + "GiB" for phrase in PHRASES),
]


def steps(line: str) -> int:
    reader = LogReader()
    try:
        reader.feed(1, line)
    except ValueError:
        return 0  # refused at once
    return reader.steps


def test_work_grows_with_the_length_of_a_line_and_no_faster() -> None:
    """Characters looked at, counted: for each phrase of each engine, repeated until it is long."""
    words = sum(len(engine.phrases) + len(engine.starts) + len(engine.errors) for engine in ENGINES)
    for seed in dict.fromkeys(CORPUS):
        if not seed:
            continue
        short = (seed * (1_000 // len(seed) + 1))[:1_000]
        long = (seed * (4_000 // len(seed) + 1))[:4_000]
        assert steps(short) <= len(short) * (2 * words + SPAN), seed[:60]
        assert steps(long) <= 4 * steps(short) + 200 * words * SPAN, seed[:60]


def test_no_pattern_sees_more_than_a_span() -> None:
    """A figure further away from its words than that is not theirs."""
    assert "available_kv" not in {
        name
        for rank in read_log(
            "GPU KV cache size: 10 tokens\nAvailable KV cache memory: " + " " * SPAN + "4.00 GiB"
        ).ranks.values()
        for name in rank
    }


class Endless(io.RawIOBase):
    """A log of `size` bytes that exists nowhere: one start, then noise."""

    def __init__(self, size: int, noise: bytes) -> None:
        self.left, self.noise, self.first = size, noise, b"Available KV cache memory: 4.00 GiB\n"
        self.most = 0

    def read(self, count: int = -1) -> bytes:
        assert 0 <= count <= BLOCK, "a block is asked for, never the whole"
        self.most = max(self.most, count)
        if self.first:
            first, self.first = self.first, b""
            return first
        block = (self.noise * (count // len(self.noise) + 1))[: min(count, self.left)]
        self.left -= len(block)
        return block


@pytest.mark.parametrize("noise", [b"0" * 999 + b"\n", b"x" * 4096])
def test_a_log_is_read_in_blocks_and_a_line_without_end_is_cut(noise: bytes) -> None:
    stream = Endless(3 * 2**20, noise)
    log = read_stream(stream, "x.log")  # type: ignore[arg-type]
    assert gib(log, "available_kv") == [4.0]


def test_no_line_is_longer_than_the_bound() -> None:
    long = b"y" * (5 * LONGEST_LINE) + b"\nshort\n"
    found = [len(line) for _, line in Lines(io.BytesIO(long))]
    assert found == [LONGEST_LINE, 5]


def test_a_file_that_grows_is_read_to_the_size_it_had() -> None:
    lines = Lines(io.BytesIO(b"a\nb\nc\n"), size=4)
    assert [line for _, line in lines] == ["a", "b"] and lines.grew


def test_a_fifo_and_a_device_are_refused_with_a_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="a FIFO|a device"):
            list(trace_lines(path))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    for path, word in ((tmp_path / "pipe", "a FIFO"), (Path("/dev/zero"), "a device")):
        with pytest.raises(ConfigError, match=rf"got .*\({word}"):
            read_file(str(path))
