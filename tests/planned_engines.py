"""Engines that are planned only, asked with layers made here: for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import Card, PlannedEngine, Question, RankQuestion
from kvpipe.models.base import ModelGeometry
from kvpipe.plugins import REGISTRIES
from kvpipe.request.confdir import CONF_DIR
from kvpipe.specs.base import CacheLayer, KVCacheSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec

GIB, MIB = 2**30, 2**20
NAMES = ("sglang", "llama_cpp", "transformers", "tensorrt_llm")


def engine(name: str, **options: Any) -> PlannedEngine:
    """As its YAML sets it up, with some options changed."""
    plugin = REGISTRIES["engine"].get(name)
    shipped = yaml.safe_load((CONF_DIR / "engine" / f"{name}.yaml").read_text(encoding="utf-8"))
    return plugin(plugin.Options(**shipped | options))


def full(heads: int, width: int, dtype: str = "bfloat16") -> KVCacheSpec:
    return FullAttentionSpec(block_size=1, num_kv_heads=heads, head_size=width, dtype=dtype)


def window(size: int, heads: int, width: int, dtype: str = "bfloat16") -> KVCacheSpec:
    return SlidingWindowSpec(
        block_size=1, num_kv_heads=heads, head_size=width, dtype=dtype, sliding_window=size
    )


def latent(row_bytes: int) -> KVCacheSpec:
    return MLAAttentionSpec(block_size=1, head_size=row_bytes, dtype="uint8")


def state(conv: tuple[int, ...], ssm: tuple[int, ...], dtype: str = "float32") -> KVCacheSpec:
    arrays = (
        StateArray(name="conv", shape=conv, dtype="bfloat16"),
        StateArray(name="ssm", shape=ssm, dtype=dtype),
    )
    return MambaSpec(block_size=1, states=arrays)


def layers(*kinds: tuple[int, KVCacheSpec]) -> tuple[CacheLayer, ...]:
    specs = [spec for count, spec in kinds for _ in range(count)]
    return tuple(CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs))


def question(stored: Sequence[CacheLayer], budget: int | None = None, **more: Any) -> Question:
    model = ModelGeometry(
        name="test/model",
        file_dtype="bfloat16",
        context_length=131072,
        num_layers=len(stored),
        caches=(),
        ssm_dtype=more.pop("ssm_dtype", None),
        **more.pop("model", {}),
    )
    card = more.pop("card", Card(name="card", type="cuda", total_bytes=80 * GIB))
    weights = more.pop("weight_bytes", 0)
    return Question(
        model=model,
        served_dtype="bfloat16",
        cache_dtype="bfloat16",
        ranks=(RankQuestion(layers=tuple(stored), weight_bytes=weights),),
        card=card,
        length=more.pop("length", 8192),
        cache_bytes=budget,
        **more,
    )


def planned(name: str, stored: Sequence[CacheLayer], budget: int, **options: Any) -> EnginePlan:
    """Of a budget set by hand."""
    return plan_engine(engine(name, **options), question(stored, budget))
