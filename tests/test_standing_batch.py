"""A standing batch leaves the blocks that `append` leaves, and nobody else names its members."""

from __future__ import annotations

from random import Random

import pytest
from block_models import SETTINGS, Setting, config_of

from kvpipe.blocks import BlockError, BlockManager, OutOfBlocks


class Pair:
    """One manager whose requests stand in a batch, and one that appends them step by step."""

    def __init__(self, setting: Setting, num_blocks: int, caching: bool) -> None:
        config, limits = config_of(setting.specs, num_blocks), setting.limits(max_model_len=64)
        self.standing, self.plain = (
            BlockManager(config, limits, max_num_requests=12, prefix_caching=caching)
            for _ in range(2)
        )
        self.batch = self.standing.standing_batch()
        self.members: list[int] = []  # in their order
        self.loose: list[int] = []
        self.lengths: dict[int, int] = {}

    def add(self, name: int, prompt: list[int]) -> None:
        for manager in (self.standing, self.plain):
            hit = manager.add_request(name, prompt)
            try:
                for start in range(hit, len(prompt), 7):
                    manager.allocate(name, min(7, len(prompt) - start))
            except OutOfBlocks:
                manager.free(name)
                continue
        if name in self.plain.live_requests:
            self.loose.append(name)
            self.lengths[name] = len(prompt)

    def step(self) -> bool:
        """Whether there was room, which both must say."""
        try:
            self.plain.append(self.members, [50 + name for name in self.members])
        except OutOfBlocks:
            with pytest.raises(OutOfBlocks):
                self.batch.step()
            return False
        self.batch.step()
        for name in self.members:
            self.lengths[name] += 1
        return True

    def free(self, name: int) -> None:
        if name in self.members:
            self.members.remove(name)
            self.batch.leave(name)
        else:
            self.loose.remove(name)
        self.standing.free(name)
        self.plain.free(name)
        del self.lengths[name]

    def agree(self) -> None:
        assert set(self.standing.live_requests) == set(self.plain.live_requests)
        assert self.standing.pool.stats() == self.plain.pool.stats()
        for mine, theirs in zip(self.standing.tables, self.plain.tables, strict=True):
            assert mine.ids.tolist() == theirs.ids.tolist()
            assert mine.held == theirs.held

    def agree_when_none_stands(self) -> None:
        for name in self.members:
            self.batch.leave(name)
        names = list(self.lengths)
        assert [self.standing.num_tokens(name) for name in names] == list(self.lengths.values())
        for mine, theirs in zip(self.standing.tables, self.plain.tables, strict=True):
            assert mine.next_slot.tolist() == theirs.next_slot.tolist()
        for name in self.members:
            self.batch.join(name, 50 + name, name)


def random_life(pair: Pair, random: Random, steps: int) -> int:
    """How often the pool ran dry."""
    names, dry = iter(range(10_000)), 0
    for _ in range(steps):
        for manager in (pair.standing, pair.plain):
            manager.begin_step()
        for name in pair.loose:
            pair.batch.join(name, 50 + name, name)
        pair.members += pair.loose
        pair.loose = []
        while pair.members and not pair.step():
            dry += 1
            pair.free(pair.members[-1])
        for name in [n for n in pair.members if pair.lengths[n] > 60 or random.random() < 0.02]:
            pair.free(name)
        if len(pair.lengths) < 11 and random.random() < 0.3:
            pair.add(next(names), random.choices(range(2), k=random.randint(1, 30)))
        if random.random() < 0.05:
            pair.agree_when_none_stands()
        pair.agree()
    return dry


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_a_standing_batch_leaves_the_blocks_that_appending_leaves(
    setting: Setting, caching: bool
) -> None:
    random_life(Pair(setting, 400, caching), Random(1), 60)
    assert random_life(Pair(setting, 28, caching), Random(2), 60)


def test_a_member_is_named_by_nobody_else_until_it_leaves() -> None:
    pair = Pair(SETTINGS[0], 40, False)
    pair.add(1, [0] * 5)
    manager, batch = pair.standing, pair.batch
    batch.join(1, 0, 0)
    for wrong in (
        lambda: manager.allocate(1, 1),
        lambda: manager.append([1], [0]),
        lambda: manager.free(1),
        lambda: manager.fork(1, 2),
        lambda: batch.join(1, 0, 0),
    ):
        with pytest.raises(BlockError, match="request 1 decodes in a standing batch: let it leave"):
            wrong()
    with pytest.raises(BlockError, match="request 1 is live already"):
        manager.add_request(1, [0])
    batch.step()
    batch.leave(1)
    assert manager.num_tokens(1) == 6
    with pytest.raises(BlockError, match="request 1 is not in the batch"):
        batch.leave(1)
