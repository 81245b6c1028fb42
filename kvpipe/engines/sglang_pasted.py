"""SGLang's command line as people paste it -> settings: those flags that stand for one of ours.

Source: the server's own arguments, release 0.5.23. The other flags are kept by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.engines.server_line import ServerFlags

_KEYS = {
    "--model-path": "model",
    "--model": "model",
    "--tp": "parallel.tensor_parallel_size",
    "--tp-size": "parallel.tensor_parallel_size",
    "--tensor-parallel-size": "parallel.tensor_parallel_size",
    "--pp-size": "parallel.pipeline_parallel_size",
    "--pipeline-parallel-size": "parallel.pipeline_parallel_size",
    "--dp": "parallel.data_parallel_size",
    "--dp-size": "parallel.data_parallel_size",
    "--data-parallel-size": "parallel.data_parallel_size",
    "--context-length": "scheduler.max_model_len",
    "--max-running-requests": "scheduler.max_num_seqs",
    "--chunked-prefill-size": "scheduler.max_num_batched_tokens",
    "--mem-fraction-static": "engine.mem_fraction_static",
    "--page-size": "engine.page_size",
    "--max-total-tokens": "engine.max_total_tokens",
    "--swa-full-tokens-ratio": "engine.swa_full_tokens_ratio",
    "--mamba-full-memory-ratio": "engine.mamba_full_memory_ratio",
    "--max-mamba-cache-size": "engine.max_mamba_cache_size",
    "--kv-cache-dtype": "cache.cache_dtype",
    "--dtype": "model.dtype",
    "--quantization": "weights",
}
_SWITCHES: dict[str, tuple[str, bool]] = {
    "--disable-radix-cache": ("cache.enable_prefix_caching", False),
    "--disable-cuda-graph": ("engine.cuda_graphs", False),
}
# Its words -> ours.
_WORDS = {"half": "float16", "float": "float32", "fp8_e4m3": "fp8", "bf16": "bfloat16"}


def _begins(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        if word == "sglang.launch_server" and words[at - 1 : at] == ["-m"]:
            return at + 1
        is_program = word.rpartition("/")[2] == "sglang"
        if is_program and words[at + 1 : at + 2] in (["serve"], ["launch_server"]):
            return at + 2
    return None


read_sglang = ServerFlags(
    engine="sglang", begins=_begins, keys=_KEYS, switches=_SWITCHES, words=_WORDS
).read
