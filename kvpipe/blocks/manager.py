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

from collections import deque
from collections.abc import Callable, Hashable, Mapping, MutableSequence, Sequence
from dataclasses import replace
from itertools import accumulate
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.decode import UNTIL
from kvpipe.blocks.errors import BlockError, OutOfBlocks
from kvpipe.blocks.hashing import PrefixChain, PrefixIdentity, token_bytes
from kvpipe.blocks.pool import BlockPool, Ids
from kvpipe.blocks.request import BlockCopy, LiveRequest, PrefixStats, SwappedRequest
from kvpipe.blocks.step import GroupSlots, Slots
from kvpipe.blocks.table import Change, GroupTable, SteadyStep
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.base import KVCacheConfig, Plan

Tokens = Sequence[int] | npt.NDArray[np.integer]
_DISCARD: deque[int] = deque(maxlen=0)  # the tokens of requests whose prefixes are not cached
_AT_ONCE = 0  # a decode run that ends before it begins: the next step is looked at anew


class BlockManager:
    """One rank's blocks. Requests are named by any hashable value."""

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
        self.prefix_caching = prefix_caching and bool(self.tables)
        # Every group must be able to serve a prefix, or no prefix of the whole model can be.
        self.prefix_caching &= all(table.caches_prefixes for table in self.tables)
        self.granule = gcd(*(table.span for table in self.tables)) or 1
        self._slots = [GroupSlots(kv_sharing_fast_prefill) for _ in self.tables]
        self._shared = dict(shared_layers)
        self._fast_prefill = kv_sharing_fast_prefill
        self._group_of = self._layers_to_groups(config)
        self._live: dict[Hashable, LiveRequest] = {}
        self._row_of: dict[Hashable, int] = {}
        self._swapped: dict[Hashable, SwappedRequest] = {}
        self._at_row: list[LiveRequest | None] = [None] * max_num_requests
        self._pending: list[MutableSequence[int]] = [_DISCARD] * max_num_requests
        self._free_rows = list(range(max_num_requests - 1, -1, -1))
        self._num_tokens = np.zeros(max_num_requests, np.int64)
        self._run_until = np.zeros(max_num_requests, np.int64)
        self._steady = np.zeros(max_num_requests, np.bool_)
        self._last_batch: tuple[list[Hashable], Ids] = ([], np.empty(0, np.intp))
        self._queried = self._hit = 0

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
    ) -> int:
        """A new request. Returns how many of its first tokens are cached: their blocks are held
        from now on and need not be computed. At least one token of the prompt always remains.

        prompt_tokens may be left out without prefix caching. encoder_tokens: of this request
        (None: the limits' max_encoder_tokens)."""
        self._refuse_new(request)
        limits = self._limits_with(encoder_tokens)
        chain = None
        if self.prefix_caching and prompt_tokens is not None:
            chain = PrefixChain(self.granule, identity or PrefixIdentity())
            chain.extend(prompt_tokens)
        if prompt_tokens is not None:
            self._check_length(request, len(prompt_tokens))
        live = self._seat(LiveRequest(request, -1, limits, chain), 0)
        if chain is None or not chain.num_tokens:
            return 0
        hit = self._claim_prefix(live, chain, chain.num_tokens - 1)
        self._num_tokens[live.row] = hit
        self._queried += chain.num_tokens
        self._hit += hit
        return hit

    def allocate(
        self,
        request: Hashable,
        num_new_tokens: int,
        num_lookahead_tokens: int = 0,
        token_ids: Tokens = (),
    ) -> tuple[BlockCopy, ...]:
        """Room for the request's next num_new_tokens, and for num_lookahead_tokens draft tokens
        that are not counted as stored. token_ids: tokens beyond those that are known already,
        needed with prefix caching."""
        live = self._find(request)
        computed = int(self._num_tokens[live.row])
        self._check_step(live, computed, num_new_tokens, num_lookahead_tokens, token_ids)
        lookahead = min(num_lookahead_tokens, self.limits.max_model_len - computed - num_new_tokens)
        copies = self._grant([(live, computed, num_new_tokens, lookahead)])
        for table, slots in zip(self.tables, self._slots, strict=True):
            written = table.spec.written(computed, num_new_tokens, live.limits)
            slots.extend(table.slots(live.row, written), decode=False)
        self._num_tokens[live.row] = computed + num_new_tokens
        self._look_anew(live.row)
        if live.chain is not None:
            live.pending.extend(np.asarray(token_ids).tolist())
            self._complete(live, computed, num_new_tokens)
        return copies

    def append(
        self, requests: Sequence[Hashable], token_ids: Sequence[int] | None = None
    ) -> tuple[BlockCopy, ...]:
        """One decode step: room for one more token of each request, for all or for none.

        token_ids: the tokens, one a request; needed by requests that are cached by prefix."""
        rows = self._rows(requests)
        if token_ids is not None and len(token_ids) != len(rows):
            raise BlockError(f"{len(rows)} requests but {len(token_ids)} token ids")
        computed = self._num_tokens[rows]
        due = (computed >= self._run_until[rows]).nonzero()[0]
        if self.prefix_caching:
            self._check_known(rows, token_ids)
        copies = self._grant_due(rows[due], computed[due]) if len(due) else ()
        self._num_tokens[rows] = computed + 1
        for table, slots in zip(self.tables, self._slots, strict=True):
            now = table.next_slot[rows]
            table.next_slot[rows] = now + table.advance[rows]
            slots.extend(now, decode=True)
        if self.prefix_caching:
            self._note_tokens(rows, computed, token_ids)
        return copies

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """A second request with the same tokens: it shares the parent's blocks, and whichever of
        the two writes first into a shared block gets a copy of it (`BlockCopy`)."""
        source = self._find(parent)
        self._refuse_new(child)
        computed = int(self._num_tokens[source.row])
        chain = source.chain.copy() if source.chain else None
        twin = LiveRequest(child, -1, source.limits, chain, list(source.pending), forked=True)
        self._seat(twin, computed)
        source.forked = True
        for table in self.tables:
            held, indices = self._content(table, source, computed)
            blocks = table.blocks(source.row, indices)
            self.pool.share(blocks)
            table.put(twin.row, indices, blocks)
            table.held[twin.row] = held
        self._look_anew(source.row)

    def free(self, request: Hashable) -> None:
        """The request is finished: its blocks go back, each chain's tail to be evicted first."""
        live = self._find(request)
        for table in self.tables:
            blocks = table.blocks(live.row)
            if len(blocks):
                self.pool.free(blocks)
        self._unseat(live)

    # --- host memory -------------------------------------------------------------------------
    def swap_out(self, request: Hashable, save: Callable[[int, Ids], Any]) -> None:
        """Give the request's blocks back after save(group, block ids) has kept their content."""
        live = self._find(request)
        computed = int(self._num_tokens[live.row])
        saved = []
        for group, table in enumerate(self.tables):
            held, indices = self._content(table, live, computed)
            saved.append((held, indices, save(group, table.blocks(live.row, indices))))
        self.free(request)
        self._swapped[request] = SwappedRequest(live, computed, tuple(saved))

    def swap_in(self, request: Hashable, restore: Callable[[int, Ids, Any], None]) -> None:
        """Take new blocks for a swapped request; restore(group, block ids, what save returned)."""
        swapped = self._swapped.get(request)
        if swapped is None:
            raise BlockError(f"request {request!r} is not swapped out")
        self._refuse_full()
        sizes = [len(indices) for _, indices, _ in swapped.saved]
        self._refuse_shortage(f"request {request!r}", sizes, [])
        del self._swapped[request]
        live = self._seat(swapped.request, swapped.num_tokens)
        for group, (held, indices, payload) in enumerate(swapped.saved):
            table = self.tables[group]
            blocks = self.pool.allocate(len(indices))
            table.put(live.row, indices, blocks)
            table.held[live.row] = held
            restore(group, blocks, payload)

    # --- what kernels read -------------------------------------------------------------------
    def begin_step(self) -> None:
        """Forget the slots of the step before."""
        for slots in self._slots:
            slots.clear()

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
        return ids if requests is None else ids[self._rows(requests)]

    def seq_lens(self, requests: Sequence[Hashable]) -> npt.NDArray[np.int32]:
        """[R] int32: tokens stored of each request."""
        return self._num_tokens[self._rows(requests)].astype(np.int32)

    # --- questions ---------------------------------------------------------------------------
    def group_index(self, group: int | str) -> int:
        """A group's index: itself, or that of a layer's group (a sharing layer: its target's)."""
        if isinstance(group, str):
            if group not in self._group_of:
                raise BlockError(f"layer '{group}' keeps no cache and shares none")
            return self._group_of[group]
        return group

    def row(self, request: Hashable) -> int:
        return self._find(request).row

    def num_tokens(self, request: Hashable) -> int:
        return int(self._num_tokens[self._find(request).row])

    def block_ids(self, request: Hashable, group: int | str) -> Ids:
        """The blocks that the request holds in a group, in order of their index."""
        return self.tables[self.group_index(group)].blocks(self._find(request).row)

    @property
    def live_requests(self) -> tuple[Hashable, ...]:
        return tuple(self._live)

    @property
    def swapped_requests(self) -> tuple[Hashable, ...]:
        return tuple(self._swapped)

    def prefix_stats(self) -> PrefixStats:
        return PrefixStats(queried_tokens=self._queried, hit_tokens=self._hit)

    # --- granting ----------------------------------------------------------------------------
    def _grant_due(self, rows: Ids, computed: npt.NDArray[np.int64]) -> tuple[BlockCopy, ...]:
        """One decode token for rows at which something changes."""
        if self._steady[rows].all() and self._grant_steady(rows, computed):
            return ()
        moves = [
            (self._seated(row), stored, 1, 0)
            for row, stored in zip(rows.tolist(), computed.tolist(), strict=True)
        ]
        for live, stored, _, _ in moves:
            self._check_decodes(live, stored)
        copies = self._grant(moves)
        for live, _, _, _ in moves:
            self._start_run(live)
        return copies

    def _grant_steady(self, rows: Ids, computed: npt.NDArray[np.int64]) -> bool:
        """The same, all at once, for rows that only decode; False: nothing done, go one by one."""
        stored = computed.tolist()
        if max(stored) >= self.limits.max_model_len:
            return False
        steps = [
            SteadyStep(table, rows, *table.decode_plan(self.limits).at(stored))
            for table in self.tables
        ]
        sizes = [step.num_new for step in steps]
        if sum(sizes) > self.pool.num_free or not all(step.is_simple for step in steps):
            return False
        for step in steps:
            blocks = step.dropped()
            if len(blocks):
                self._free_each(blocks)
        fresh, used = self.pool.allocate(sum(sizes)), 0
        for step, size in zip(steps, sizes, strict=True):
            step.enter(fresh[used : used + size])
            used += size
        until = np.min([step.columns[:, UNTIL] for step in steps], axis=0)
        self._run_until[rows] = np.minimum(until, self.limits.max_model_len)
        return True

    def _free_each(self, blocks: Ids) -> None:
        """Free blocks of several rows, among which a shared one is named more than once."""
        if len(set(blocks.tolist())) == len(blocks):
            self.pool.free(blocks)
        else:
            for i in range(len(blocks)):
                self.pool.free(blocks[i : i + 1])

    def _look_anew(self, row: int) -> None:
        """What the row holds is not what a decode step left: ask the specs at its next step."""
        self._run_until[row], self._steady[row] = _AT_ONCE, False

    def _grant(self, moves: Sequence[tuple[LiveRequest, int, int, int]]) -> tuple[BlockCopy, ...]:
        """moves: (request, computed, new, lookahead). All blocks for all, or OutOfBlocks."""
        copied: dict[int, int] = {}  # references that copies of this very step take away
        plans = [(move[0], self._changes(*move, copied)) for move in moves]
        sizes = [sum(c[g].num_new for _, c in plans) for g in range(len(self.tables))]
        dropped = [
            table.blocks(live.row, changes[g].drop)
            for live, changes in plans
            for g, table in enumerate(self.tables)
            if len(changes[g].drop)
        ]
        who = f"request {moves[0][0].name!r}" if len(moves) == 1 else f"{len(moves)} requests"
        self._refuse_shortage(who, sizes, dropped)
        for blocks in dropped:
            self.pool.free(blocks)
        fresh = self.pool.allocate(sum(sizes))
        copies: list[BlockCopy] = []
        used = 0
        for live, changes in plans:
            live.forked = False
            for g, change in enumerate(changes):
                copies += self._enter(g, live.row, change, fresh[used : used + change.num_new])
                used += change.num_new
        return tuple(copies)

    def _changes(
        self, live: LiveRequest, computed: int, new: int, lookahead: int, copied: dict[int, int]
    ) -> list[Change]:
        changes = []
        for table in self.tables:
            change = table.change(live.row, computed, new, lookahead, live.limits)
            if live.forked:
                change = self._with_copy(table, change, live, computed, new, copied)
            changes.append(change)
        return changes

    def _with_copy(
        self,
        table: GroupTable,
        change: Change,
        live: LiveRequest,
        computed: int,
        new: int,
        copied: dict[int, int],
    ) -> Change:
        index = table.written_index(live.row, computed, new, live.limits)
        if index is None:
            return change
        block = int(table.ids[live.row, index])
        if self.pool.references([block])[0] - copied.get(block, 0) < 2:
            return change
        copied[block] = copied.get(block, 0) + 1
        return replace(change, copy=(index,))

    def _enter(self, group: int, row: int, change: Change, fresh: Ids) -> list[BlockCopy]:
        """Write one change of one row into its table; the copies that it needs."""
        table = self.tables[group]
        if len(change.drop):
            table.put(row, change.drop, table.absent)
        table.held[row] = change.want
        table.put(row, change.take, fresh[: len(change.take)])
        if not change.copy:
            return []
        old = table.blocks(row, change.copy)
        new = fresh[len(change.take) :]
        self.pool.free(old)
        table.put(row, change.copy, new)
        return [BlockCopy(group, *pair) for pair in zip(old.tolist(), new.tolist(), strict=True)]

    def _refuse_shortage(self, who: str, sizes: Sequence[int], dropped: Sequence[Ids]) -> None:
        """OutOfBlocks naming the first group whose blocks (sizes[g]) the pool cannot give."""
        needed, free = sum(sizes), self.pool.num_free
        if needed <= free:
            return
        if dropped:
            free += self.pool.reclaimable(np.concatenate(dropped))
        if needed > free:
            group = next(g for g, total in enumerate(accumulate(sizes)) if total > free)
            kind = self.tables[group].spec.kind
            raise OutOfBlocks(needed, free, group, f"{who}: group {group} ({kind}) ran short: ")

    def _start_run(self, live: LiveRequest) -> None:
        """Prepare the decode steps that follow the state that is now held."""
        stored = int(self._num_tokens[live.row])
        until = min(
            (t.start_run(live.row, stored, live.limits) for t in self.tables), default=1 << 62
        )
        self._run_until[live.row] = min(until, self.limits.max_model_len)
        self._steady[live.row] = live.limits is self.limits and not live.forked

    # --- prefixes ----------------------------------------------------------------------------
    def _claim_prefix(self, live: LiveRequest, chain: PrefixChain, max_tokens: int) -> int:
        """Hold the blocks of the longest prefix, at most max_tokens, that every group can serve."""
        found: dict[int, list[int | None]] = {}
        length, settled = max_tokens, False
        while not settled:
            settled = True
            for g, table in enumerate(self.tables):
                num = length // table.span
                if g not in found:
                    found[g] = self.pool.lookup(self._keys(chain, g, range(num)))
                served = table.spec.hit_length([b is not None for b in found[g][:num]])
                if served * table.ranks < length:
                    length, settled = served * table.ranks, False
        if length:
            self._hold_prefix(live, found, length)
        return length

    def _hold_prefix(
        self, live: LiveRequest, found: Mapping[int, Sequence[int | None]], length: int
    ) -> None:
        rows = []
        for g, table in enumerate(self.tables):
            want = table.spec.resident(length, 0, live.limits)
            held = range(want.start, min(want.stop, length // table.span), want.step)
            pairs = [(i, b) for i in held if (b := found[g][i]) is not None]
            rows.append((table, held, [i for i, _ in pairs], [b for _, b in pairs]))
        self.pool.share([block for *_, blocks in rows for block in blocks])
        for table, held, indices, blocks in rows:
            table.put(live.row, indices, blocks)
            table.held[live.row] = held

    def _keys(self, chain: PrefixChain, group: int, indices: range) -> list[bytes]:
        """The keys of the group's blocks at those indices. A block's key is the chain's at its end,
        and the group: the same tokens have another content in another group's layers."""
        ratio = self.tables[group].span // self.granule
        suffix = group.to_bytes(2, "little")
        ends = chain.keys[(indices.start + 1) * ratio - 1 : indices.stop * ratio : ratio]
        return [key + suffix for key in ends]

    def _complete(self, live: LiveRequest, computed: int, new: int) -> None:
        """Make the blocks that this step completed findable."""
        chain = live.chain
        assert chain is not None
        if live.pending:
            chain.extend(live.pending)
            live.pending.clear()
        for g, table in enumerate(self.tables):
            written = table.spec.written(computed, new, live.limits)
            first = max(computed // table.span, -(-(written.start + 1) // table.span) - 1)
            indices = range(first, (computed + new) // table.span)
            if len(indices):
                blocks = table.blocks(live.row, indices)
                keys = self._keys(chain, g, indices)
                here = np.flatnonzero(blocks > 0)
                if len(here) < len(blocks):
                    blocks, keys = blocks[here], [keys[i] for i in here]
                self.pool.register(blocks, keys)

    def _note_tokens(
        self, rows: Ids, computed: npt.NDArray[np.int64], token_ids: Sequence[int] | None
    ) -> None:
        if token_ids is not None:
            pending = self._pending
            for row, token in zip(rows.tolist(), token_ids, strict=True):
                pending[row].append(token)
        for i in ((computed + 1) % self.granule == 0).nonzero()[0].tolist():
            live = self._seated(rows[i])
            if live.chain is not None:
                self._complete(live, int(computed[i]), 1)

    def _content(
        self, table: GroupTable, live: LiveRequest, computed: int
    ) -> tuple[range, list[int]]:
        """The part of a row that tokens were written to (without room for draft tokens): the range
        held, and the indices in it that have a block."""
        held = table.held[live.row]
        stop = min(held.stop, table.content_stop(computed, live.limits))
        held = range(held.start, max(held.start, stop), held.step)
        return held, [i for i in held if table.ids[live.row, i] > 0]

    # --- rows and checks ---------------------------------------------------------------------
    def _seat(self, live: LiveRequest, num_tokens: int) -> LiveRequest:
        live.row = self._free_rows.pop()
        self._live[live.name] = live
        self._row_of[live.name] = live.row
        self._at_row[live.row] = live
        self._pending[live.row] = _DISCARD if live.chain is None else live.pending
        self._num_tokens[live.row] = num_tokens
        self._look_anew(live.row)
        return live

    def _unseat(self, live: LiveRequest) -> None:
        for table in self.tables:
            table.clear(live.row)
        del self._live[live.name], self._row_of[live.name]
        self._last_batch = ([], np.empty(0, np.intp))
        self._at_row[live.row] = None
        self._free_rows.append(live.row)

    def _seated(self, row: int) -> LiveRequest:
        live = self._at_row[row]
        assert live is not None
        return live

    def _find(self, request: Hashable) -> LiveRequest:
        try:
            return self._live[request]
        except KeyError:
            raise BlockError(self._why_not_live(request)) from None

    def _why_not_live(self, request: Hashable) -> str:
        if request in self._swapped:
            return f"request {request!r} is swapped out: swap it in first"
        return f"request {request!r} is not live: it is finished, or was never added"

    def _rows(self, requests: Sequence[Hashable]) -> Ids:
        names, rows = self._last_batch
        if requests == names:  # the batch of the step before, most often
            return rows
        try:
            rows = np.array(list(map(self._row_of.__getitem__, requests)), np.intp)
        except KeyError as error:
            raise BlockError(self._why_not_live(error.args[0])) from None
        if len(set(requests)) != len(rows):
            raise BlockError("a request is named twice in one step")
        self._last_batch = (list(requests), rows)
        return rows

    def _refuse_new(self, request: Hashable) -> None:
        if request in self._live or request in self._swapped:
            raise BlockError(f"request {request!r} is live already")
        self._refuse_full()

    def _refuse_full(self) -> None:
        if not self._free_rows:
            raise BlockError(
                f"all {len(self._at_row)} rows are taken: free a request, or raise max_num_requests"
            )

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
        self._check_length(live.name, computed + new)
        token_bytes(token_ids)
        known = live.known_tokens + len(token_ids)
        if live.chain is not None and known < computed + new:
            raise BlockError(
                f"request {live.name!r}: {computed + new} tokens to store, {known} known: prefix "
                "caching needs their ids (token_ids)"
            )

    def _check_decodes(self, live: LiveRequest, computed: int) -> None:
        if not computed:
            raise BlockError(f"request {live.name!r} has no tokens yet: allocate its prompt first")
        self._check_length(live.name, computed + 1)

    def _check_length(self, request: Hashable, num_tokens: int) -> None:
        if num_tokens > self.limits.max_model_len:
            raise BlockError(
                f"request {request!r}: {num_tokens} tokens are more than max_model_len "
                f"{self.limits.max_model_len}"
            )

    def _check_known(self, rows: Ids, token_ids: Sequence[int] | None) -> None:
        if token_ids is not None:
            token_bytes(token_ids)
        else:
            for row in rows.tolist():
                if (live := self._seated(row)).chain is not None:
                    raise BlockError(
                        f"request {live.name!r} is cached by prefix: append needs its token id"
                    )
