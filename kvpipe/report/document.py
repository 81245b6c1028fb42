"""ReportInput -> the plan.json document: every fact of a run, as plain JSON values.

Documented key by key in docs/plan_schema.md. SCHEMA_VERSION goes up by one when a key is removed,
renamed or given another meaning; keys may be added within a version. What is written folds what
repeats (report/folded.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any

from kvpipe.cache.load import of_a_copy
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec, LayerPages, Plan, RankPlan
from kvpipe.report.accounts import CAUSES, RankAccount
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.folded import SharedList
from kvpipe.report.run_input import ReportInput
from kvpipe.report.subslots import in_document
from kvpipe.report.verdict import running_at_once, verdict_of
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.profiling.base import RankMemory
from kvpipe.text.strict_json import plain_settings

SCHEMA = "kvpipe.plan"
SCHEMA_VERSION = 2


def plan_document(report: ReportInput) -> dict[str, Any]:
    """The whole document. All sizes are bytes, all lengths tokens; no value is NaN or infinite."""
    verdict = verdict_of(report)
    return {
        "status": verdict.status,
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "job": report.job,
        "verdict": verdict.short,
        "headline": plain(report.headline),
        "config": plain_settings(report.config),
        "plan": _plan(report.plan),
        "capacity": _capacity(report),
        "printed": [plain(line) for line in report.plan.printed],
        "log": plain(report.log),
        "serve": report.serve,
        "no_serve": report.no_serve,
        "memory": {
            "profiling": report.profile.plugin,
            "ranks": [_memory(rank) for rank in report.profile.ranks],
        },
        "bytes": {"causes": dict(CAUSES), "ranks": [_account(a) for a in report.accounts]},
        "verify": {**report.verify.to_json(), "passed": report.verify.passed},
        "notes": [plain(note) for note in all_notes(report)],
        "backend": dict(report.backend_facts),
        "address_map": report.address_map,
        "seconds": dict(report.timings),
    }


def _capacity(report: ReportInput) -> dict[str, Any] | None:
    cap, asked = report.plan.capacity, report.requests_asked
    if cap is None:
        return None
    told = {
        **plain(cap),
        "demands": tuple(map(plain, cap.demands)),  # one a group: a tuple is not folded
        "requests_running": cap.requests_running,
        "users": running_at_once(report),
        "copies": report.copies,
        "requests_asked": asked,
        "blocks_asked": cap.blocks_of(of_a_copy(asked, report.copies)),
    }
    if not cap.scratch_blocks:  # not asked for, or of no use
        del told["scratch_blocks"]
    return told


_LEAVES = frozenset({str, int, float, bool, type(None)})


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def plain(value: Any) -> Any:
    """Frozen dataclasses, mappings and tuples as JSON's own types."""
    kind: Any = type(value)
    if kind in _LEAVES:  # most of a document
        return value
    if names := _field_names(kind):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "engine": plan.engine,
        "max_model_len": plan.limits.max_model_len,
        "requested_max_model_len": plan.requested_len,
        "limits": plain(plan.limits),
        "num_blocks": plan.num_blocks,
        "ranks": [_rank(rank) for rank in plan.ranks],
        "shared_layers": [
            {"layer": layer, "shares_with": target} for layer, target in plan.shared_layers
        ],
        "padding": [plain(padding) for padding in plan.padding],
        "slots": _slots(plan),
    }


def _slots(plan: Plan) -> dict[str, Any] | None:
    """What is known of groups in equal slots; None where a block is no slot."""
    if plan.slots is None:
        return None
    facts: dict[str, Any] = plain(plan.slots)
    facts["compared"] = [
        {"engine": engine, "num_tables": tables, "steady_bytes": num_bytes}
        for engine, tables, num_bytes in plan.slots.compared
    ]
    return {"slot_bytes": plan.ranks[0].config.bytes_per_block, **facts}


def _rank(rank: RankPlan) -> dict[str, Any]:
    config = rank.config
    whole = _of_config(config)
    return {
        "num_blocks": config.num_blocks,
        "bytes_per_block": config.bytes_per_block,
        "size_bytes": config.size_bytes,
        "available_bytes": rank.available_bytes,
        "required_bytes": rank.required_bytes,
        "stranded_bytes": rank.stranded_bytes,
        "printed": plain(rank.printed),
        **({"scratch": _scratch(config)} if config.scratch else {}),
        "groups": whole["groups"],
        "tensors": whole["tensors"],
    }


@lru_cache(maxsize=32)  # jobs of a sweep often share a cache, and change what uses it
def _of_config(config: KVCacheConfig) -> Mapping[str, Any]:
    """For reading."""
    return {
        "groups": SharedList(_group(group, config) for group in config.groups),
        "tensors": SharedList(
            {"size_bytes": tensor.size_bytes, "pages": [_page(page) for page in tensor.pages]}
            for tensor in config.tensors
        ),
    }


def _page(page: LayerPages) -> dict[str, Any]:
    return {name: getattr(page, name) for name in _field_names(LayerPages)}


def _scratch(config: KVCacheConfig) -> list[dict[str, int]]:
    """Of the groups whose chunks lie in scratch."""
    return [
        {
            "group": group,
            "pages_per_slot": each.pages_per_slot,
            "pitch_bytes": each.pitch_units * each.unit_bytes,
            "unit_bytes": each.unit_bytes,
        }
        for group, each in enumerate(config.scratch)
        if each is not None
    ]


def _group(group: KVCacheGroupSpec, config: KVCacheConfig) -> dict[str, Any]:
    """bytes_per_block: what the group's layers use of a block; the rest of it is padding."""
    specs = [group.layer_spec(name) for name in group.layer_names]
    pages = sum(spec.page_size_bytes for spec in specs)
    told = {spec: spec_document(spec) for spec in dict.fromkeys(specs)}
    return {
        "kind": group.spec.kind,
        "block_size": group.spec.block_size,
        "bytes_per_block": pages,
        "real_bytes_per_block": sum(spec.real_page_size_bytes for spec in specs),
        "padding_bytes_per_block": config.bytes_per_block - pages,
        **in_document(group),
        "layers": [
            {"layer": name, "spec": told[spec]}
            for name, spec in zip(group.layer_names, specs, strict=True)
        ],
    }


def spec_document(spec: KVCacheSpec) -> dict[str, Any]:
    """What every kind of spec answers, and under `fields` what only this kind has."""
    return {
        "kind": spec.kind,
        "block_size": spec.block_size,
        "page_size_bytes": spec.page_size_bytes,
        "real_page_size_bytes": spec.real_page_size_bytes,
        "page_size_padded": spec.page_size_padded,
        "arrays": [plain(array) for array in spec.page_arrays()],
        "fields": {name: plain(value) for name, value in spec.own_fields().items()},
    }


def _memory(rank: RankMemory) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "total": plain(rank.total),
        "requested": plain(rank.requested),
        "charged": [plain(item) for item in rank.charged],
        "available_kv": plain(rank.available_kv),
    }


def _account(account: RankAccount) -> dict[str, Any]:
    return {
        "rank": account.rank,
        "total_bytes": account.total_bytes,
        "overcommitted_bytes": account.overcommitted_bytes,
        "requests_peak": account.requests_peak,
        "requests_steady": account.requests_steady,
        "peak": dict(account.peak),
        "steady": dict(account.steady),
    }
