"""Log text -> EngineLog. One list of patterns an engine: what a line means, whatever its version.

Lines of several ranks are told apart by their prefix: "(Worker_TP1 pid=448)", "(VllmWorker rank=3
pid=7)", "[rank0]:", "[2026-01-01 12:00:00 TP3]", "[... DP0 TP1 EP1]".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.request.schema import shown
from kvpipe.stages.profiling.log_figures import GIB, EngineLog, Figure, number, whole_number

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"(?<![A-Za-z])(PP|TP|DP)(\d+)(?=[_ )\]])")
_NUMBERED = re.compile(r"\brank[ =]?(\d+)")
_PROCESS = re.compile(r"^\s*\([A-Za-z]*Worker\w* [^)]*pid=(\d+)\)")
_GIB, _INT = r"(-?[\d.]+) ?(?:GiB|GB)", r"([\d,]+)"
_RATIO = r"(\d+(?:\.\d+)?|\.\d+)"  # ends before the full stop of a sentence

# (pattern, figure names of its groups): sizes of one rank.
_VLLM_SIZES = (
    (rf"Available KV cache memory: {_GIB}", ("available_kv",)),
    (rf"kv_cache_size={_GIB}", ("available_kv",)),
    (rf"memory reserved for KV Cache is {_GIB}", ("available_kv",)),
    (rf"total_gpu_memory[ =(]+{_GIB}", ("total",)),
    (rf"gpu_memory_utilization \([\d.]+\) = {_GIB}", ("requested",)),
    (r"Free memory on device (?:\S+ )?\((?:[\d.]+)/(-?[\d.]+) GiB\)", ("total",)),
    (rf"Desired GPU memory utilization is \([\d.]+, {_GIB}\)", ("requested",)),
    (rf"[Mm]odel weights take {_GIB}", ("weights",)),
    (rf"(?:Loading model weights|Model loading) took {_GIB}", ("weights",)),
    (rf"Actual usage(?: is|:) {_GIB} for weights?", ("weights",)),
    (rf"PyTorch activation peak memory takes {_GIB}", ("activations",)),
    (rf"{_GIB} for peak activation", ("activations",)),
    (rf"non_torch_memory(?:=| takes ){_GIB}", ("non_torch",)),
    (rf"{_GIB} for non-torch memory", ("non_torch",)),
    (rf"peak_torch_memory={_GIB}", ("peak_torch",)),
    (rf"Estimated CUDA graph memory: {_GIB}", ("graphs",)),
    (rf"{_GIB} for (?:CUDAGraph|CUDA graph|NPU graph) memory", ("graphs",)),
    (rf"Graph capturing finished in [\d.]+ secs?, took {_GIB}", ("graphs",)),
)
_VLLM_BYTES = ((r"Available memory: (\d+), total memory: (\d+)", ("available_kv", "total")),)
_VLLM_COUNTS = (
    (r"# (?!CPU)\w+ blocks: (\d+)(?:, # CPU blocks: (\d+))?", ("num_gpu_blocks", "num_cpu_blocks")),
    (rf"KV cache size: {_INT} tokens", ("kv_tokens",)),
    (rf"Maximum concurrency for {_INT} tokens per request", ("concurrency_len",)),
    (rf"estimated maximum model length is {_INT}", ("estimated_max_len",)),
    (
        rf"max seq len \({_INT}\) is larger than the maximum number of tokens that can be stored "
        rf"in KV cache \({_INT}\)",
        ("max_model_len", "kv_tokens"),
    ),
    (rf"max seq len \({_INT}\)", ("max_model_len",)),
    (r"\bmax_(?:seq|model)_len=(\d+)", ("max_model_len",)),
    (r"\btensor_parallel_size=(\d+)", ("tp",)),
    (r"\bpipeline_parallel_size=(\d+)", ("pp",)),
    (r"\bmax_num_batched_tokens=(\d+)", ("max_num_batched_tokens",)),
    (r"\bmax_num_seqs=(\d+)", ("max_num_seqs",)),
    (r"Setting attention block size to (\d+) tokens", ("block_size",)),
)
_VLLM_WORDS = (
    (r"LLM engine \(v([\w.+-]+)\) with config", "version"),
    (r"vLLM (?:API server )?version v?(\d[\w.+-]*)", "version"),
    (r"\bkv_cache_dtype='?([\w]+)", "kv_dtype"),
    (r"with config: .*?\bmodel='([^']+)'", "model"),
)
_VLLM_RATIOS = (
    (rf"Maximum concurrency for [\d,]+ tokens per request: {_RATIO}x", "max_concurrency"),
    (rf"gpu_memory_utilization[ =(]+{_RATIO}", "utilization"),
    (rf"Desired GPU memory utilization is \({_RATIO}", "utilization"),
    (rf"current --gpu-memory-utilization={_RATIO}", "utilization"),
)
_NEEDED = re.compile(rf"\({_GIB} KV cache is needed")
_AVAILABLE_IN_ERROR = re.compile(rf"available KV cache memory \({_GIB}\)")
_PADDING = re.compile(r"Add (\d+) padding layers, may waste at most ([\d.]+)%")

_SGLANG_SIZES = (
    (rf"KV Cache is allocated.*?\bK size: {_GIB}, V size: {_GIB}", ("k", "v")),
    (rf"KV Cache is allocated.*?\bKV size: {_GIB}", ("kv",)),
    (rf"conv_state size: {_GIB}", ("conv",)),
    (rf"ssm_state size: {_GIB}", ("ssm",)),
    (rf"Load weight begin\. avail mem={_GIB}", ("before_load",)),
    (rf"Load weight end\..*?avail mem={_GIB}", ("after_load",)),
    (rf"Load weight end\..*?mem usage={_GIB}", ("weights",)),
    (rf"Memory pool end\. avail mem={_GIB}", ("after_pool",)),
    (rf"Capture cuda graph end\..*?mem usage={_GIB}", ("graphs",)),
)
_SGLANG_COUNTS = (
    (r"KV Cache is allocated.*?#tokens: (\d+)", ("kv_tokens",)),
    (r"\bmax_total_num_tokens=(\d+)", ("kv_tokens",)),
    (r"\bmax_running_requests=(\d+)", ("max_num_seqs",)),
    (r"\bcontext_len=(\d+)", ("context_len",)),
    (r"\bchunked_prefill_size=(\d+)", ("max_num_batched_tokens",)),
    (r"\bmax_mamba_cache_size: (\d+)", ("max_mamba_cache_size",)),
    (r"\btp_size=(\d+)", ("tp",)),
    (r"\bpp_size=(\d+)", ("pp",)),
    (r"\bpage_size=(\d+)", ("block_size",)),
)
_SGLANG_RATIOS = ((rf"\bmem_fraction_static={_RATIO}", "utilization"),)
_SGLANG_WORDS = (
    (r"\bmodel_path='([^']+)'", "model"),
    (r"\bkv_cache_dtype='([\w]+)'", "kv_dtype"),
    (r"[Ss][Gg][Ll]ang(?: version)?[ :=]+v?(\d+\.\d+[\w.]*)", "version"),
)
_SGLANG = re.compile(
    r"KV Cache is allocated|max_total_num_tokens=|mem_fraction_static|Load weight "
)


class _Reader:
    def __init__(self) -> None:
        self.ranks: dict[str, dict[str, Figure]] = {}
        self.counts: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.padding: dict[tuple[int, float], None] = {}

    def sizes(self, line: str, rank: str, patterns: Iterable[Any], unit: int) -> None:
        for pattern, names in patterns:
            if match := re.search(pattern, line):
                for name, text in zip(names, match.groups(), strict=True):
                    figure = Figure.printed(text, unit)
                    self.ranks.setdefault(rank, {})[name] = figure

    def keep(self, line: str, patterns: Iterable[Any], convert: Callable[[str], Any]) -> None:
        for pattern, name in patterns:
            if match := re.search(pattern, line):
                self.facts[name] = convert(match[1])

    def whole_numbers(self, line: str, patterns: Iterable[Any]) -> None:
        for pattern, names in patterns:
            if match := re.search(pattern, line):
                for name, text in zip(names, match.groups(), strict=True):
                    if text is not None:
                        self.counts[name] = whole_number(text)


def read_log(text: str, path: str = "the log") -> EngineLog:
    """The last start in the text. ConfigError when no line gives a memory or a capacity figure, or
    one gives a figure that is no number. path: the file, for messages."""
    engine = "sglang" if _SGLANG.search(text) and "# GPU blocks" not in text else "vllm"
    reader = _Reader()
    read_line = _sglang_line if engine == "sglang" else _vllm_line
    for at, written in enumerate(text.split("\n"), 1):
        for raw in written.splitlines():  # progress bars return to the start of their line
            line = _ANSI.sub("", raw)
            try:
                read_line(reader, line, _rank_of(line))
            except ValueError as error:
                raise _no_number(at, path, str(error)) from error
    if not reader.ranks and not reader.counts:
        raise ConfigError(
            Problem(
                "profiling.path",
                "the log of an engine's start, with its memory lines (vLLM, SGLang)",
                "a file without any",
            )
        )
    return EngineLog(
        engine=engine,
        ranks=reader.ranks,
        counts=reader.counts,
        padding=tuple(reader.padding),
        **reader.facts,
    )


def _no_number(at: int, path: str, text: str) -> ConfigError:
    expected = f"figures of less than 2**63 on line {at} of {path}"
    return ConfigError(
        Problem("profiling.path", expected, shown(text), "is the log cut or edited there?")
    )


def _vllm_line(reader: _Reader, line: str, rank: str) -> None:
    reader.sizes(line, rank, _VLLM_SIZES, GIB)
    reader.sizes(line, rank, _VLLM_BYTES, 1)
    reader.whole_numbers(line, _VLLM_COUNTS)
    reader.keep(line, _VLLM_RATIOS, number)
    reader.keep(line, _VLLM_WORDS, str)
    if match := _NEEDED.search(line):
        reader.facts["needed"] = Figure.printed(match[1])
    if match := _AVAILABLE_IN_ERROR.search(line):
        reader.ranks.setdefault(rank, {})["available_kv"] = Figure.printed(match[1])
    for layers, percent in _PADDING.findall(line):
        reader.padding[whole_number(layers), number(percent)] = None


def _sglang_line(reader: _Reader, line: str, rank: str) -> None:
    reader.sizes(line, rank, _SGLANG_SIZES, GIB)
    reader.whole_numbers(line, _SGLANG_COUNTS)
    reader.keep(line, _SGLANG_RATIOS, number)
    reader.keep(line, _SGLANG_WORDS, str)


def _rank_of(line: str) -> str:
    """The label of the rank that wrote the line; "" where it does not say."""
    head = line[:80]
    named = {kind: number for kind, number in _RANK.findall(head)}
    if named:
        return " ".join(f"{kind}{named[kind]}" for kind in ("DP", "PP", "TP") if kind in named)
    if numbered := _NUMBERED.search(head):
        return f"rank {numbered[1]}"
    process = _PROCESS.match(head)
    return f"process {process[1]}" if process else ""
