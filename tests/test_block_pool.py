"""The pool against a list that remembers everything, and every wrong call."""

from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpipe.blocks import BlockError, BlockPool, OutOfBlocks
from kvpipe.blocks.checks import Ids
from kvpipe.blocks.eviction import EvictionOrder


def test_no_block_is_handed_out_twice_and_the_null_block_never() -> None:
    pool = BlockPool(100)
    taken = np.concatenate([pool.allocate(n) for n in (1, 16, 80, 2)])
    assert sorted(taken.tolist()) == list(range(1, 100))
    with pytest.raises(OutOfBlocks, match="1 block needed, 0 free: short by 1"):
        pool.allocate(1)


def test_a_freed_block_can_be_had_again() -> None:
    pool = BlockPool(4)
    first = pool.allocate(3)
    pool.free(first[1:])
    assert sorted(pool.allocate(2).tolist()) == sorted(first[1:].tolist())


def test_a_shared_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(4)
    block = pool.allocate(1)
    pool.share(block)
    pool.free(block)
    assert pool.num_free == 2 and pool.references(block)[0] == 1
    pool.free(block)
    assert pool.num_free == 3


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0], "block 0 is the null block: it has no owner"),
        ([-1], "block -1 is not one of this pool's 1..9"),
        ([-10], "block -10 is not one of"),
        ([10], "block 10 is not one of"),
        ([10**6], "block 1000000 is not one of"),
        ([1, -8], "block -8 is not one of"),  # numpy would take it for block 2
        ([1, 2, 1], "block 1 is named twice in one call"),
        ([5], "block 5 is not in use: it was freed twice, or never ours"),
        ([1, 2, 5], "block 5 is not in use"),
        ([1.5], "block ids are integers, got float64"),
    ],
)
def test_a_wrong_free_says_so_and_changes_nothing(
    ids: list[int], message: str, keyed: bool
) -> None:
    pool = BlockPool(10)
    held = pool.allocate(4)
    if keyed:
        pool.register(held[:1], [b"key"])
    before = pool.stats(), pool.references(range(10)).tolist()
    with pytest.raises(BlockError, match=message):
        pool.free(np.array(ids))
    assert (pool.stats(), pool.references(range(10)).tolist()) == before
    pool.free(held)
    assert pool.num_free == 9


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 2], "block 2 is named twice"),
        ([1, -8], "block -8 is not one of this pool's"),  # numpy would take it for block 2
        ([1, 10], "block 10 is not one of this pool's"),
    ],
)
def test_a_wrong_free_of_cached_blocks_says_so_and_changes_nothing(
    ids: list[int], message: str
) -> None:
    pool = BlockPool(10)
    held = pool.allocate(3)
    pool.register(held, [b"a", b"b", b"c"])
    before = pool.stats(), pool.references(range(10)).tolist()
    with pytest.raises(BlockError, match=message):
        pool.free(np.array(ids))
    assert (pool.stats(), pool.references(range(10)).tolist()) == before
    pool.free(held)
    assert pool.allocate(9).tolist()[-3:] == [3, 2, 1]


@pytest.mark.parametrize("num", [3, 256, 257, 700])
@pytest.mark.parametrize("keyed", [False, True])
def test_of_many_blocks_one_named_twice_or_foreign_is_noticed(num: int, keyed: bool) -> None:
    pool = BlockPool(num + 1)
    ids = pool.allocate(num)
    if keyed:
        pool.register(ids, [b"%d" % i for i in range(num)])
    for wrong in (ids[0], 0, -1, num + 1):
        with pytest.raises(BlockError):
            pool.free(np.array([*ids[:-1], wrong]))
        assert pool.num_free == 0 and (pool.references(ids) == 1).all()
    pool.free(ids)
    assert pool.num_free == num and pool.num_cached_free == num * keyed


def test_a_double_free_is_an_error() -> None:
    pool = BlockPool(10)
    blocks = pool.allocate(3)
    pool.free(blocks)
    with pytest.raises(BlockError, match="is not in use: it was freed twice"):
        pool.free(blocks)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool: pool.share([5]), "block 5 is free and has no content: it cannot be shared"),
        (lambda pool: pool.share([1, 1]), "block 1 is named twice"),
        (lambda pool: pool.register([5], [b"k"]), "block 5 is not in use: it holds nothing"),
        (lambda pool: pool.register([2], [b"k"]), "block 2 already has a key"),
        (lambda pool: pool.allocate(-1), "cannot allocate -1 blocks"),
    ],
)
def test_other_wrong_calls_say_so_and_change_nothing(call: object, message: str) -> None:
    assert callable(call)
    pool = BlockPool(10)
    pool.register(pool.allocate(4)[1:2], [b"k2"])
    before = pool.stats(), pool.references(range(10)).tolist()
    with pytest.raises(BlockError, match=message):
        call(pool)
    assert (pool.stats(), pool.references(range(10)).tolist()) == before


def test_a_pool_needs_its_null_block() -> None:
    with pytest.raises(BlockError, match="at least the null block, got 0 blocks"):
        BlockPool(0)


def test_the_tail_of_the_oldest_chain_is_evicted_first() -> None:
    pool = BlockPool(7)
    old, new = pool.allocate(3), pool.allocate(3)
    pool.register(old, [b"a0", b"a1", b"a2"])
    pool.register(new, [b"b0", b"b1", b"b2"])
    pool.free(old)
    pool.free(new)
    assert pool.stats().cached_free == 6
    assert pool.allocate(4).tolist() == [*old[::-1].tolist(), new[2]]
    assert pool.lookup([b"a0", b"b0", b"b1", b"b2"]) == [None, new[0], new[1], None]
    assert pool.stats().evicted == 4


def test_blocks_without_content_are_handed_out_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached, plain = pool.allocate(1), pool.allocate(1)
    pool.register(cached, [b"k"])
    pool.free(cached)
    pool.free(plain)
    assert cached[0] not in pool.allocate(2)
    assert pool.lookup([b"k"]) == [cached[0]]


def test_a_hit_takes_a_block_out_of_the_eviction_order() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.register(blocks, [b"a", b"b"])
    pool.free(blocks)
    pool.share(blocks[1:])  # a hit on the one that would be evicted first
    assert pool.allocate(1).tolist() == [blocks[0]]
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)


def keyed_pool(num_blocks: int) -> tuple[BlockPool, Ids, Ids]:
    """A pool in which two blocks hold the content `k`; the first is the one that is found."""
    pool = BlockPool(num_blocks)
    first, second = pool.allocate(1), pool.allocate(1)
    assert pool.register(first, [b"k"]) == 1
    assert pool.register(second, [b"k"]) == 0
    return pool, first, second


def test_a_second_copy_is_empty_once_it_is_freed_before_the_first() -> None:
    pool, first, second = keyed_pool(3)
    pool.free(second)
    assert pool.lookup([b"k"]) == [first[0]]
    assert (pool.stats().cached_free, pool.stats().empty_free) == (0, 1)


def test_a_second_copy_is_found_once_the_first_is_freed() -> None:
    pool, first, second = keyed_pool(3)
    pool.free(first)
    assert pool.lookup([b"k"]) == [second[0]]
    assert (pool.stats().cached_free, pool.stats().empty_free) == (0, 1)
    pool.free(second)
    assert pool.lookup([b"k"]) == [second[0]] and pool.stats().cached_free == 1
    assert pool.allocate(2).tolist() == [first[0], second[0]]
    assert pool.lookup([b"k"]) == [None]


def test_the_last_of_copies_that_are_freed_together_is_the_one_that_stays() -> None:
    pool, first, second = keyed_pool(3)
    pool.free(np.concatenate((first, second)))
    assert (pool.stats().cached_free, pool.stats().empty_free) == (1, 1)
    assert pool.lookup([b"k"])[0] in (first[0], second[0])


def test_a_newer_copy_replaces_one_that_nobody_holds() -> None:
    pool = BlockPool(4)
    old = pool.allocate(1)
    pool.register(old, [b"k"])
    pool.free(old)
    new = pool.allocate(1)
    assert pool.register(new, [b"k"]) == 1
    assert pool.lookup([b"k"]) == [new[0]]
    assert (pool.stats().cached_free, pool.stats().empty_free) == (0, 2)
    assert pool.stats().evicted == 0, "its content is not lost"


def test_copies_are_forgotten_with_the_rest() -> None:
    pool, first, second = keyed_pool(3)
    assert pool.forget_content() == 1
    pool.free(first)
    pool.free(second)
    assert pool.stats().empty_free == 2 and pool.lookup([b"k"]) == [None]


def test_forgotten_content_is_no_hit_and_loses_no_block() -> None:
    pool = BlockPool(5)
    held, idle = pool.allocate(2), pool.allocate(2)
    pool.register(held, [b"a", b"b"])
    pool.register(idle, [b"c", b"d"])
    pool.free(idle)
    assert pool.forget_content() == 4
    assert pool.lookup([b"a", b"c"]) == [None, None]
    assert pool.num_free == 2 and pool.stats().cached_free == 0
    pool.free(held)
    assert sorted(pool.allocate(4).tolist()) == [1, 2, 3, 4]


def test_reclaimable_counts_blocks_that_lose_their_last_reference() -> None:
    pool = BlockPool(5)
    once, twice = pool.allocate(2)
    pool.share([twice])
    assert pool.reclaimable([]) == pool.reclaimable([twice]) == 0
    assert pool.reclaimable([once]) == pool.reclaimable([twice, twice]) == 1
    assert pool.reclaimable([twice, once, twice]) == 2


def test_statistics_count_what_happened() -> None:
    pool = BlockPool(10)
    a, b = pool.allocate(4), pool.allocate(3)
    pool.free(a)
    pool.share(b[:1])
    stats = pool.stats()
    assert (stats.usable, stats.in_use, stats.empty_free) == (9, 3, 6)
    assert (stats.allocated, stats.freed, stats.shared, stats.peak_in_use) == (7, 4, 1, 7)


def test_ten_million_blocks_take_under_forty_bytes_each() -> None:
    """Also when every block was cached and freed (the index of keys, which grows with what is
    cached, is no array of the pool)."""
    import tracemalloc

    num = 10_000_000
    tracemalloc.start()
    pool = BlockPool(num)
    for _ in range(100):
        pool.allocate(1000)
    pool._cached.append(np.arange(1, 1001))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pool.nbytes / num < 23
    assert peak / num < 40


operations = st.lists(
    st.tuples(st.sampled_from(["take", "give", "share", "key", "hit"]), st.integers(0, 7)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(operations=operations, size=st.integers(1, 12))
def test_the_pool_agrees_with_a_list_that_remembers_everything(
    operations: list[tuple[str, int]], size: int
) -> None:
    pool = BlockPool(size + 1)
    empty, cached = set(range(1, size + 1)), OrderedDict[int, bytes]()
    references: dict[int, int] = {}
    key_of: dict[int, bytes] = {}
    for what, n in operations:
        held = sorted(references)
        if what == "take" and n <= len(empty) + len(cached):
            got = pool.allocate(n).tolist()
            plain = got[: min(n, len(empty))]
            assert set(plain) <= empty and len(set(got)) == n
            evicted = [cached.popitem(last=False)[0] for _ in range(n - len(plain))]
            assert got[len(plain) :] == evicted
            for block in evicted:
                del key_of[block]
            empty -= set(plain)
            references |= dict.fromkeys(got, 1)
        elif what == "take":
            with pytest.raises(OutOfBlocks):
                pool.allocate(n)
        elif what == "give" and held:
            chain = held[: n + 1]
            pool.free(np.array(chain))
            for block in reversed(chain):
                references[block] -= 1
                if not references[block]:
                    del references[block]
                    if block not in key_of:
                        empty.add(block)
                    elif list(key_of.values()).count(key_of[block]) > 1:
                        empty.add(block)  # another block in use holds the same
                        del key_of[block]
                    else:
                        cached[block] = key_of[block]
        elif what == "share" and held:
            pool.share(held[:n] or held[:1])
            for block in held[:n] or held[:1]:
                references[block] += 1
        elif what == "key" and held and (target := held[n % len(held)]) not in key_of:
            key = b"%d" % (n % 3)
            pool.register([target], [key])
            for block in [block for block, other in cached.items() if other == key]:
                del cached[block], key_of[block]  # nobody holds it: once is enough
                empty.add(block)
            key_of[target] = key
        elif what == "hit" and cached:
            block = list(cached)[n % len(cached)]
            assert pool.lookup([cached.pop(block)]) == [block]
            pool.share([block])
            references[block] = 1
        assert pool.num_free == len(empty) + len(cached)
        assert {b: r for b, r in enumerate(pool.references(range(size + 1))) if r} == references
        for key in (b"0", b"1", b"2"):
            (found,) = pool.lookup([key])
            assert found is None if key not in key_of.values() else key_of[found] == key


def test_the_eviction_order_is_that_of_an_ordered_dict() -> None:
    """Many more appends than the ring is long, so that it is compacted while entries are stale."""
    size, draw = 20, random.Random(0)
    order, model = EvictionOrder(size), OrderedDict[int, None]()
    for _ in range(3000):
        absent, n = [i for i in range(size) if i not in model], draw.randint(1, 9)
        what = draw.choice(["append", "append", "remove", "pop"])
        if what == "append" and absent:
            order.append(np.array(absent[:n]))
            model.update(dict.fromkeys(absent[:n]))
        elif what == "remove" and model:
            middle = draw.choice(list(model))
            order.remove(np.array([middle]))
            del model[middle]
        elif what == "pop" and model:
            taken = order.pop(min(n, len(model)))
            assert taken.tolist() == [model.popitem(last=False)[0] for _ in taken]
        assert order.ids().tolist() == list(model) and order.count == len(model)
