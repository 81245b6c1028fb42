"""plan.json's document -> the few figures of a run that stand in a sweep's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpipe.report.accounts import KV_CAUSES

WASTE = (
    "block_tails",
    "window_alignment",
    "head_replication",
    "padding_layers",
    "page_padding",
    "null_block",
    "unused_richer_rank",
    "out_of_reach",
)
FIELDS = (
    "fits",
    "num_blocks",
    "max_model_len",
    "requests_at_peak",
    "requests_steady",
    "longest_request",
    "peak_bytes",
    "steady_bytes",
    "kv_bytes",
    "waste_percent",
    "printed",
    "mismatches",
)


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """FIELDS of one finished job.

    requests_at_peak, requests_steady: on all copies (data parallelism). kv_bytes: of rank 0.
    waste_percent: of the bytes given to its cache, in steady state, those that no request and no
    further request can use. printed: engine -> the tokens it would print.
    """
    plan, capacity = document["plan"], document["capacity"] or {}
    copies = capacity.get("copies", 1)
    held = {name: capacity.get(name) for name in ("requests_at_peak", "requests_steady")}
    names = ("longest_request", "peak_bytes", "steady_bytes")
    return {
        "fits": document["status"] != "does_not_fit",
        "num_blocks": plan["num_blocks"],
        "max_model_len": plan["max_model_len"],
        **{name: None if number is None else copies * number for name, number in held.items()},
        **{name: capacity.get(name) for name in names},
        "kv_bytes": plan["ranks"][0]["size_bytes"],
        "waste_percent": _waste_percent(document["bytes"]["ranks"][0]["steady"]),
        "printed": {line["engine"]: line["num_tokens"] for line in document["printed"]},
        "mismatches": document["verify"]["mismatches"],
    }


def _waste_percent(split: Mapping[str, int]) -> float:
    cache = sum(split[cause] for cause in KV_CAUSES)
    return round(100 * sum(split[cause] for cause in WASTE) / cache, 2) if cache else 0.0
