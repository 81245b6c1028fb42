"""TensorRT-LLM's `trtllm-serve` line as people paste it -> settings.

Source: the server's own options, of 2025 and 2026, read. What stands in the file that
`--extra_llm_api_options` (or `--config`) names wins over the flags and is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.engines.server_line import ServerFlags

_FILE = " (its kv_cache_config wins over what was planned)"
_KEYS = {
    "--tp-size": "parallel.tensor_parallel_size",
    "--tensor-parallel-size": "parallel.tensor_parallel_size",
    "--pp-size": "parallel.pipeline_parallel_size",
    "--pipeline-parallel-size": "parallel.pipeline_parallel_size",
    "--max-seq-len": "scheduler.max_model_len",
    "--max-batch-size": "scheduler.max_num_seqs",
    "--max-num-tokens": "scheduler.max_num_batched_tokens",
    "--kv-cache-free-gpu-memory-fraction": "engine.free_gpu_memory_fraction",
    "--free-gpu-memory-fraction": "engine.free_gpu_memory_fraction",
    "--kv-cache-dtype": "cache.cache_dtype",
}
_REMARKS = {
    "--extra-llm-api-options": _FILE,
    "--config": _FILE,
    "--backend": " (planned for pytorch)",
    "--max-beam-width": " (planned for one beam)",
}


def _begins(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        if word.rpartition("/")[2] == "trtllm-serve":
            return at + 2 if words[at + 1 : at + 2] == ["serve"] else at + 1
    return None


read_trtllm_serve = ServerFlags(
    engine="tensorrt_llm", begins=_begins, keys=_KEYS, remarks=_REMARKS, has_model_first=True
).read
