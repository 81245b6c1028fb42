"""Engine, and EngineRules: where engines differ in planning, as a set of named rules.

Two kinds of engine stand on `Engine`. `EngineRules` are decisions inside kvpipe's own stages:
kvpipe and every vLLM. A preset is one file that fills these in; rules never swap a stage. What a
kind of cache is and needs stays in `specs/`. A `PlannedEngine` (planned.py) has an arithmetic of
its own from memory to pools, which no rule describes: kvpipe plans it and owns no memory for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.specs.base import RequestLimits
from kvpipe.specs.stores import Stores


class Engine(ABC):
    """What a plugin of the section `engine` makes of its options."""

    @property
    @abstractmethod
    def rules(self) -> EngineRules:
        """How lengths, block sizes and dtypes of the request are read."""


@dataclass(frozen=True, kw_only=True)
class EngineRules(Engine):
    """source: what the rules were read from. Each field says what the engine does."""

    class Options(BaseModel):
        """An engine is chosen by name; its rules are not options."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    # Layouts of the one backing allocation, outermost axis first.
    LAYOUTS: ClassVar[tuple[str, ...]] = ("LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC")

    name: str
    source: str
    version: str = ""  # the release whose rules these are ("": no engine's release)
    unread: str = ""  # what a user should know where nobody has read that release ("": it was)

    # --- what it accepts ---------------------------------------------------------------------
    # Block sizes a user may set for attention layers on a CUDA device, in tokens; (): any that the
    # kernel block of the layout divides.
    cuda_block_sizes: tuple[int, ...] = ()
    # first_refused: it fails where an encoder-only layer comes first and pages differ in size.
    encoder_only: Literal["stored", "first_refused", "refused"] = "stored"
    # Layers that keep the first tokens and the last, and free those between.
    holes: Literal["stored", "refused"] = "stored"
    # A rank that stores nothing beside ranks that do.
    empty_rank: Literal["allowed", "refused"] = "allowed"

    # --- how it reads the limits of a request --------------------------------------------------
    prefill_context_parallel: bool = True  # False: the tokens are spread over dcp ranks only
    tokens_in_flight: Literal["all_batches", "one_batch"] = "all_batches"
    mamba_mode_all: Literal["every_boundary", "as_none"] = "every_boundary"
    # States of a prefill that Mamba-2 layers keep beside the others, in mode align.
    mamba2_checkpoint_blocks: int = 0
    # What the block of attention layers is a multiple of where they share a pool with states: the
    # layout's own, or the block size that was set, where that is larger.
    state_alignment: Literal["layout", "set_block_size"] = "layout"

    # --- how layers become groups --------------------------------------------------------------
    # equal: as many layers in every group. slots: as many bytes in a block of every group.
    groups: Literal["equal", "slots"] = "equal"
    # False: every layer is charged as if it kept all tokens (before groups by type existed).
    groups_by_type: bool = True
    # What the first layer stores -> fields not compared when layers merge; the first layer's are
    # used. "kind" lets kinds that keep every token merge with each other.
    merge_ignores: Mapping[Stores, frozenset[str]] = field(default_factory=dict)
    # Two remembered windows in one merge: an error, or simply no merge.
    window_conflict: Literal["refused", "no_merge"] = "no_merge"
    # Layers go to equal specs only, or to the first group they merge with.
    bucket_by: Literal["equal", "merge"] = "equal"
    # Buckets are padded to the largest when it is less than this many times the smallest.
    padding_threshold: float = 1.25
    layers_per_group: int | None = None  # this many instead, where whoever plans chooses
    states_of_one_type: Literal["any_page", "equal_pages"] = "any_page"
    promotion_takes_block_size: bool = True  # of the full layers, by layers promoted to join them
    # Pages that differ in size. refuse: they must divide the largest. pad_states: states are padded
    # and others, too, unless what they store is in `unpaddable`. pad: all that do not divide are.
    unify_pages: Literal["refuse", "pad_states", "pad"] = "pad"
    unpaddable: frozenset[Stores] = frozenset()
    compressed_rows: bool = False  # rows of several tokens beside others are planned as it does
    packed_groups: bool = False  # layouts that start with B may mix page sizes

    # --- from memory to blocks -----------------------------------------------------------------
    pool: Literal["tensors", "one_allocation"] = "tensors"
    # Kernels are given block tables in which a page's smaller blocks may lie apart from the next
    # page's, with other layers' pages between. (vLLM 0.32 splits no such page.)
    splits_apart_pages: bool = False
    # What num_gpu_blocks_override stands for: the count alone (the fit is still checked against the
    # profiled memory), the memory itself, or a count that the memory must hold.
    override: Literal["count", "memory", "checked_count"] = "checked_count"

    # --- admission and what is printed ---------------------------------------------------------
    admission: Literal["first_group", "every_group"] = "every_group"
    reserves_null_block: bool = True
    # Share of the blocks that no request may take, whatever it asks for.
    watermark: float = 0.0
    # The bound it uses, or one that is known to suffice (`peak_blocks`).
    request_bound: Literal["max_blocks", "peak_blocks"] = "peak_blocks"
    # The capacity line. group_share: blocks over groups times the smallest block; by_concurrency:
    # concurrency times the length; usable: the same without the null block.
    printed: Literal["group_share", "by_concurrency", "usable"] = "usable"

    def __call__(self, options: Options) -> EngineRules:
        """These rules: what a run is given that chose them by name."""
        return self

    @property
    def rules(self) -> EngineRules:
        return self

    def limits(self, asked: RequestLimits) -> RequestLimits:
        """The limits as this engine counts them."""
        changes: dict[str, int | str] = {}
        if not self.prefill_context_parallel:
            changes["pcp"] = 1
        if self.tokens_in_flight == "one_batch":
            changes |= {"max_concurrent_batches": 1, "num_lookahead_tokens": 0}
        if self.mamba_mode_all == "as_none" and asked.mamba_cache_mode == "all":
            changes["mamba_cache_mode"] = "none"
        return replace(asked, **changes) if changes else asked  # type: ignore[arg-type]

    def encoder_tokens(self, own: int, batched: int) -> int:
        """Tokens of an encoder's output that a request's cross attention is planned for. own: of
        the model's encoder (0: it has none). A release of vLLM reserves for the batch budget, and
        does not start with a smaller one than `own` (v1/kv_cache_interface.py, 0.17 to 0.33)."""
        return max(own, batched) if own and self.version else own

    def usable_blocks(self, num_blocks: int) -> int:
        """Blocks that requests can hold at once: one block is the null block, or more are kept."""
        return max(0, num_blocks - max(1, int(num_blocks * self.watermark)))

    def ignored(self, first: Stores) -> frozenset[str]:
        return self.merge_ignores.get(first, frozenset())
