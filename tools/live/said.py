"""What kvpipe says about a case, in the words the probes answer in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kvpipe
from kvpipe.answers.serve_line import line_of
from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.engines.base import EngineRules
from kvpipe.engines.versions import parse_version
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Result
from tools.live.cases import Case

Json = dict[str, Any]


def overrides_of(
    case: Case, folder: Path, draft: Path | None, version: str, memory_bytes: int
) -> list[str]:
    """The command line: the engine's own choices for everything that the case does not set."""
    drafted = case.model.engine.get("speculative_config", {}).get("num_speculative_tokens", 0)
    return [
        "model=hf",
        f"model.path={folder}",
        "device=cpu",
        "backend=meta",
        "engine=vllm",
        f"engine.version={version}",
        "scheduler=engine",
        f"cache.kv_cache_memory_bytes={memory_bytes}",
        *([f"scheduler.num_speculative_tokens={drafted}"] if drafted else []),
        *([f"model.draft={draft}"] if draft else []),
        *_states_kept(case, version),
        *case.overrides,
    ]


def _states_kept(case: Case, version: str) -> list[str]:
    """From 0.26 on the engine caches prefixes of hybrids unless told otherwise: states at block
    boundaries are kept. kvpipe plans none unless asked."""
    words = ("hybrid", "beside attention", "convolution")
    is_hybrid = any(word in case.model.kind for word in words)
    keeps = is_hybrid and parse_version(version) >= (0, 26, 0)
    return ["cache.mamba_cache_mode=align"] if keeps else []


def said(
    case: Case, folder: Path, draft: Path | None, version: str, memories: Sequence[int]
) -> Json:
    """The plan, or the refusal. draft: the folder of the case's draft model. memories: further
    ones, as the engine was asked about them."""
    found = _planned(overrides_of(case, folder, draft, version, case.memory_bytes))
    if isinstance(found, str):
        return {"started": False, "error": found, "others": []}
    others = [_other(found, memory) for memory in memories]
    return {**_of(found), "others": others, "serve": line_of(found)}


def _planned(overrides: Sequence[str]) -> Result | str:
    try:
        return kvpipe.run(overrides)
    except KvpipeError as error:
        return error.lines()[0]


def _other(result: Result, memory_bytes: int) -> Json:
    """The plan of the same run with other memory."""
    config, resolved = result.prepared.config, result.prepared.resolved
    try:
        made = kvpipe.plan(
            [rank.layers for rank in resolved.ranks],
            resolved.limits,
            memory_bytes,
            rules=config.plugins["engine"].make(EngineRules),
            fit=resolved.fit,
            disable_hybrid_kv_cache_manager=config.cache.disable_hybrid_kv_cache_manager,
            compared=(),
        )
    except KvpipeError as error:
        return {"memory": memory_bytes, "started": False, "error": error.lines()[0]}
    line = made.printed[0]
    return {
        "memory": memory_bytes,
        "started": True,
        "max_model_len": made.limits.max_model_len,
        "num_blocks": made.num_blocks,
        "printed": {"tokens": line.num_tokens, "concurrency": line.max_concurrency},
    }


def _of(result: Result) -> Json:
    plan, rank = result.plan, result.plan.ranks[0]
    line = plan.printed[0]
    return {
        "started": True,
        "max_model_len": plan.limits.max_model_len,
        "max_num_batched_tokens": plan.limits.max_num_batched_tokens,
        "num_blocks": plan.num_blocks,
        "groups": [
            {"layers": list(group.layer_names), **_spec(group)} for group in rank.config.groups
        ],
        "pages": [
            [page.layer, tensor.size_bytes, page.offset, page.block_stride]
            for tensor in rank.config.tensors
            for page in tensor.pages
        ],
        "printed": {"tokens": line.num_tokens, "concurrency": line.max_concurrency},
    }


def _spec(group: KVCacheGroupSpec) -> Json:
    """Of the group's first layer: what the engine's scheduler plans with."""
    names = group.layer_names
    spec = group.layer_spec(names[0]) if names else group.spec
    return {"kind": spec.kind, "block_size": spec.block_size, "page_size": spec.page_size_bytes}
