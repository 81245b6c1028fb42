"""A plan as the line that starts vLLM with it, and such a line read back into settings.

Only flags that the release has are written: one table flag -> releases. The cache's size is given
in bytes, which no profiling changes; releases without that flag are given the number of blocks.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from kvpipe.engines.versions import Version, parse_version
from kvpipe.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class Flag:
    """name: of the flag. key: the setting it stands for. since: first release that has it (None:
    as far back as kvpipe knows). certain: whether that release is known."""

    name: str
    key: str
    since: Version | None = None
    certain: bool = True


FLAGS: tuple[Flag, ...] = (
    Flag(name="--dtype", key="model.dtype"),
    Flag(name="--quantization", key="weights"),
    Flag(name="--tensor-parallel-size", key="parallel.tensor_parallel_size"),
    Flag(name="--pipeline-parallel-size", key="parallel.pipeline_parallel_size"),
    Flag(
        name="--decode-context-parallel-size",
        key="parallel.decode_context_parallel_size",
        since=(0, 11, 0),
        certain=False,
    ),
    Flag(
        name="--data-parallel-size",
        key="parallel.data_parallel_size",
        since=(0, 9, 0),
        certain=False,
    ),
    Flag(name="--kv-cache-dtype", key="cache.cache_dtype"),
    Flag(
        name="--mamba-cache-dtype",
        key="cache.mamba_cache_dtype",
        since=(0, 10, 1),
        certain=False,
    ),
    Flag(
        name="--mamba-ssm-cache-dtype",
        key="cache.mamba_ssm_cache_dtype",
        since=(0, 10, 1),
        certain=False,
    ),
    Flag(name="--mamba-cache-mode", key="cache.mamba_cache_mode", since=(0, 13, 0), certain=False),
    Flag(name="--block-size", key="cache.block_size"),
    Flag(
        name="--kv-cache-memory-bytes",
        key="cache.kv_cache_memory_bytes",
        since=(0, 11, 0),
        certain=False,
    ),
    Flag(name="--num-gpu-blocks-override", key="cache.num_gpu_blocks_override"),
    Flag(name="--max-model-len", key="scheduler.max_model_len"),
    Flag(name="--max-num-seqs", key="scheduler.max_num_seqs"),
    Flag(name="--max-num-batched-tokens", key="scheduler.max_num_batched_tokens"),
)
# The layers of each stage; vLLM reads them from its environment alone.
PARTITION = "VLLM_PP_LAYER_PARTITION"
# Before 0.8 a batch must hold a whole prompt, unless this is said.
CHUNKED = "--enable-chunked-prefill"
# Flags without a value -> (setting, value).
SWITCHES: Mapping[str, tuple[str, str]] = {
    "--no-enable-prefix-caching": ("cache.enable_prefix_caching", "false"),
    "--enable-prefix-caching": ("cache.enable_prefix_caching", "true"),
    "--disable-hybrid-kv-cache-manager": ("cache.disable_hybrid_kv_cache_manager", "true"),
    "--enable-expert-parallel": ("parallel.enable_expert_parallel", "true"),
}
SWITCHES_SINCE: Mapping[str, Version] = {
    "--disable-hybrid-kv-cache-manager": (0, 9, 1),
    "--enable-expert-parallel": (0, 8, 0),
}
_BY_NAME = {flag.name: flag for flag in FLAGS}


def serve_line(model: str, settings: Mapping[str, object], version: str) -> str:
    """`vllm serve ...` for that release. settings: by key; those equal to None are left out.

    cache.num_blocks stands in for cache.kv_cache_memory_bytes where the release has no such flag.
    """
    release = parse_version(version)
    words = [*_environment(settings), "vllm", "serve", model]
    sized_in_bytes = has_flag("--kv-cache-memory-bytes", release)
    for flag in FLAGS:
        value = settings.get(flag.key)
        if flag.key == "cache.num_gpu_blocks_override" and value is None and not sized_in_bytes:
            value = settings.get("cache.num_blocks")
        if value is not None and has_flag(flag.name, release):
            words += [flag.name, str(value)]
    for name, (key, value) in SWITCHES.items():
        known = release >= SWITCHES_SINCE.get(name, release)
        if known and str(settings.get(key)).lower() == value:
            words.append(name)
    if settings.get("scheduler.chunked_prefill"):
        words.append(CHUNKED)
    return shlex.join(words)


def _environment(settings: Mapping[str, object]) -> list[str]:
    """What no flag carries: layers a stage."""
    partition = settings.get("parallel.pipeline_partition")
    if not isinstance(partition, (list, tuple)):
        return []
    return [f"{PARTITION}={','.join(map(str, partition))}"]


def has_flag(name: str, release: Version) -> bool:
    since = _BY_NAME[name].since
    return since is None or release >= since


def read_serve_line(line: str) -> tuple[str, list[str]]:
    """(model, overrides `key=value`) of such a line; ConfigError naming a flag that is unknown."""
    written = shlex.split(line)
    overrides: list[str] = []
    while written and written[0].startswith(f"{PARTITION}="):
        stages = written.pop(0).partition("=")[2]
        overrides.append(f"parallel.pipeline_partition=[{stages}]")
    if len(written) < 3:
        raise ConfigError(Problem("serve line", "vllm serve MODEL ...", f"'{line}'"))
    command, verb, model, *words = written
    if (command, verb) != ("vllm", "serve"):
        raise ConfigError(Problem("serve line", "vllm serve MODEL ...", f"'{command} {verb}'"))
    rest = iter(words)
    for word in rest:
        if word == CHUNKED:
            continue  # prompts are always cut, here
        if word in SWITCHES:
            key, value = SWITCHES[word]
        elif word in _BY_NAME:
            key, value = _BY_NAME[word].key, next(rest)
        else:
            raise ConfigError(Problem("serve line", "a flag that stands for a setting", word))
        overrides.append(f"{key}={value}")
    return model, overrides
