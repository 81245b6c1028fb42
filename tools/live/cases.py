"""What is compared: models x settings, each said once for kvpipe and once for the engine.

A case's memory is in bytes and the same for both; three further memories around what one request
needs are worked out from kvpipe's plan and planned by both without a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.live.model_files import CONTEXT, Model
from tools.live.models import MODELS

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One choice in both languages. overrides: of kvpipe; arguments: of the engine. processes:
    that the engine starts (more than one: its workers are processes of their own). from_serve_line:
    the engine is given the `vllm serve` line that kvpipe prints, and nothing else."""

    name: str
    overrides: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1
    from_serve_line: bool = False


class Named:
    """A case of whatever engine: a model under a setting."""

    model: Any
    setting: Any

    @property
    def name(self) -> str:
        return f"{self.model.name} {self.setting.name}".strip()


@dataclass(frozen=True, kw_only=True)
class Case(Named):
    model: Model
    setting: Setting
    memory_bytes: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """Of kvpipe; what comes later wins."""
        return (*LENGTH.overrides, *self.model.overrides, *self.setting.overrides)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Of the engine."""
        return {**LENGTH.arguments, **self.model.engine, **self.setting.arguments}


def _block(tokens: int) -> Setting:
    return Setting(
        name=f"block {tokens}",
        overrides=(f"cache.block_size={tokens}",),
        arguments={"block_size": tokens},
    )


AS_IT_IS = Setting(name="")
# Every case but those that look for the longest length: engines take the model's own otherwise, and
# two that read files differently would differ in all that follows.
LENGTH = Setting(
    name="",
    overrides=(f"scheduler.max_model_len={CONTEXT}",),
    arguments={"max_model_len": CONTEXT},
)
# Blocks that no kernel block but 16 divides.
ODD_BLOCKS = (_block(48), _block(80))
BLOCKS = tuple(_block(tokens) for tokens in (16, 32, 64, 256))
FP8 = Setting(name="fp8", overrides=("cache=fp8",), arguments={"kv_cache_dtype": "fp8"})
FLOAT32 = Setting(
    name="float32", overrides=("model.dtype=float32",), arguments={"dtype": "float32"}
)
NO_PREFIXES = Setting(
    name="no prefix caching",
    overrides=("cache.enable_prefix_caching=false",),
    arguments={"enable_prefix_caching": False},
)
PREFIXES = Setting(
    name="prefix caching",
    overrides=("cache.mamba_cache_mode=align",),
    arguments={"enable_prefix_caching": True},
)
NO_HYBRID = Setting(
    name="hybrid manager off",
    overrides=("cache.disable_hybrid_kv_cache_manager=true",),
    arguments={"disable_hybrid_kv_cache_manager": True},
)
AUTO_FIT = Setting(
    name="longest length",
    overrides=("scheduler.max_model_len=auto",),
    arguments={"max_model_len": -1},
)
OVERRIDE = Setting(
    name="40 blocks set",
    overrides=("cache.num_gpu_blocks_override=40",),
    arguments={"num_gpu_blocks_override": 40},
)
SMALL_BATCH = Setting(
    name="batch of 300",
    overrides=("scheduler.max_num_batched_tokens=300", "scheduler.max_num_seqs=64"),
    arguments={"max_num_batched_tokens": 300, "max_num_seqs": 64},
)
# Cross attention is planned for the batch's tokens where the engine does not know the encoder's.
CROSS_BATCH = Setting(
    name="batch of 3,000",
    overrides=("scheduler.max_num_batched_tokens=3000",),
    arguments={"max_num_batched_tokens": 3000},
)
FLOAT32_STATES = Setting(
    name="float32 states",
    overrides=("cache.mamba_ssm_cache_dtype=float32",),
    arguments={"mamba_ssm_cache_dtype": "float32"},
)
TP2 = Setting(
    name="tp 2", overrides=("parallel=tp2",), arguments={"tensor_parallel_size": 2}, processes=2
)
PP2 = Setting(
    name="pp 2", overrides=("parallel=pp2",), arguments={"pipeline_parallel_size": 2}, processes=2
)

SERVED = Setting(name="from the serve line", from_serve_line=True)

_HYBRIDS = ("gemma3-10-4", "gemma3-4-3", "gpt-oss", "llama4")
_WITH_STATES = ("bamba", "granite4", "qwen3-next", "lfm2", "jamba")


def cases() -> Iterator[Case]:
    """Every model as the engine sets it up, then settings on models where they matter."""
    for model in MODELS.values():
        yield Case(model=model, setting=AS_IT_IS, memory_bytes=64 * MIB)
    for setting in (*BLOCKS, FP8, FLOAT32, NO_PREFIXES, OVERRIDE, SMALL_BATCH):
        for name in ("llama", "gemma3-10-4"):
            yield Case(model=MODELS[name], setting=setting, memory_bytes=64 * MIB)
    for name in _HYBRIDS:
        yield Case(model=MODELS[name], setting=NO_HYBRID, memory_bytes=64 * MIB)
    for name in ("llama", "gemma3-10-4", "llama4", "mistral-window", "bamba"):
        yield Case(model=MODELS[name], setting=AUTO_FIT, memory_bytes=2 * MIB)
    for name in _WITH_STATES:
        yield Case(model=MODELS[name], setting=PREFIXES, memory_bytes=64 * MIB)
    for name in ("bamba", "qwen3-next"):
        yield Case(model=MODELS[name], setting=_block(32), memory_bytes=64 * MIB)
        yield Case(model=MODELS[name], setting=_block(256), memory_bytes=64 * MIB)
    for name in ("llama", "gemma3-10-4", "mistral-window", "gpt-oss", "bamba", "deepseek-v2"):
        yield Case(model=MODELS[name], setting=SERVED, memory_bytes=64 * MIB)
    for setting in (TP2, PP2):
        for name in ("llama", "gemma3-10-4"):
            yield Case(model=MODELS[name], setting=setting, memory_bytes=64 * MIB)
    yield from _odd_cases()


def _odd_cases() -> Iterator[Case]:
    for setting in ODD_BLOCKS:
        for name in ("llama", "gemma3-10-4", "granite4", "llama4"):
            yield Case(model=MODELS[name], setting=setting, memory_bytes=64 * MIB)
    for name in ("granite4", "falcon-h1", "nemotron-h", "mamba2"):
        yield Case(model=MODELS[name], setting=FLOAT32_STATES, memory_bytes=64 * MIB)
    for setting in (_block(32), FLOAT32, CROSS_BATCH):
        yield Case(model=MODELS["whisper"], setting=setting, memory_bytes=64 * MIB)
