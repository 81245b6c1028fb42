"""Serving with scratch, byte by byte: what every layer of every group does in a step, one after the
other, over one arena; and what each query finds there.

Slow and obvious: a cell of the arena is one unit of a `GroupScratch`, and remembers which layer of
which request wrote which position into it. Nothing here asks what survives a step, or where a
window begins, but `visible`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec
from kvpipe.cache.scratch import GroupScratch
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.runs import indices

Value = tuple[object, ...]
Granted = tuple[Hashable, int, int]  # request, tokens stored before, new ones


def arena_of(
    groups: list[tuple[KVCacheSpec, int, int]], num_blocks: int, slot: int, spare: bool = True
) -> KVCacheConfig:
    """groups: (spec, layers, units a page) each. slot: units of a slot; spare False: no scratch."""
    made, scratch = [], []
    for number, (spec, layers, page) in enumerate(groups):
        assert layers * page <= slot
        names = tuple(f"g{number}.{i}" for i in range(layers))
        made.append(KVCacheGroupSpec(layer_names=names, spec=spec))
        scratch.append(
            GroupScratch(
                pages_per_slot=slot // page,
                unit_bytes=1,
                slot_units=slot,
                pitch_units=page,
                shifts=tuple((name, i * page) for i, name in enumerate(names)),
            )
            if spec.frees_tokens
            else None
        )
    return KVCacheConfig(
        num_blocks=num_blocks,
        tensors=(),
        groups=tuple(made),
        bytes_per_block=slot,
        scratch=tuple(scratch) if spare else (),
    )


@dataclass
class Served:
    tokens: list[int]
    stored: int = 0


@dataclass
class Arena:
    """memory[unit][token of the block]: what was written last there."""

    manager: BlockManager
    limits: RequestLimits
    memory: dict[int, dict[int, Value]] = field(default_factory=dict)
    live: dict[Hashable, Served] = field(default_factory=dict)
    queries: int = 0
    most_held: int = 0
    refused: int = 0
    last_decoded: bool = False

    def add(self, name: Hashable, num_tokens: int) -> None:
        self.manager.add_request(name)
        self.live[name] = Served(list(range(num_tokens)))

    def step(
        self,
        chunks: dict[Hashable, int] | list[tuple[Hashable, int]],
        decoded: list[Hashable],
        drafts: int = 0,
    ) -> None:
        """Chunks of prompts, then one token (and drafts after it) of each of `decoded`: granted,
        then layer after layer."""
        self.manager.begin_step()
        granted: list[Granted] = []
        stored = {name: served.stored for name, served in self.live.items()}
        for name, new in chunks.items() if isinstance(chunks, dict) else chunks:
            if self.granted(lambda n=name, new=new: self.manager.allocate(n, new)):  # type: ignore[misc]
                granted.append((name, stored[name], new))
                stored[name] += new
        self.last_decoded = bool(decoded) and self.granted(
            lambda: self.manager.append(decoded, None, drafts)
        )
        if self.last_decoded:
            granted += [(name, stored[name], 1 + drafts) for name in decoded]
            stored |= {name: stored[name] + 1 for name in decoded}
        held = self.manager.pool.num_blocks - 1 - self.manager.pool.num_free
        self.most_held = max(self.most_held, held)
        for group, spec in enumerate(self.manager.config.groups):
            for layer in spec.layer_names:
                self.run_layer(group, layer, granted)
        for name, served in self.live.items():
            served.stored = stored[name]
        self.manager.end_step()

    def granted(self, grant: Callable[[], tuple[object, ...]]) -> bool:
        """Whether there was room; where there was none, nothing has changed."""
        before = self.manager.pool.num_free, list(self.manager.scratch.slots)
        try:
            self.copy(grant())
        except OutOfBlocks:
            assert before == (self.manager.pool.num_free, self.manager.scratch.slots)
            self.refused += 1
            return False
        return True

    def copy(self, copies: tuple[object, ...]) -> None:
        """A forked block's first write: all its bytes, before any layer runs."""
        for pair in copies:
            units, group = self._units(pair.group)  # type: ignore[attr-defined]
            for unit in range(units):
                source = self.memory.get(pair.src * units + unit, {})  # type: ignore[attr-defined]
                self.memory[pair.dst * units + unit] = dict(source)  # type: ignore[attr-defined]

    def _units(self, group: int) -> tuple[int, GroupScratch | None]:
        config = self.manager.config
        return config.bytes_per_block, (config.scratch or (None,) * len(config.groups))[group]

    # --- one layer -------------------------------------------------------------------------------
    def run_layer(self, group: int, layer: str, granted: list[Granted]) -> None:
        manager, size = self.manager, self.manager.config.groups[group].spec.block_size
        units, scratch = self._units(group)
        names = list(dict.fromkeys(name for name, *_ in granted))
        start = self._own_page(group, layer)
        if scratch is not None and manager.scratch.used_by(group):
            shift = scratch.shift(layer)
            assert shift == start
            sources, targets = manager.scratch.moves(group)
            for source, target in zip(sources, targets.of_layer(shift), strict=True):
                self.memory[start + target] = dict(self.memory.get(start + source, {}))
            slots = manager.step_slots(group).of_layer(shift).tolist()
            table = manager.step_table(group, names).of_layer(shift).tolist()
        else:
            own = manager.slot_mapping(group).tolist()
            slots = [-1 if s < 0 else s // size * units * size + s % size for s in own]
            ids = manager.block_table(group, names).tolist()
            table = [[-1 if i <= 0 else i * units for i in row] for row in ids]
        at = 0
        for name, first, new in granted:
            for position in range(first, first + new):
                if slots[at] >= 0:
                    cell = self.memory.setdefault(start + slots[at] // size, {})
                    cell[slots[at] % size] = (layer, name, position)
                at += 1
        assert at == len(slots)
        for name, first, new in granted:
            for query in range(first, first + new):
                self.reads(group, layer, start, table[names.index(name)], name, query)

    def reads(
        self, group: int, layer: str, start: int, row: list[int], name: Hashable, query: int
    ) -> None:
        spec = self.manager.config.groups[group].spec
        for position in indices(spec.visible(query, self.limits)):
            entry = row[position // spec.block_size]
            found = self.memory.get(start + entry, {}).get(position % spec.block_size)
            said = (layer, found[1], position) if found else None
            asked = f"{spec.kind} {layer}: token {query} of {name} reads {position}"
            assert entry >= 0 and found == said and self._is_of(found, name), f"{asked}: {found}"
            self.queries += 1

    def _is_of(self, found: Value | None, name: Hashable) -> bool:
        """Its own, or its parent's: a fork's name is a tuple that ends in its parent's."""
        owner: Hashable = name
        while found is not None and found[1] != owner:
            if not isinstance(owner, tuple):
                return False
            owner = owner[1]
        return found is not None

    def _own_page(self, group: int, layer: str) -> int:
        names = self.manager.config.groups[group].layer_names
        _, scratch = self._units(group)
        page = scratch.pitch_units if scratch else self.manager.config.bytes_per_block // len(names)
        return names.index(layer) * page

    def fork(self, parent: Hashable, child: Hashable) -> None:
        self.manager.fork(parent, child)
        self.live[child] = replace(self.live[parent])

    def swap(self, name: Hashable) -> None:
        """Out to somewhere else, and in again at other blocks; gone where there is no room for
        those that it shared."""
        units, served = self.manager.config.bytes_per_block, self.live.pop(name)

        def save(group: int, ids: Any) -> list[list[dict[int, Value]]]:
            return [[dict(self.memory.get(b * units + u, {})) for u in range(units)] for b in ids]

        def restore(group: int, ids: Any, packed: list[list[dict[int, Value]]]) -> None:
            for block, cells in zip(ids, packed, strict=True):
                for unit, cell in enumerate(cells):
                    self.memory[block * units + unit] = cell

        self.manager.swap_out(name, save)
        try:
            self.manager.swap_in(name, restore)
        except OutOfBlocks:
            return
        self.live[name] = served

    def accept(self, name: Hashable, num: int) -> None:
        self.manager.accept(name, num)
        self.live[name].stored += num

    def free(self, name: Hashable) -> None:
        self.manager.free(name)
        del self.live[name]
