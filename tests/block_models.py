"""Small groups of every kind, and a cache of token values to hold the block manager against.

The reference asks a spec what a query reads (`visible`, which the manager does not ask): it writes
every position's value where the manager's slots say, and reads back what the next token needs
through its tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvpipe.blocks import BlockManager, PrefixIdentity
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.runs import indices
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.specs.streaming import StreamingSpec

HEAD: dict[str, Any] = {"num_kv_heads": 1, "head_size": 2, "dtype": "float16"}


def full(block_size: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, **HEAD)


def sliding(block_size: int, window: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=window, **HEAD)


def chunked(block_size: int, chunk: int) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=chunk, **HEAD)


def streaming(block_size: int, sinks: int, window: int) -> StreamingSpec:
    return StreamingSpec(
        block_size=block_size, num_sink_tokens=sinks, sliding_window=window, **HEAD
    )


def cross(block_size: int) -> CrossAttentionSpec:
    return CrossAttentionSpec(block_size=block_size, **HEAD)


def mamba(block_size: int, mode: str, speculative: int = 0) -> MambaSpec:
    return MambaSpec(
        block_size=block_size,
        states=(StateArray(name="ssm", shape=(4,), dtype="float32"),),
        mamba_cache_mode=mode,
        num_speculative_blocks=speculative,
    )


def config_of(specs: list[KVCacheSpec], num_blocks: int) -> KVCacheConfig:
    groups = tuple(
        KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=spec) for i, spec in enumerate(specs)
    )
    return KVCacheConfig(num_blocks=num_blocks, tensors=(), groups=groups, bytes_per_block=1)


@dataclass(frozen=True)
class Setting:
    """What a machine runs on. modes: of the states among specs, all alike."""

    name: str
    specs: list[KVCacheSpec]
    mamba_cache_mode: str = "none"
    max_encoder_tokens: int = 0

    def limits(self, max_model_len: int = 40, max_num_batched_tokens: int = 12) -> RequestLimits:
        return RequestLimits(
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            mamba_cache_mode=self.mamba_cache_mode,
            max_encoder_tokens=self.max_encoder_tokens,
        )


SETTINGS = [
    Setting("full", [full(4)]),
    Setting("full, block of 1", [full(1)]),
    Setting("full and sliding", [full(4), sliding(4, 6)]),
    Setting("block sizes 4 and 6", [full(4), sliding(6, 5)]),
    Setting("two windows and full", [sliding(2, 1), full(4), sliding(2, 9)]),
    Setting("chunked and full", [chunked(4, 8), full(4)]),
    Setting("chunk across blocks", [chunked(3, 7), full(3)]),
    Setting("a hole beside full", [streaming(3, 4, 5), full(3)]),
    Setting("state and full", [mamba(40, "none", 2), full(4)], "none"),
    Setting("small state blocks", [mamba(3, "none"), full(3)], "none"),
    Setting("align and full", [mamba(4, "align", 1), full(4)], "align"),
    Setting("align beside smaller blocks", [full(2), mamba(6, "align")], "align"),
    Setting("all and sliding", [mamba(4, "all"), sliding(4, 7)], "all"),
    Setting("encoder and decoder", [full(4), cross(4)], max_encoder_tokens=7),
    Setting("everything", [full(2), sliding(4, 5), chunked(2, 4), mamba(4, "align", 1)], "align"),
]


Value = tuple[Any, ...]
POISON: Value = ("poison",)


@dataclass
class Tenant:
    """A request as the reference sees it: its tokens, and what besides them shapes its values."""

    tokens: list[int]
    stored: int = 0
    identity: PrefixIdentity = field(default_factory=PrefixIdentity)
    encoder: tuple[str, int] = ("", 0)  # which input, how many tokens


@dataclass
class ValueModel:
    """memory[block][offset] is the value last written there; a block is one group's at a time."""

    setting: Setting
    manager: BlockManager
    memory: dict[int, dict[int, Value]] = field(default_factory=dict)
    tenants: dict[Hashable, Tenant] = field(default_factory=dict)
    away: dict[Hashable, Tenant] = field(default_factory=dict)

    # --- what a layer of each kind holds and reads ----------------------------------------------
    def value(self, group: int, tenant: Tenant, position: int) -> Value:
        """Of K and V at a position; of a state after the token at that position."""
        if self._is_of_encoder(group):
            return (group, tenant.encoder, position)
        identity = tenant.identity
        seen = tuple((m.start, m.key) for m in identity.media if m.start <= position)
        prefix = tuple(tenant.tokens[: position + 1])
        return (group, identity.salt, identity.extra, seen, prefix)

    def _is_of_encoder(self, group: int) -> bool:
        spec = self.setting.specs[group]
        return spec.bound is None and not spec.is_state

    def read_positions(self, group: int, stored: int, tenant: Tenant) -> Sequence[int]:
        """The positions whose values the token number `stored` needs from this group."""
        spec = self.setting.specs[group]
        if spec.is_state:  # of whatever block: the state after the token before
            return range(max(0, stored - 1), stored)
        limits = replace(self.manager.limits, max_encoder_tokens=tenant.encoder[1])
        read = indices(spec.visible(stored, limits)) if stored else ()
        return read if self._is_of_encoder(group) else [at for at in read if at < stored]

    def place(self, group: int, position: int) -> tuple[int, int]:
        """Index in the row and offset in the block."""
        spec = self.setting.specs[group]
        if spec.is_state:
            none = self.setting.mamba_cache_mode == "none"
            return (0 if none else position // spec.block_size), 0
        return divmod(position, spec.block_size)

    def write_positions(self, group: int, tenant: Tenant, computed: int, new: int) -> list[int]:
        """The positions that a step writes, in the order of its slots."""
        spec = self.setting.specs[group]
        if not spec.holds_blocks:
            return []
        if self._is_of_encoder(group):
            return list(range(0 if computed else tenant.encoder[1]))
        if spec.is_state and self.setting.mamba_cache_mode != "all":
            return [computed + new - 1]
        return list(range(computed, computed + new))

    # --- steps ---------------------------------------------------------------------------------
    def copy(self, copies: Any) -> None:
        for pair in copies:
            self.memory[pair.dst] = dict(self.memory.get(pair.src, {}))

    def write(self, moves: list[tuple[Hashable, int]]) -> None:
        """Write what a step of the manager granted: (request, new tokens) in the order granted."""
        for group in range(len(self.setting.specs)):
            slots = self.manager.slot_mapping(group)
            assert slots.dtype == np.int64 and slots.flags.c_contiguous
            at = 0
            for name, new in moves:
                tenant = self.tenants[name]
                positions = self.write_positions(group, tenant, tenant.stored, new)
                if not positions and new == 1:
                    if at < len(slots) and slots[at] == -1:
                        at += 1  # a decode step: one entry a request, nothing to write
                    continue
                for position in positions:
                    self._write_one(group, tenant, position, int(slots[at]))
                    at += 1
            assert at == len(slots), f"group {group}: {len(slots)} slots for {at} positions"
        for name, new in moves:
            self.tenants[name].stored += new

    def write_drafts(self, guesses: Mapping[Hashable, Sequence[int]], sure: Sequence[int]) -> None:
        """A sure token and the guesses of each request, all written where the slots say."""
        for group, spec in enumerate(self.setting.specs):
            slots = self.manager.slot_mapping(group).tolist()
            for (name, drafted), token in zip(guesses.items(), sure, strict=True):
                mine, slots = slots[: 1 + len(drafted)], slots[1 + len(drafted) :]
                tenant = self.tenants[name]
                ahead = replace(tenant, tokens=[*tenant.tokens, token, *drafted])
                for position, slot in enumerate(mine, tenant.stored):
                    if self._is_of_encoder(group):
                        assert slot == -1
                    elif position < self.manager.limits.max_model_len:
                        self._write_one(group, ahead, position, slot)
                    else:
                        assert slot == -1 or spec.is_state
            assert not slots

    def accept(self, name: Hashable, sure: int, accepted: Sequence[int]) -> None:
        """The sure token and these drafts after it are stored."""
        self.manager.accept(name, len(accepted), accepted)
        self.tenants[name].tokens += [sure, *accepted]
        self.tenants[name].stored += 1 + len(accepted)

    def _write_one(self, group: int, tenant: Tenant, position: int, slot: int) -> None:
        spec = self.setting.specs[group]
        assert slot >= spec.block_size, "the null block is never written"
        block, offset = divmod(slot, spec.block_size)
        assert self.manager.pool.references([block])[0] == 1, f"block {block} has another reader"
        if spec.is_state:
            offset = 0
        else:
            assert offset == position % spec.block_size
        self.memory.setdefault(block, {})[offset] = self.value(group, tenant, position)

    # --- checks --------------------------------------------------------------------------------
    def check(self) -> None:
        self.check_values()
        self.check_owners()
        self.check_counts()
        self.poison_free_blocks()

    def check_values(self) -> None:
        for name, tenant in self.tenants.items():
            assert self.manager.num_tokens(name) == tenant.stored
            for group in range(len(self.setting.specs)):
                row = self.manager.block_table(group, [name])[0]
                for position in self.read_positions(group, tenant.stored, tenant):
                    index, offset = self.place(group, position)
                    found = self.memory.get(int(row[index]), {}).get(offset)
                    expected = self.value(group, tenant, position)
                    assert found == expected, f"{name} group {group} position {position}"

    def check_owners(self) -> None:
        """Every reference is one table entry; a block is in one group, at one index."""
        entries: Counter[int] = Counter()
        homes: dict[int, tuple[int, int]] = {}
        for group, spec in enumerate(self.setting.specs):
            for name in self.tenants:
                row = self.manager.block_table(group, [name])[0]
                held = [(i, int(block)) for i, block in enumerate(row) if block != -1]
                assert len(held) <= spec.peak_blocks(self.manager.limits)
                for index, block in held:
                    assert homes.setdefault(block, (group, index)) == (group, index)
                    entries[block] += 1
        every = range(1, self.manager.pool.num_blocks)
        references = self.manager.pool.references(list(every))
        assert {b: n for b, n in zip(every, references.tolist(), strict=True) if n} == entries

    def check_counts(self) -> None:
        stats = self.manager.pool.stats()
        references = self.manager.pool.references(range(1, self.manager.pool.num_blocks))
        assert stats.in_use == np.count_nonzero(references)
        assert stats.usable == stats.in_use + stats.cached_free + stats.empty_free
        assert self.manager.pool.num_free == stats.cached_free + stats.empty_free

    def poison_free_blocks(self) -> None:
        """What a free block without a key held may be overwritten at any time."""
        pool = self.manager.pool
        references = pool.references(range(pool.num_blocks))
        for block in list(self.memory):
            if not references[block] and pool.index.key_of(block) is None:
                self.memory[block] = {offset: POISON for offset in self.memory[block]}

    def snapshot(self) -> tuple[Any, ...]:
        """Everything that a refused call must leave alone."""
        pool = self.manager.pool
        return (
            pool.stats(),
            pool.references(range(pool.num_blocks)).tolist(),
            [table.ids.tolist() for table in self.manager.tables],
            [list(table.held) for table in self.manager.tables],
            [self.manager.slot_mapping(g).tolist() for g in range(len(self.setting.specs))],
            self.manager.live_requests,
            self.manager.swapped_requests,
            [self.manager.num_tokens(name) for name in self.manager.live_requests],
        )
