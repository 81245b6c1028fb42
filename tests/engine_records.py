"""Public engine logs as records, and every reading of what a record leaves open.

Inputs are what the record prints and its `assumed`. A setting that neither gives is not chosen: all
values that the engine knows are tried.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from kvpipe.engines.defaults import defaults_of
from kvpipe.engines.versions import DISTINCT, parse_version
from kvpipe.text.figures import GIB

CASES = Path(__file__).parent / "cases" / "engine_logs.json.gz"


@cache
def cases() -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in json.loads(gzip.decompress(CASES.read_bytes()))}


def given(case: Mapping[str, Any], name: str) -> Any:
    """What the record prints, else what it says was assumed."""
    printed = case.get(name)
    return printed if printed is not None else (case["assumed"] or {}).get(name)


def geometry(case: Mapping[str, Any]) -> dict[str, Any]:
    return case["geometry"] or case["geometry_inferred"] or {}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """version: whose rules. The rest: values of settings that the record leaves open."""

    version: str
    kv_dtype: str
    batched_tokens: int = 2048
    ssm_dtype: str = "bfloat16"
    mamba_mode: str = "none"
    draft_tokens: int = 0

    def __str__(self) -> str:
        parts = [f"vLLM {self.version}", f"cache {self.kv_dtype}"]
        parts += [f"{self.batched_tokens} batched tokens", f"states {self.ssm_dtype}"]
        return ", ".join([*parts, f"mode {self.mamba_mode}", f"{self.draft_tokens} draft tokens"])


def readings(case: Mapping[str, Any]) -> list[Reading]:
    """Every reading that the record allows; equal ones once."""
    shape = geometry(case)
    return list(
        dict.fromkeys(
            Reading(
                version=version,
                kv_dtype=dtype,
                batched_tokens=tokens,
                ssm_dtype=ssm,
                mamba_mode=mode,
                draft_tokens=drafted,
            )
            for version in versions(case)
            for dtype, tokens, ssm, mode, drafted in product(
                kv_dtypes(case),
                budgets(case, version) if has_windows(shape) else (2048,),
                ("bfloat16", "float32") if has_states(shape, "kda_layers") else ("bfloat16",),
                modes(case, version) if has_states(shape) else ("none",),
                drafts(case),
            )
        )
    )


def has_windows(shape: Mapping[str, Any]) -> bool:
    return bool({"sliding_window", "chunked_local"} & shape.keys())


def has_states(shape: Mapping[str, Any], without: str = "") -> bool:
    kinds = {"gdn_layers", "kda_layers", "mamba2_layers"} - {without}
    return bool(kinds & shape.keys())


def drafts(case: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens drafted a step: printed, or from 1 to 3 where a draft layer is there."""
    printed = (case["extra"] or {}).get("mtp_tokens")
    if printed is not None:
        return (printed,)
    return (1, 2, 3) if geometry(case).get("mtp_layers") else (0,)


def versions(case: Mapping[str, Any]) -> list[str]:
    """The release that the record names, or one of each set of rules."""
    named = case["engine_version"]
    if named:
        return [".".join(map(str, parse_version(named.split(" ")[0])))]
    if "V0" in case["engine"]:
        return [version for version in DISTINCT if parse_version(version) < (0, 9, 0)]
    return list(DISTINCT)


def budgets(case: Mapping[str, Any], version: str) -> list[int]:
    """The batch budget that the record prints, or the defaults on cards like this one."""
    printed = (case["extra"] or {}).get("max_num_batched_tokens")
    if printed:
        return [printed]
    total = case["total_gpu_gib"]
    sizes = [total] if total else [40, 80]
    return sorted(
        {
            defaults_of(
                version,
                device_bytes=int(size * GIB),
                usage=usage,
                max_model_len=case["max_model_len"],
            ).max_num_batched_tokens
            for size in sizes
            for usage in ("server", "llm")
        }
    )


def modes(case: Mapping[str, Any], version: str) -> list[str]:
    """Prefix caching decides whether states are kept at block boundaries."""
    caching = (case["extra"] or {}).get("prefix_caching")
    if caching is False or parse_version(version) < (0, 13, 0):
        return ["none"]
    return ["none", "align"]


def kv_dtypes(case: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the cache: printed or assumed, else 16 bits (the default) or fp8."""
    word = given(case, "kv_dtype")
    if word is None:
        return ("bfloat16", "fp8_e4m3")
    return ("fp8_e4m3",) if str(word).startswith("fp8") else ("bfloat16",)
