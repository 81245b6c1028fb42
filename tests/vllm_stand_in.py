"""As much of vLLM's planner as its plug-in touches, in a page: full and window layers, equal pages.

Written from what the planner does (docs/live.md has the real one beside it), so that the plug-in's
refusals can be tested where vLLM is not installed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from kvpipe.integrations.vllm.hook import CORE, PLANNER


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 2
    head_size: int = 32
    head_size_v: int = 32
    dtype: str = "torch.float32"
    page_size_padded: int | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    kv_quant_mode: int = 0
    non_causal: bool = False

    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * (self.head_size + self.head_size_v) * 4

    def blocks(self, config: Any) -> int:
        return -(-config.model_config.max_model_len // self.block_size)


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec:
    sliding_window: int
    block_size: int = 16
    num_kv_heads: int = 2
    head_size: int = 32
    head_size_v: int = 32
    dtype: str = "torch.float32"
    page_size_padded: int | None = None
    extra_retained_tokens: int = 0

    page_size_bytes = FullAttentionSpec.page_size_bytes

    def blocks(self, config: Any) -> int:
        in_flight = config.scheduler_config.max_num_batched_tokens
        held = min(self.sliding_window - 1 + in_flight, config.model_config.max_model_len)
        return -(-held // self.block_size) + 1


@dataclass(frozen=True, kw_only=True)
class NewSpec(FullAttentionSpec):
    """Of a release that kvpipe does not know."""


@dataclass
class Group:
    layer_names: list[str]
    kv_cache_spec: Any
    is_eagle_group: bool = False


@dataclass
class Configs:
    num_blocks: int
    kv_cache_groups: list[Group] = field(default_factory=list)


def config(asked: Any = None, length: int = 256, batch: int = 64) -> SimpleNamespace:
    """A VllmConfig. asked: of additional_config."""
    return SimpleNamespace(
        additional_config={} if asked is None else {"kvpipe": asked},
        model_config=SimpleNamespace(max_model_len=length, original_max_model_len=length),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=batch, disable_hybrid_kv_cache_manager=False
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None, mamba_cache_mode="none"),
    )


def layers(full: int, window: int) -> dict[str, Any]:
    """One worker's specs: window layers first, in one stack."""
    kinds = [SlidingWindowSpec(sliding_window=32)] * window + [FullAttentionSpec()] * full
    return {f"model.layers.{i}.self_attn.attn": spec for i, spec in enumerate(kinds)}


def planner() -> ModuleType:
    """A module with the names that the plug-in looks up."""
    module = ModuleType(PLANNER)

    def create_kv_cache_group_specs(specs: dict[str, Any], names: list[list[str]]) -> list[Group]:
        return [Group(list(mine), specs[mine[0]]) for mine in names]

    def get_kv_cache_groups(vllm_config: Any, specs: dict[str, Any]) -> list[Group]:
        alike: dict[Any, list[str]] = defaultdict(list)
        for name, spec in specs.items():
            alike[spec].append(name)
        counts = [len(names) for names in alike.values()]
        size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
        parts = [
            names[i :: -(-len(names) // size)]
            for names in alike.values()
            for i in range(-(-len(names) // size))
        ]
        return create_kv_cache_group_specs(specs, parts)

    def get_kv_cache_configs(
        vllm_config: Any, kv_cache_specs: list[dict[str, Any]], available_memory: list[int]
    ) -> list[Configs]:
        groups = module.get_kv_cache_groups(vllm_config, dict(kv_cache_specs[0]))
        width = max(len(group.layer_names) for group in groups)
        block = groups[0].kv_cache_spec.page_size_bytes * width
        needed = block * sum(group.kv_cache_spec.blocks(vllm_config) for group in groups)
        if needed > available_memory[0] - block:
            raise ValueError("larger than the available KV cache memory")
        return [Configs(available_memory[0] // block, groups)]

    def get_kv_cache_capacity(vllm_config: Any, planned: Configs) -> tuple[int, float]:
        needed = sum(group.kv_cache_spec.blocks(vllm_config) for group in planned.kv_cache_groups)
        share = planned.num_blocks / needed
        return int(share * vllm_config.model_config.max_model_len), share

    def generate_scheduler_kv_cache_config(configs: list[Configs]) -> Configs:
        return configs[0]

    def unify_kv_cache_spec_page_size(specs: dict[str, Any]) -> dict[str, Any]:
        return specs

    for function in (
        create_kv_cache_group_specs,
        get_kv_cache_groups,
        get_kv_cache_configs,
        get_kv_cache_capacity,
        generate_scheduler_kv_cache_config,
        unify_kv_cache_spec_page_size,
    ):
        function.__module__ = PLANNER
        setattr(module, function.__name__, function)
    return module


def core_of(module: ModuleType) -> ModuleType:
    """The engine's core, which holds the planner's function by name."""
    core = ModuleType(CORE)
    core.get_kv_cache_configs = module.get_kv_cache_configs  # type: ignore[attr-defined]
    return core
