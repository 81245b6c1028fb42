"""A golden case -> kvpipe's objects, and kvpipe's answer in the golden schema.

Written against the schema, not against the planner: it only renames.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import groupby
from typing import Any

from kvpipe.cache.plan import KVCacheGroupSpec, Plan, RankPlan
from kvpipe.errors import ConfigError, DoesNotFit, SpecError
from kvpipe.plugins import REGISTRIES, SPECS
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.bounds import Bound
from kvpipe.specs.mamba import StateArray
from kvpipe.stages.grouping.planning import plan

ENGINES = {"vllm-0.17": "vllm_0_17", "vllm-0.33": "vllm_0_33"}
RENAMED = {"cache_dtype_str": "cache_dtype"}
NOT_FIELDS = {"name", "kind", "shapes", "dtypes"}


def spec_of(layer: dict[str, Any]) -> KVCacheSpec:
    fields = {RENAMED.get(k, k): v for k, v in layer.items() if k not in NOT_FIELDS}
    if layer["kind"] == "mamba":
        fields["states"] = tuple(
            StateArray(name=f"state{i}", shape=tuple(shape), dtype=dtype)
            for i, (shape, dtype) in enumerate(zip(layer["shapes"], layer["dtypes"], strict=True))
        )
    kind = SPECS.get(layer["kind"])
    sizes = {field.name for field in dataclasses.fields(Bound)} & fields.keys()
    if kind.keeps_every_token and sizes:  # a promoted layer: it remembers, and frees nothing
        fields["remembers"] = Bound(**{name: fields.pop(name) for name in sizes})
    spec: KVCacheSpec = kind(**fields)
    return spec


def limits_of(case: dict[str, Any]) -> RequestLimits:
    return RequestLimits(
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
        max_encoder_tokens=case["max_num_encoder_input_tokens"],
        max_concurrent_batches=case.get("max_concurrent_batches", 1),
        num_lookahead_tokens=case.get("num_prefill_lookahead_tokens", 0),
        dcp=case["decode_context_parallel_size"],
        pcp=case.get("prefill_context_parallel_size", 1),
        mamba_cache_mode=case["mamba_cache_mode"],
    )


def planned(case: dict[str, Any]) -> Plan:
    ranks = case["workers"] if "workers" in case else [case["layers"]]
    layers = [[CacheLayer(name=x["name"], spec=spec_of(x)) for x in rank] for rank in ranks]
    return plan(
        layers,
        limits_of(case),
        case["available_memory"],
        rules=REGISTRIES["engine"].get(ENGINES[case["engine"]]),
        fit=case.get("auto_fit_max_model_len", False),
        disable_hybrid_kv_cache_manager=case["disable_hybrid_kv_cache_manager"],
        num_gpu_blocks_override=case["num_gpu_blocks_override"],
        kv_cache_layout=case.get("kv_cache_layout"),
        compared=(),
    )


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """kvpipe's answer to a plan case."""
    newer = case["engine"] == "vllm-0.33"
    try:
        result = planned(case)
    except SpecError:
        return {"error": {"type": "AssertionError", "stage": _stage_of_spec_error(case, newer)}}
    except ConfigError as error:
        stage = error.stage if newer else "configs"  # 0.17 groups inside that step
        return {"error": {"type": error.reference_type, "stage": stage}}
    except DoesNotFit as error:
        found: dict[str, Any] = {"type": error.reference_type, "stage": error.stage}
        # The reference names the request's bytes; ours are those to give, the null block's too.
        parts = zip(error.needed_bytes, error.null_block_bytes, strict=True)
        found["required_bytes"] = [needed - null for needed, null in parts]
        if error.admitted_len is not None:
            found["estimated_max_model_len"] = error.admitted_len
        return {"error": found}
    return _whole(result, several="workers" in case, newer=newer)


def _stage_of_spec_error(case: dict[str, Any], newer: bool) -> str:
    """A spec checks itself when it is made. The reference finds a page that is padded too little
    when it first asks for it: while grouping, unless the layers are one group without asking."""
    unpadded = json.loads(json.dumps(case))
    for layer in [*unpadded.get("layers", []), *sum(unpadded.get("workers", []), [])]:
        layer.pop("page_size_padded", None)
    try:
        groups = planned(unpadded | {"auto_fit_max_model_len": True}).groups
    except (ConfigError, DoesNotFit):
        return "configs"
    return "groups" if newer and len(groups) > 1 else "configs"


def _whole(result: Plan, several: bool, newer: bool) -> dict[str, Any]:
    workers = [_rank(result, rank, newer) for rank in result.ranks]
    found: dict[str, Any] = {
        "max_model_len": result.limits.max_model_len,
        "num_blocks": result.num_blocks,
    }
    found |= {"workers": workers} if several else workers[0]
    if result.padding:
        found["padding"] = [[p.num_layers, p.percent] for p in result.padding]
    if newer and result.groups:
        line = result.printed[0]
        if line.num_tokens is None:
            zero = {"type": "ZeroDivisionError", "stage": "capacity"}
            found |= {"capacity_error": zero, "scheduler_error": zero}
        else:
            found["scheduler_num_tokens"] = line.num_tokens
            found["scheduler_max_concurrency"] = line.max_concurrency
    return found


def _rank(result: Plan, rank: RankPlan, newer: bool) -> dict[str, Any]:
    config = rank.config
    return {
        "num_blocks": config.num_blocks,
        "groups": [_group(group, result, newer) for group in config.groups],
        "tensors": _one_allocation(rank) if newer else _tensors(rank),
        "bytes_per_block": config.bytes_per_block,
        "required_bytes": rank.required_bytes,
        "num_tokens": rank.printed.num_tokens,
        "max_concurrency": rank.printed.max_concurrency,
    }


def _group(group: KVCacheGroupSpec, result: Plan, newer: bool) -> dict[str, Any]:
    spec = group.spec
    rules = REGISTRIES["engine"].get(result.engine)
    found: dict[str, Any] = {
        "layers": list(group.layer_names),
        "kind": spec.kind,
        "block_size": spec.block_size,
        "page_size_bytes": spec.page_size_bytes,
        "max_memory_usage_bytes": spec.max_memory_bytes(rules.limits(result.limits)),
    }
    if spec.kind == "uniform":
        specs = [spec.of_layer(name) for name in spec.stored_layers(group.layer_names)]
        found["layer_kinds"] = sorted({each.kind for each in specs})
        found["layer_page_size_bytes"] = [each.page_size_bytes for each in specs]
    found |= spec.bound.sizes if spec.bound else {}
    if spec.page_size_padded is not None:
        found["page_size_padded"] = spec.page_size_padded
    return found


def _tensors(rank: RankPlan) -> list[dict[str, Any]]:
    return [{"size": t.size_bytes, "shared_by": list(t.shared_by)} for t in rank.config.tensors]


def _one_allocation(rank: RankPlan) -> list[dict[str, Any]]:
    """Layers of one group that follow each other with the same strides, as one entry."""
    entries = []
    for tensor in rank.config.tensors:
        where = {page.layer: page for page in tensor.pages}
        for group in rank.config.groups:
            names = group.spec.stored_layers(group.layer_names)
            specs = list(dict.fromkeys(group.layer_spec(name) for name in names))
            pages = sorted(
                (where[name] for name in names),
                key=lambda page: specs.index(group.layer_spec(page.layer)),
            )
            runs = groupby(pages, key=lambda page: specs.index(group.layer_spec(page.layer)))
            for _, run in runs:
                run = list(run)
                first = run[0]
                assert all(
                    page.offset == first.offset + i * first.layer_stride
                    for i, page in enumerate(run)
                )
                entries.append(
                    {
                        "size": tensor.size_bytes,
                        "layers": [page.layer for page in run],
                        "layer_stride": first.layer_stride,
                        "block_stride": first.block_stride,
                        "offset": first.offset,
                    }
                )
    return entries


def spec_answer(case: dict[str, Any]) -> dict[str, Any]:
    """kvpipe's answer to a case of `specs`."""
    rules = REGISTRIES["engine"].get(ENGINES[case["engine"]])
    error = {"error": {"type": "AssertionError", "stage": "spec"}}
    try:
        spec = spec_of(case["layer"])
    except SpecError:
        return error
    real = spec.real_page_size_bytes
    if case["engine"] == "vllm-0.17" and spec.is_state:
        real = None  # that version has no such number for states
    found = {"page_size_bytes": spec.page_size_bytes, "real_page_size_bytes": real}
    try:
        most = spec.max_memory_bytes(rules.limits(limits_of(case)))
    except SpecError:
        return found | error
    return found | {"max_memory_usage_bytes": most}
