"""Keys of prefixes, and the longest hit across groups of different kinds and block sizes."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from block_models import Setting, chunked, config_of, cross, full, mamba, sliding

from kvpipe.blocks import BlockError, BlockManager, MediaRange, PrefixIdentity
from kvpipe.blocks.hashing import PrefixChain, canonical
from kvpipe.simulation.named_chain import PrefixNames
from kvpipe.simulation.traces.base import TraceRequest
from kvpipe.simulation.traffic import Traffic
from kvpipe.specs.base import KVCacheSpec


def manager_of(specs: list[KVCacheSpec], num_blocks: int = 200, mode: str = "none") -> BlockManager:
    setting = Setting("", specs, mode, max_encoder_tokens=8)
    limits = setting.limits(max_model_len=64, max_num_batched_tokens=64)
    return BlockManager(config_of(specs, num_blocks), limits, prefix_caching=True)


def store(manager: BlockManager, name: str, tokens: list[int], **identity: Any) -> int:
    """Serve a prompt in a step of its own and finish; how much of it was cached."""
    manager.begin_step()
    hit = manager.add_request(name, tokens, identity=PrefixIdentity(**identity))
    manager.allocate(name, len(tokens) - hit)
    manager.free(name)
    return hit


def test_the_key_is_a_chain_of_sha256_over_canonical_bytes() -> None:
    chain = PrefixChain(2, PrefixIdentity(salt="s", extra=("lora", 7)))
    chain.extend([1, 2, 3])
    chain.extend(np.array([70000]))
    salt = b"s" + (1).to_bytes(8, "little") + b"s"
    version = b"s" + (16).to_bytes(8, "little") + b"kvpipe.prefix.v1"
    head = b"l" + (len(version + salt)).to_bytes(8, "little") + version + salt
    extra = b"s" + (4).to_bytes(8, "little") + b"lora" + b"i" + (1).to_bytes(8, "little") + b"7"
    root = sha256(head + b"l" + len(extra).to_bytes(8, "little") + extra).digest()
    first = sha256(root + bytes([1, 0, 0, 0, 2, 0, 0, 0])).digest()
    second = sha256(first + bytes([3, 0, 0, 0, 0x70, 0x11, 1, 0])).digest()
    assert chain.keys == [first, second]


def test_tokens_give_the_same_keys_in_whatever_pieces_they_come() -> None:
    draw = random.Random(1)
    tokens = [draw.randrange(1 << 32) for _ in range(50)]
    whole, pieces = PrefixChain(3), PrefixChain(3)
    whole.extend(tokens)
    at = 0
    while at < 50:
        step = draw.randint(0, 7)
        pieces.extend(tokens[at : at + step])
        at += step
    assert pieces.keys == whole.keys and len(whole.keys) == 16


def test_no_two_values_have_the_same_canonical_bytes() -> None:
    values: list[Any] = [None, True, False, 1, 0, -1, 11, "1", b"1", "", b"", (), (1,), (1, 1)]
    values += [((1,), 1), (1, (1,)), ("a", "b"), ("ab",), ("a", b"b"), (None,), ("", "")]
    assert len({canonical(value) for value in values}) == len(values)
    with pytest.raises(BlockError, match="an extra key is None, bool, int, str or bytes, got 1.5"):
        canonical(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [[-1], [1 << 32], [1.5], ["a"]])
def test_a_token_id_that_does_not_fit_is_an_error(tokens: list[Any]) -> None:
    manager = manager_of([full(4)])
    with pytest.raises(BlockError, match="token ids are integers from 0 to 4294967295"):
        manager.add_request("r", tokens)
    assert manager.live_requests == ()


def test_a_prompt_hits_its_own_prefix_but_always_computes_a_token() -> None:
    manager = manager_of([full(4)])
    assert store(manager, "a", list(range(16))) == 0
    assert store(manager, "b", list(range(16))) == 12  # 16 would leave nothing to compute
    assert store(manager, "c", list(range(17))) == 16
    assert store(manager, "d", [*range(11), 99]) == 8
    stats = manager.prefix_stats()
    assert (stats.queried_tokens, stats.hit_tokens) == (61, 36)


@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("shared", [0, 1, 31, 32, 33, 127, 128, 129, 200])
def test_a_hit_is_as_long_as_what_is_shared_however_much_that_is(shared: int, window: int) -> None:
    specs = [full(4), *([sliding(4, window)] if window else [])]
    limits = Setting("", specs, "none").limits(max_model_len=1000, max_num_batched_tokens=1000)
    manager = BlockManager(config_of(specs, 1000), limits, prefix_caching=True)
    store(manager, "a", list(range(900)))
    assert store(manager, "b", [*range(4 * shared), *[5] * (900 - 4 * shared)]) == 4 * shared


def test_slots_are_those_that_were_granted_though_the_row_has_changed_since() -> None:
    asked, late = manager_of([full(4)]), manager_of([full(4)])
    for manager in (asked, late):
        manager.begin_step()
        manager.add_request("a", list(range(30)))
        manager.allocate("a", 30)
        if manager is asked:
            manager.slot_mapping(0)
        manager.free("a")
        manager.add_request("b", list(range(40, 60)))
        manager.allocate("b", 20)
    assert late.slot_mapping(0).tolist() == asked.slot_mapping(0).tolist()
    assert late.slot_mapping(0).min() > 0


@pytest.mark.parametrize("step", [1, 3])
def test_keys_of_a_trace_are_equal_exactly_where_all_ids_before_them_are(step: int) -> None:
    """Beside what each stands for, written out: the ids before it, or its owner; group and place.
    Chains of the same ids in another order, of another owner, and with none at all."""
    names, meanings = PrefixNames(4, 2), {}
    for number, ids in enumerate([(7, 8, 9), (7, 8, 9), (7, 9, 8), (8, 7, 9), (7, 8, 4), (), ()]):
        request = TraceRequest(
            arrival_s=0, prompt_tokens=90, output_tokens=1, prefix_ids=ids, prefix_block=32
        )
        chain = names.chain(Traffic(number, request, 100, 100))
        named = 22 if ids else 0
        for group in (0, 1):
            plain = [(group, i, ids[: i // 8 + 1] if i < named else number) for i in range(25)]
            for first in range(25):
                for stop in range(first, 26):
                    granules = range(first, stop, step)
                    keys = list(chain.keys_at(granules, group))
                    assert len(keys) == len(granules)
                    for key, i in zip(keys, granules, strict=True):
                        assert meanings.setdefault(key, plain[i]) == plain[i]
    assert len(set(map(str, meanings.values()))) == len(meanings)


def test_a_different_first_token_shares_nothing() -> None:
    manager = manager_of([full(4)])
    store(manager, "a", list(range(16)))
    assert store(manager, "b", [9, *range(1, 16)]) == 0


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        ({"salt": "x"}, {"salt": "y"}, 0),
        ({"salt": "x"}, {"salt": "x"}, 12),
        ({"extra": ("lora a",)}, {"extra": ("lora b",)}, 0),
        ({"extra": (1,)}, {"extra": ("1",)}, 0),
        ({"extra": ("a",)}, {"salt": "a"}, 0),
        # The image begins in the second block of four tokens: the first is shared.
        ({"media": (MediaRange(start=5, stop=9, key=b"cat"),)}, {}, 4),
        (
            {"media": (MediaRange(start=5, stop=9, key=b"cat"),)},
            {"media": (MediaRange(start=5, stop=9, key=b"dog"),)},
            4,
        ),
        (
            {"media": (MediaRange(start=5, stop=9, key=b"cat"),)},
            {"media": (MediaRange(start=6, stop=9, key=b"cat"),)},
            4,
        ),
        (
            {"media": (MediaRange(start=5, stop=9, key=b"cat"),)},
            {"media": (MediaRange(start=5, stop=9, key=b"cat"),)},
            12,
        ),
    ],
)
def test_salt_adapters_and_media_keep_prefixes_apart(
    first: dict[str, Any], second: dict[str, Any], hit: int
) -> None:
    manager = manager_of([full(4)])
    store(manager, "a", list(range(16)), **first)
    assert store(manager, "b", list(range(16)), **second) == hit


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    manager = manager_of([full(4)])
    manager.add_request("a", [1, 2, 3])
    manager.allocate("a", 3)
    for token in (4, 5, 6, 7, 8, 9):
        manager.append(["a"], [token])
    manager.free("a")
    assert manager.add_request("b", list(range(1, 20))) == 8


def test_a_request_still_running_shares_its_blocks() -> None:
    manager = manager_of([full(4)])
    manager.add_request("a", list(range(10)))
    manager.allocate("a", 10)
    assert manager.add_request("b", list(range(10))) == 8
    assert manager.block_ids("a", 0)[:2].tolist() == manager.block_ids("b", 0).tolist()
    manager.free("a")
    assert manager.pool.references(manager.block_ids("b", 0)).tolist() == [1, 1]


GROUPS = [
    ([full(4), sliding(4, 6)], "none"),
    ([full(4), sliding(6, 5)], "none"),
    ([sliding(2, 3), chunked(6, 12), full(4)], "none"),
    ([full(4), mamba(8, "align")], "align"),
    ([mamba(4, "all"), sliding(2, 5)], "all"),
]


@pytest.mark.parametrize(("specs", "mode"), GROUPS, ids=lambda v: str(len(v)))
def test_the_hit_is_the_longest_prefix_that_every_group_can_serve(
    specs: list[KVCacheSpec], mode: str
) -> None:
    """Against trying every length, with random holes punched into what is cached."""
    draw = random.Random(len(specs))
    hits = set()
    for _ in range(150):
        manager = manager_of(specs, mode=mode)
        tokens = [draw.randrange(2) for _ in range(40)]
        manager.add_request("a", tokens)
        for chunk in (draw.choice([8, 16, 24]), 8, 8):
            stored = manager.num_tokens("a")
            manager.allocate("a", min(chunk, 40 - stored))
        manager.free("a")
        manager.begin_step()
        cached = manager.pool._cached.ids()
        gone = np.array([b for b in cached if draw.random() < 0.15], np.intp)
        if len(gone):
            manager.pool.index.remove(gone.tolist())
            manager.pool._cached.remove(gone)
            manager.pool._state[gone] = 0
        chain = PrefixChain(manager.granule)
        chain.extend(tokens)
        expected = longest_by_trial(manager, specs, chain, 39)
        assert manager.add_request("b", tokens) == expected
        hits.add(expected)
    assert len(hits) > 2, "the trial is not about one length only"


def longest_by_trial(
    manager: BlockManager, specs: list[KVCacheSpec], chain: PrefixChain, most: int
) -> int:
    for length in range(most, 0, -1):
        if all(
            length % spec.block_size == 0
            and spec.hit_length(cached_flags(manager, group, spec, chain, length)) == length
            for group, spec in enumerate(specs)
        ):
            return length
    return 0


def cached_flags(
    manager: BlockManager, group: int, spec: KVCacheSpec, chain: PrefixChain, length: int
) -> list[bool]:
    ratio = spec.block_size // manager.granule
    suffix = group.to_bytes(2, "little") if group else b""
    keys = [chain.keys[(i + 1) * ratio - 1] + suffix for i in range(length // spec.block_size)]
    return [block is not None for block in manager.pool.lookup(keys)]


@pytest.mark.parametrize(
    ("specs", "mode"),
    [
        ([full(4), mamba(64, "none")], "none"),
        ([full(4), mamba(1, "none")], "none"),
        ([full(4), cross(4)], "none"),
    ],
)
def test_a_group_that_cannot_serve_a_prefix_switches_prefix_caching_off(
    specs: list[KVCacheSpec], mode: str
) -> None:
    manager = manager_of(specs, mode=mode)
    assert not manager.prefix_caching
    store(manager, "a", list(range(16)))
    assert store(manager, "b", list(range(16))) == 0 and manager.pool.stats().keyed == 0


def test_an_align_state_is_cached_only_where_a_step_ended_at_a_boundary() -> None:
    manager = manager_of([mamba(4, "align")], mode="align")
    manager.add_request("a", list(range(20)))
    for new in (6, 6, 8):  # ends at 6, 12 and 20 tokens: 8 and 16 are passed over
        manager.allocate("a", new)
    manager.free("a")
    assert manager.pool.stats().keyed == 2
    manager.begin_step()
    assert manager.add_request("b", list(range(20))) == 12
    assert manager.add_request("c", list(range(12))) == 0


@pytest.mark.parametrize("mode", ["align", "all"])
def test_a_state_that_the_same_step_still_computes_is_no_hit(mode: str) -> None:
    """The scan of the second request would start before that of the first has written."""
    manager = manager_of([mamba(8, mode)], mode=mode)
    manager.begin_step()
    manager.add_request("a", list(range(40)))
    manager.allocate("a", 32)
    assert manager.add_request("b", list(range(40))) == 0
    manager.free("b")
    manager.begin_step()
    assert manager.add_request("b", list(range(40))) == 32


def test_a_state_of_an_earlier_step_is_a_hit_while_the_next_one_is_computed() -> None:
    manager = manager_of([full(4), mamba(8, "align")], mode="align")
    for chunk in (8, 8):
        manager.begin_step()
        if not manager.live_requests:
            manager.add_request("a", list(range(40)))
        manager.allocate("a", chunk)
    assert manager.add_request("b", list(range(40))) == 8
    manager.free("a")
    manager.begin_step()
    assert manager.add_request("c", list(range(40))) == 16


def test_keys_and_values_of_the_same_step_are_a_hit() -> None:
    """Every layer writes all its rows before it attends."""
    manager = manager_of([full(4)])
    manager.begin_step()
    manager.add_request("a", list(range(10)))
    manager.allocate("a", 10)
    assert manager.add_request("b", list(range(10))) == 8


def test_content_is_found_as_long_as_any_block_holds_it() -> None:
    """B computes its second block anew (a token must remain); then A's copy of it is evicted."""
    manager = manager_of([full(16)], num_blocks=6)
    tokens = list(range(32))
    store(manager, "a", tokens)
    manager.begin_step()
    assert manager.add_request("b", tokens) == 16
    manager.allocate("b", 16)
    manager.begin_step()
    store(manager, "other", list(range(100, 147)))  # takes every block that nobody holds
    assert manager.add_request("c", [*tokens, 1, 2]) == 32


def test_a_copy_that_is_held_takes_over_when_the_found_one_is_freed() -> None:
    manager = manager_of([full(4)], num_blocks=8)
    for name in ("a", "b"):
        manager.add_request(name, list(range(9)))
    for name in ("a", "b"):  # both compute the same two blocks in one step
        manager.allocate(name, 9)
    first, second = manager.block_ids("a", 0), manager.block_ids("b", 0)
    assert not set(first.tolist()) & set(second.tolist())
    manager.free("a")
    assert manager.pool.stats().cached_free == 0, "the copies that nobody holds are empty"
    manager.begin_step()
    assert manager.add_request("c", list(range(9))) == 8
    assert manager.block_ids("c", 0).tolist() == second[:2].tolist()


def test_granularity_is_the_gcd_of_block_sizes() -> None:
    assert manager_of([full(4), sliding(6, 5)]).granule == 2


def test_eviction_takes_the_tail_of_a_prefix_first() -> None:
    manager = manager_of([full(4)], num_blocks=7)
    store(manager, "a", list(range(20)))  # 5 cached blocks of 6
    manager.add_request("b", [90] * 12)
    manager.allocate("b", 12)  # one empty block and two evicted ones
    manager.free("b")
    assert manager.pool.stats().evicted == 2
    assert manager.add_request("c", list(range(20))) == 12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.append(["a"]), "request 'a' is cached by prefix: append needs its token id"),
        (lambda m: m.append(["a"], [-1]), "token ids are integers"),
        (
            lambda m: m.allocate("a", 3),
            "request 'a': 9 tokens to store, 6 known: prefix caching needs their ids",
        ),
        (lambda m: m.allocate("a", 1, 0, [1 << 40]), "token ids are integers"),
    ],
)
def test_tokens_that_are_not_known_are_an_error(call: Any, message: str) -> None:
    manager = manager_of([full(4)])
    manager.add_request("a", list(range(6)))
    manager.allocate("a", 6)
    with pytest.raises(BlockError, match=message):
        call(manager)
    assert manager.num_tokens("a") == 6
    manager.append(["a"], [6])
