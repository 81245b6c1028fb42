"""vLLM by version: one table, rule -> value -> range of releases -> source.

`rules_of("0.21.0")` picks one row a rule. A row holds from `since` (None: as far back as kvpipe
knows) up to, not including, `until` (None: still). Where the release that changed a rule is not
known, the row says between which releases it lies, and `certain` is False.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from kvpipe.engines.base import EngineRules
from kvpipe.specs.stores import Stores

Version = tuple[int, int, int]
# Planning was read and checked in these: in two case by case, in 0.32.0 by starting it.
READ: tuple[Version, ...] = ((0, 17, 0), (0, 32, 0), (0, 33, 0))
NEWEST: Version = READ[-1]
OLDEST: Version = (0, 6, 0)  # oldest release of which anything was seen: a log, an issue
_PATTERN = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?:[.+-]?[a-z].{0,80})?")


def parse_version(text: str) -> Version:
    """(0, 28, 1) of "0.28.1" or "0.28.1rc1.dev452"; ValueError otherwise."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError("a release in three parts, such as 0.21.0")
    return (int(match[1]), int(match[2]), int(match[3]))


def written(release: Version) -> str:
    """ "0.28.1" of (0, 28, 1)."""
    return ".".join(map(str, release))


@dataclass(frozen=True, kw_only=True)
class Row:
    """rule: a field of EngineRules or of EngineDefaults."""

    rule: str
    value: Any
    since: Version | None = None
    until: Version | None = None
    source: str
    certain: bool = True

    def holds(self, version: Version) -> bool:
        return (self.since or version) <= version < (self.until or (*version[:2], version[2] + 1))


_READ = "vLLM 0.17.0 and 0.33.0, checked case by case against their own plans"

# A layer that keeps every token takes the first one's sizes where these differ.
_FULL_0_17 = frozenset({"kind", "sink_len", "head_size_v"})
# Latent caches are told apart by their cache dtype alone.
_MLA_0_17 = frozenset(
    {
        "block_size",
        "page_size_padded",
        "num_kv_heads",
        "head_size",
        "head_size_v",
        "dtype",
        "state_content_bytes",
        "tokens_per_state",
        "dcp_sharded",
        "alignment",
    }
)
_FULL = Stores(every_token=True)  # with or without sinks
_MLA = Stores(latent=True, every_token=True)
_MLA_WINDOW = Stores(latent=True)
_MERGE_0_17: Mapping[Stores, frozenset[str]] = MappingProxyType(
    {_FULL: _FULL_0_17, _MLA: _MLA_0_17}
)
_MERGE_0_27: Mapping[Stores, frozenset[str]] = MappingProxyType(
    {_FULL: _FULL_0_17, _MLA: frozenset({"alignment", "head_size_v"})}
)
_FULL_0_33 = frozenset({"kind", "sink_len"})
_MERGE_0_33: Mapping[Stores, frozenset[str]] = MappingProxyType(
    {
        _FULL: _FULL_0_33,
        _MLA: frozenset({"alignment"}),
        _MLA_WINDOW: _MLA_0_17 - {"tokens_per_state", "dcp_sharded"},
    }
)


def _changed(
    rule: str, before: Any, after: Any, at: Version, source: str, *, certain: bool
) -> tuple[Row, Row]:
    """A rule that changed once."""
    return (
        Row(rule=rule, value=before, until=at, source=source, certain=certain),
        Row(rule=rule, value=after, since=at, source=source, certain=certain),
    )


RULES: tuple[Row, ...] = (
    *_changed(
        "groups_by_type",
        False,
        True,
        (0, 9, 1),
        "issue 16118 (0.8) charges windows and chunks in full; groups by type date from June 2025",
        certain=False,
    ),
    *_changed(
        "printed",
        "group_share",
        "by_concurrency",
        (0, 21, 0),
        "issue 43308: the same memory, 55 thousand tokens in 0.20.0, 525 thousand in 0.21.0",
        certain=True,
    ),
    Row(
        rule="padding_threshold",
        value=1.0,
        until=(0, 12, 0),
        source="pull request 29303 of November 2025 (19 + 18 layers padded by 17 before it)",
        certain=False,
    ),
    Row(
        rule="padding_threshold",
        value=1.25,
        since=(0, 12, 0),
        until=(0, 18, 0),
        source="pull request 29303; 1.25 in 0.17.0, 1.5 in 0.18.0",
        certain=False,
    ),
    Row(
        rule="padding_threshold",
        value=1.5,
        since=(0, 18, 0),
        source="1.25 in 0.17.0, 1.5 in 0.18.0",
    ),
    *_changed(
        "watermark",
        0.01,
        0.0,
        (0, 8, 0),
        "the block manager of the V0 engine kept 1% free; V1 is the default from 0.8.0",
        certain=False,
    ),
    *_changed(
        "tokens_in_flight",
        "one_batch",
        "all_batches",
        (0, 26, 0),
        "0.25.0 counts one batch for a window's bound, 0.26.0 every batch in flight; log X19 "
        "(0.25.1) counts one",
        certain=True,
    ),
    *_changed(
        "admission",
        "first_group",
        "every_group",
        (0, 19, 0),
        "0.18.0 counts the first group, 0.19.0 the sum of all",
        certain=True,
    ),
    *_changed(
        "reserves_null_block",
        False,
        True,
        (0, 29, 0),
        "all memory in 0.28.0, less a block in 0.29.0; read in both, 0.32.0 started",
        certain=True,
    ),
    *_changed(
        "cuda_block_sizes",
        (1, 2, 4, 8, 16, 32),
        (),
        (0, 20, 0),
        "a fixed list in 0.17.0; by attention backend from 0.20.0",
        certain=True,
    ),
    *_changed(
        "mamba_mode_all",
        "every_boundary",
        "as_none",
        (0, 32, 0),
        "mode all is in 0.31.0 and gone in 0.32.0",
        certain=True,
    ),
    *_changed(
        "mamba2_checkpoint_blocks",
        0,
        1,
        (0, 32, 0),
        "no such state in the Mamba-2 layer of 0.31.0, one in that of 0.32.0 (granite4, falcon-h1 "
        "and nemotron-h were started)",
        certain=True,
    ),
    *_changed(
        "encoder_only",
        "first_refused",
        "refused",
        (0, 23, 0),
        "0.22.0 fails where it tells layers' types apart, 0.23.0 looks for a manager of each first",
        certain=True,
    ),
    *_changed(
        "prefill_context_parallel",
        True,
        False,
        (0, 26, 0),
        "in the bound of 0.25.0, not in that of 0.26.0",
        certain=True,
    ),
    Row(rule="holes", value="refused", source="no release that was read has such a cache"),
    Row(rule="merge_ignores", value=_MERGE_0_17, until=(0, 27, 0), source=_READ),
    Row(
        rule="merge_ignores",
        value=_MERGE_0_27,
        since=(0, 27, 0),
        until=(0, 28, 0),
        source="latent layers are compared in 0.27.0 and not in 0.26.0",
    ),
    Row(
        rule="merge_ignores",
        value=_MERGE_0_33,
        since=(0, 28, 0),
        source="the width of V is a field of every attention layer in 0.28.0, not in 0.27.0",
    ),
    *_changed(
        "bucket_by",
        "equal",
        "merge",
        (0, 27, 0),
        "equal specs in 0.26.0, specs that merge in 0.27.0",
        certain=True,
    ),
    *_changed(
        "states_of_one_type",
        "any_page",
        "equal_pages",
        (0, 29, 0),
        "0.28.0 compares drafted states only, 0.29.0 pages too",
        certain=True,
    ),
    *_changed(
        "promotion_takes_block_size",
        False,
        True,
        (0, 27, 0),
        "a layer's own block in 0.26.0, the full layers' in 0.27.0",
        certain=True,
    ),
    *_changed(
        "unify_pages",
        "refuse",
        "pad_states",
        (0, 26, 0),
        "states are padded in 0.26.0, not in 0.25.0; attention pages that do not divide are padded "
        "in 0.24.0 to 0.28.0 only where the backend keeps blocks outermost, and always from 0.29.0",
        certain=False,
    ),
    *_changed(
        "unpaddable",
        frozenset(),
        frozenset({_MLA}),
        (0, 27, 0),
        "what happens instead (windows promoted) is in 0.27.0 and not in 0.26.0",
        certain=True,
    ),
    *_changed(
        "compressed_rows",
        False,
        True,
        (0, 33, 0),
        "0.33.0's own planner gave the same plans; those of 0.29.0 to 0.32.0 were not run for it",
        certain=False,
    ),
    *_changed(
        "packed_groups",
        False,
        True,
        (0, 29, 0),
        "one model's alone in 0.28.0, any layout with blocks outermost in 0.29.0",
        certain=True,
    ),
    *_changed(
        "state_alignment",
        "layout",
        "set_block_size",
        (0, 20, 0),
        "the set block size counts in 0.20.0; in 0.18.0 and 0.19.0 it was not looked at",
        certain=False,
    ),
    *_changed(
        "pool",
        "tensors",
        "one_allocation",
        (0, 29, 0),
        "tensors in 0.28.0, one allocation in 0.29.0; read in both, 0.32.0 started",
        certain=True,
    ),
    *_changed(
        "override",
        "count",
        "memory",
        (0, 21, 0),
        "0.20.0 checks the profiled memory, 0.21.0 what the blocks take",
        certain=True,
    ),
    Row(rule="layers_per_group", value=None, source="every release decides it by its buckets"),
    Row(rule="empty_rank", value="refused", source=_READ),
    Row(rule="window_conflict", value="refused", source=_READ),
    Row(rule="request_bound", value="max_blocks", source=_READ),
)

# Where two neighbouring sets of rules differ: one release of each set.
DISTINCT: tuple[str, ...] = (
    *("0.7.0", "0.8.0", "0.11.0", "0.12.0", "0.17.0", "0.18.0", "0.19.0", "0.20.0", "0.21.0"),
    *("0.23.0", "0.26.0", "0.27.0", "0.28.0", "0.29.0", "0.33.0"),
)


@lru_cache(maxsize=256)  # a search asks for one release thousands of times
def rules_of(version: str, name: str | None = None) -> EngineRules:
    """The rules of a vLLM release. A release newer than NEWEST gets the newest rows."""
    parsed = min(parse_version(version), (*NEWEST[:2], 10**6))
    chosen = {row.rule: row.value for row in RULES if row.holds(parsed)}
    name = name or f"vllm {version}"
    return EngineRules(
        name=name, source=_source(version), version=version, unread=_unread(version), **chosen
    )


def _unread(version: str) -> str:
    """What to know about a release outside of those that were read; "" for the others."""
    asked = parse_version(version)
    if asked[:2] > NEWEST[:2]:
        return f"newer than any that was read: it is planned as {written(NEWEST)}"
    if asked < OLDEST:
        oldest = written(OLDEST)
        return f"older than any that was read: it is planned as {oldest}, by the oldest rules known"
    return ""


def standing(version: str) -> str:
    """How far a release's rules can be trusted, in words; "" where it was read itself."""
    parsed = parse_version(version)
    if parsed in READ:
        return ""
    if parsed[:2] > NEWEST[:2]:
        return _source(version)
    uncertain = sum(not row.certain for row in RULES if row.holds(parsed))
    return (
        f"vLLM {version} is planned by a table of what changed between releases; for {uncertain} "
        "of its rules the release that changed them is not known (docs/accuracy.md)"
    )


def _source(version: str) -> str:
    if parse_version(version)[:2] > NEWEST[:2]:
        return f"vLLM {version}, planned as {written(NEWEST)}, the newest release that was read"
    return f"vLLM {version}"
