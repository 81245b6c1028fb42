"""The block manager: requests of any length over every cache group of a plan, one pool of blocks.

    manager = BlockManager.from_plan(plan, prefix_caching=True)
    cached = manager.add_request("a", prompt_tokens)      # tokens that need no computation
    manager.begin_step()
    copies = manager.allocate("a", len(prompt) - cached)  # a prefill chunk: all groups or none
    copies = manager.append(["a", "b"], [17, 4])          # one decode step of a batch
    manager.slot_mapping(group), manager.block_table(group, ["a", "b"])

The tokens that are granted count as stored from then on: the caller runs the step it asked for.
Copies that a grant returns (a fork's first write) come before that step's writes. Every wrong call
raises BlockError, every shortage OutOfBlocks, and both leave everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.checks import Ids
from kvpipe.blocks.decoding import Decoding
from kvpipe.blocks.drafts import Drafts
from kvpipe.blocks.errors import BlockError
from kvpipe.blocks.granting import Move
from kvpipe.blocks.group_hits import GroupHit
from kvpipe.blocks.hashing import Chain, PrefixChain, PrefixIdentity, token_bytes
from kvpipe.blocks.pool import BlockPool
from kvpipe.blocks.prefix_cache import PrefixCache
from kvpipe.blocks.request import BlockCopy, LiveRequest, PrefixStats, SwappedRequest
from kvpipe.blocks.scratch import StepArray, StepScratch
from kvpipe.blocks.seats import Seats
from kvpipe.blocks.slots import Slots
from kvpipe.blocks.standing import StandingBatch
from kvpipe.blocks.step import GroupSlots
from kvpipe.blocks.subslot_granting import granter_of, group_pools
from kvpipe.blocks.table import GroupTable
from kvpipe.cache.plan import KVCacheConfig, Plan
from kvpipe.specs.base import RequestLimits
from kvpipe.specs.runs import Runs, below, indices

Tokens = Sequence[int] | npt.NDArray[np.integer]


class BlockManager:
    """One rank's blocks. Requests are named by any hashable value. scratch: what the step keeps
    there, for the layers of groups that do."""

    def __init__(
        self,
        config: KVCacheConfig,
        limits: RequestLimits,
        *,
        max_num_requests: int = 256,
        prefix_caching: bool = False,
        shared_layers: Sequence[tuple[str, str]] = (),
        kv_sharing_fast_prefill: bool = False,
        absent_block: int = -1,
        context_rank: int = 0,
    ) -> None:
        """shared_layers: (layer, target) pairs that read the target's cache.
        kv_sharing_fast_prefill: those layers run on decode tokens only and get no slots in prefill.
        absent_block: what a block table holds where a request has no block: -1, or 0 (the null
        block) for kernels that read what they then mask.
        context_rank: of this rank among dcp * pcp."""
        self.config, self.limits = config, limits
        self.pool = BlockPool(max(1, config.num_blocks))
        self.tables = [
            GroupTable(group, limits, max_num_requests, absent_block, context_rank)
            for group in config.groups
        ]
        if prefix_caching and any(config.scratch):
            raise BlockError(
                "scratch keeps no prefixes: plan with prefix caching, or serve without"
            )
        self.prefixes = PrefixCache(self.pool, self.tables, prefix_caching)
        self.scratch = StepScratch(self.pool, self.tables, config.scratch)
        self._pools = group_pools(self.pool, config)
        if self._pools != [self.pool] * len(self.tables) and (
            self.prefixes.enabled or self.scratch.enabled
        ):
            raise BlockError("sub-slots keep no prefixes and no scratch: serve without both")
        self._granter = granter_of(self._pools, self.tables, limits, max_num_requests, self.scratch)
        self._seats = Seats(max_num_requests)
        self._slots = [GroupSlots(kv_sharing_fast_prefill) for _ in self.tables]
        groups = list(zip(self.tables, self._slots, strict=True))
        self._decoding = Decoding(self._seats, self._granter, self.prefixes, groups)
        self._drafts = Drafts(self._seats, self._granter, self.prefixes, groups)
        self._shared = dict(shared_layers)
        self._fast_prefill = kv_sharing_fast_prefill
        self._group_of = self._layers_to_groups(config)

    @classmethod
    def from_plan(cls, plan: Plan, rank: int = 0, **options: Any) -> BlockManager:
        """The manager of one rank of a plan; options as in the constructor."""
        return cls(
            plan.ranks[rank].config, plan.limits, shared_layers=plan.shared_layers, **options
        )

    def _layers_to_groups(self, config: KVCacheConfig) -> dict[str, int]:
        own = {name: i for i, group in enumerate(config.groups) for name in group.layer_names}
        for layer, target in self._shared.items():
            if target not in own:
                raise BlockError(
                    f"layer {layer} shares the cache of {target}, which is in no group"
                )
        return own | {layer: own[target] for layer, target in self._shared.items()}

    # --- life of a request -------------------------------------------------------------------
    def add_request(
        self,
        request: Hashable,
        prompt_tokens: Tokens | None = None,
        *,
        identity: PrefixIdentity | None = None,
        encoder_tokens: int | None = None,
        chain: Chain | None = None,
    ) -> int:
        """A new request. Returns how many of its first tokens are cached: their blocks are held
        from now on and need not be computed. At least one token of the prompt always remains.

        prompt_tokens may be left out without prefix caching. encoder_tokens: of this request
        (None: the limits' max_encoder_tokens). chain: the prompt's keys, where they are known
        already, in place of its tokens."""
        self._seats.refuse_new(request)
        limits = self._limits_with(encoder_tokens)
        if chain is not None and chain.granule != self.granule:
            raise BlockError(f"keys every {chain.granule} tokens, expected every {self.granule}")
        if not self.prefix_caching:
            chain = None
        elif chain is None and prompt_tokens is not None:
            hashed = PrefixChain(self.granule, identity or PrefixIdentity())
            hashed.extend(prompt_tokens)
            chain = hashed
        if prompt_tokens is not None:
            self._granter.refuse_length(request, len(prompt_tokens))
        elif chain is not None:
            self._granter.refuse_length(request, chain.num_tokens)
        live = self._seat(LiveRequest(request, -1, limits, chain), 0)
        hit = self.prefixes.claim(live, chain) if chain is not None else 0
        self._seats.num_tokens[live.row] = hit
        return hit

    def allocate(
        self,
        request: Hashable,
        num_new_tokens: int,
        num_lookahead_tokens: int = 0,
        token_ids: Tokens = (),
    ) -> tuple[BlockCopy, ...]:
        """Room for the request's next num_new_tokens, and behind them for num_lookahead_tokens of a
        drafter's own, which get no slots and are not counted as stored. token_ids: tokens beyond
        those that are known already, needed with prefix caching."""
        live = self._seats.find(request)
        computed = int(self._seats.num_tokens[live.row])
        self._check_step(live, computed, num_new_tokens, num_lookahead_tokens, token_ids)
        lookahead = min(num_lookahead_tokens, self.limits.max_model_len - computed - num_new_tokens)
        copies = self._granter.grant([Move(live, computed, num_new_tokens, lookahead, True)])
        for g, (table, slots) in enumerate(zip(self.tables, self._slots, strict=True)):
            written = table.spec.written(computed, num_new_tokens, live.limits)
            self.scratch.note_written(g, live.row, written, len(slots.all))
            slots.all.extend_later(table.later_slots(live.row, written))
        self._seats.num_tokens[live.row] = computed + num_new_tokens
        self._granter.look_anew(live.row)
        if live.chain is not None:
            if len(token_ids):
                live.pending.extend(np.asarray(token_ids).tolist())
            self.prefixes.complete(live, computed, num_new_tokens)
        return copies

    def append(
        self,
        requests: Sequence[Hashable],
        token_ids: Sequence[int] | None = None,
        num_draft_tokens: int = 0,
    ) -> tuple[BlockCopy, ...]:
        """One decode step: room for one more token of each request, for all or for none.

        token_ids: the tokens, one a request; needed by requests that are cached by prefix.
        num_draft_tokens: drafted tokens of each request that the same step computes; they get
        slots right behind the request's own, and are stored only if they are accepted."""
        if num_draft_tokens:
            return self._drafts.step(requests, token_ids, num_draft_tokens)
        return self._decoding.step(requests, token_ids)

    def standing_batch(self) -> StandingBatch:
        """A batch of requests that decode, of which a step looks at those only that need blocks:
        for an engine that is simulated. Its members leave it before another call names them."""
        return StandingBatch(self._decoding)

    def accept(self, request: Hashable, num_accepted: int, token_ids: Sequence[int] = ()) -> None:
        """The first num_accepted drafts of the request's last step are stored from now on; the rest
        is rejected, as all are that are not accepted before the request's next grant. token_ids:
        the accepted tokens; needed by a request that is cached by prefix."""
        self._drafts.accept(request, num_accepted, token_ids)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """A second request with the same tokens: it shares the parent's blocks, and whichever of
        the two writes first into a shared block gets a copy of it (`BlockCopy`)."""
        source = self._seats.find(parent)
        self._seats.refuse_new(child)
        computed = int(self._seats.num_tokens[source.row])
        chain = source.chain.copy() if source.chain else None
        twin = LiveRequest(child, -1, source.limits, chain, list(source.pending), forked=True)
        self._seat(twin, computed)
        source.forked, source.drafted = True, 0
        for table, pool in zip(self.tables, self._pools, strict=True):
            held, at = self._content(table, source, computed)
            blocks = table.blocks(source.row, at)
            pool.share(blocks)
            table.put(twin.row, at, blocks)
            table.held[twin.row] = held
        self._granter.look_anew(source.row)

    def free(self, request: Hashable) -> None:
        """The request is finished: its blocks go back, each chain's tail to be evicted first."""
        live = self._seats.find(request)
        for table, pool in zip(self.tables, self._pools, strict=True):
            blocks = table.blocks(live.row)
            if len(blocks):
                pool.free(blocks)
            table.clear(live.row)
        self.scratch.forget(live.row)
        self._seats.unseat(live)

    # --- host memory -------------------------------------------------------------------------
    def swap_out(self, request: Hashable, save: Callable[[int, Ids], Any]) -> None:
        """Give the request's blocks back after save(group, block ids) has kept their content."""
        live = self._seats.find(request)
        computed = int(self._seats.num_tokens[live.row])
        saved = []
        for group, table in enumerate(self.tables):
            held, at = self._content(table, live, computed)
            saved.append((held, at, save(group, table.blocks(live.row, at))))
        self.free(request)
        live.drafted = 0
        self._seats.swapped[request] = SwappedRequest(live, computed, tuple(saved))

    def swap_in(self, request: Hashable, restore: Callable[[int, Ids, Any], None]) -> None:
        """Take new blocks for a swapped request; restore(group, block ids, what save returned)."""
        swapped = self._seats.swapped.get(request)
        if swapped is None:
            raise BlockError(f"request {request!r} is not swapped out")
        self._seats.refuse_full()
        sizes = [len(at) for _, at, _ in swapped.saved]
        self._granter.refuse_shortage(f"request {request!r}", sizes)
        del self._seats.swapped[request]
        live = self._seat(swapped.request, swapped.num_tokens)
        for group, (held, at, payload) in enumerate(swapped.saved):
            table = self.tables[group]
            blocks = self._pools[group].allocate(len(at))
            table.put(live.row, at, blocks)
            table.held[live.row] = held
            restore(group, blocks, payload)

    # --- what kernels read -------------------------------------------------------------------
    def begin_step(self) -> None:
        """The step before has run: forget its slots; the states it computed may be hit."""
        self.end_step()
        self.prefixes.unwritten.clear()
        for slots in self._slots:
            slots.clear()

    def end_step(self) -> None:
        """The step has run: its scratch is free. (`begin_step` says so too.)"""
        self.scratch.end_step()

    def step_table(self, group: int, requests: Sequence[Hashable]) -> StepArray:
        """[R, W] entries of a group whose step uses scratch (`scratch.used_by`), in the units of
        its `GroupScratch`; each layer has its own (`of_layer`)."""
        return self.scratch.table(group, self._seats.rows(requests))

    def step_slots(self, group: int) -> StepArray:
        """[T] the same of the slots that this step writes, in the order of `slot_mapping`."""
        return self.scratch.slots_of(group, self.slot_mapping(group))

    def slot_mapping(self, group: int | str) -> Slots:
        """[T] int64, contiguous: the slots that this step writes in a group (or in a layer's), in
        the order granted; -1: nothing is written. Valid until the next call that grants tokens.

        One a position written: the new tokens of K and V; the encoder's tokens, once, of cross
        attention; of a state the one block that the step ends in (every block in mode all)."""
        slots = self._slots[self.group_index(group)]
        if self._fast_prefill and group in self._shared:
            return slots.decode.view()
        return slots.all.view()

    def block_table(
        self, group: int | str, requests: Sequence[Hashable] | None = None
    ) -> npt.NDArray[np.int32]:
        """[R, W] int32, contiguous: block ids of the requests (None: of all rows, see `row`);
        `absent_block` where no block is held."""
        ids = self.tables[self.group_index(group)].ids
        if requests is None:
            return ids
        return ids.take(self._seats.as_array(self._seats.rows(requests)), axis=0)

    def seq_lens(self, requests: Sequence[Hashable]) -> npt.NDArray[np.int32]:
        """[R] int32: tokens stored of each request."""
        return self._seats.num_tokens[self._seats.rows(requests)].astype(np.int32)

    # --- questions ---------------------------------------------------------------------------
    def group_index(self, group: int | str) -> int:
        """A group's index: itself, or that of a layer's group (a sharing layer: its target's)."""
        if isinstance(group, str):
            if group not in self._group_of:
                raise BlockError(f"layer '{group}' keeps no cache and shares none")
            return self._group_of[group]
        return group

    def row(self, request: Hashable) -> int:
        return self._seats.find(request).row

    def num_tokens(self, request: Hashable) -> int:
        return int(self._seats.num_tokens[self._seats.find(request).row])

    def block_ids(self, request: Hashable, group: int | str) -> Ids:
        """The blocks that the request holds in a group, in order of their index."""
        live = self._seats.standing.get(request) or self._seats.find(request)
        return self.tables[self.group_index(group)].blocks(live.row)

    @property
    def live_requests(self) -> tuple[Hashable, ...]:
        return (*self._seats.live, *self._seats.standing)

    @property
    def swapped_requests(self) -> tuple[Hashable, ...]:
        return tuple(self._seats.swapped)

    def prefix_stats(self) -> PrefixStats:
        """Tokens of prompts that were asked of the prefix cache, and that it had."""
        return self.prefixes.stats()

    def prefix_hits(self, request: Hashable) -> list[GroupHit]:
        """What each group has cached of a request that was just added, and which of them cut its
        hit; [] where its prefixes are not cached."""
        chain = self._seats.find(request).chain
        return [] if chain is None else self.prefixes.by_group(chain)

    @property
    def num_holes(self) -> tuple[int, ...]:
        """Of each group the free blocks in slots that are its own: no other group can use them."""
        return tuple(0 if isinstance(pool, BlockPool) else pool.num_holes for pool in self._pools)

    @property
    def prefix_caching(self) -> bool:
        """Whether prefixes are cached: asked for, and possible in every group."""
        return self.prefixes.enabled

    @property
    def max_draft_tokens(self) -> int:
        """Drafted tokens of one request and step that every group can take back."""
        rooms = [table.draft_room(self.limits) for table in self.tables]
        return min(rooms, default=self.limits.max_model_len)

    @property
    def granule(self) -> int:
        """Tokens between two keys of a prefix: the gcd of the groups' block sizes."""
        return self.prefixes.granule

    # --- parts ---------------------------------------------------------------------------------
    def _seat(self, live: LiveRequest, num_tokens: int) -> LiveRequest:
        self._seats.seat(live, num_tokens)
        self._granter.look_anew(live.row)
        return live

    def _content(
        self, table: GroupTable, live: LiveRequest, computed: int
    ) -> tuple[Runs, list[int]]:
        """The part of a row that tokens were written to (without room for draft tokens): the runs
        held, and the indices in them that have a block."""
        held = below(table.held[live.row], table.content_stop(computed, live.limits))
        return held, [i for i in indices(held) if table.ids[live.row, i] > 0]

    def _limits_with(self, encoder_tokens: int | None) -> RequestLimits:
        if encoder_tokens is None or encoder_tokens == self.limits.max_encoder_tokens:
            return self.limits
        if not 0 <= encoder_tokens <= self.limits.max_encoder_tokens:
            raise BlockError(
                f"{encoder_tokens} encoder tokens, the plan allows "
                f"{self.limits.max_encoder_tokens} (max_encoder_tokens)"
            )
        return replace(self.limits, max_encoder_tokens=encoder_tokens)

    def _check_step(
        self, live: LiveRequest, computed: int, new: int, lookahead: int, token_ids: Tokens
    ) -> None:
        if new < 1 or lookahead < 0:
            raise BlockError(f"cannot allocate {new} new and {lookahead} lookahead tokens")
        in_flight = self.limits.tokens_in_flight
        if new + lookahead > in_flight:
            raise BlockError(
                f"request {live.name!r}: {new + lookahead} tokens in one step, at most {in_flight} "
                "fit (max_num_batched_tokens): allocate a smaller chunk"
            )
        self._granter.refuse_length(live.name, computed + new)
        if len(token_ids):
            token_bytes(token_ids)
        known = live.known_tokens + len(token_ids)
        if live.chain is not None and known < computed + new:
            raise BlockError(
                f"request {live.name!r}: {computed + new} tokens to store, {known} known: prefix "
                "caching needs their ids (token_ids)"
            )
