"""Every kind of group under the manager: walked token by token, and its arrays checked slowly."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from block_models import (
    SETTINGS,
    Setting,
    Tenant,
    ValueModel,
    config_of,
    cross,
    full,
    mamba,
    sliding,
)

from kvpipe.blocks import BlockError, BlockManager, OutOfBlocks
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.runs import indices


def manager_of(
    specs: list[KVCacheSpec], num_blocks: int = 100, setting: Setting | None = None, **options: Any
) -> BlockManager:
    limits = (setting or Setting("", specs)).limits()
    return BlockManager(config_of(specs, num_blocks), limits, **options)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
@pytest.mark.parametrize("prefill", [1, 5, 12])
def test_walking_a_request_holds_what_the_spec_says_and_loses_no_value(
    setting: Setting, prefill: int
) -> None:
    manager = manager_of(setting.specs, setting=setting)
    model = ValueModel(setting, manager)
    manager.add_request("r", encoder_tokens=setting.max_encoder_tokens)
    tenant = Tenant(list(range(40)), encoder=("input", setting.max_encoder_tokens))
    model.tenants["r"] = tenant
    while tenant.stored < 40:
        manager.begin_step()
        computed, new = tenant.stored, prefill if tenant.stored + prefill <= 26 else 1
        if new > 1 or not computed:
            manager.allocate("r", new)
        else:
            manager.append(["r"])
        model.write([("r", new)])
        model.check()
        for group, spec in enumerate(setting.specs):
            wanted = indices(spec.resident(computed, new, manager.limits))
            row = manager.block_table(group, ["r"])[0]
            held = {i for i, block in enumerate(row) if block != -1}
            assert held <= set(wanted)
            # What is wanted and not held was skipped by a prefill step: it never had content.
            for index in set(wanted) - held:
                assert setting.mamba_cache_mode == "align" and spec.kind == "mamba"
                assert (index + 1) * spec.block_size <= computed
    manager.free("r")
    assert manager.pool.num_free == 99


def test_blocks_that_left_the_window_return_during_decode_and_between_chunks() -> None:
    manager = manager_of([sliding(4, 5)])
    manager.add_request("r")
    held = []
    for new in (12, 12, *[1] * 8):
        manager.allocate("r", new)
        held.append(manager.pool.stats().in_use)
    # 12 tokens; then 4 + 12 of them; then the window's 5 tokens touch two blocks, or one more.
    assert held == [3, 4, 2, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_has_no_block_has_no_slot(ranks: int) -> None:
    limits = RequestLimits(max_model_len=64, max_num_batched_tokens=64, dcp=ranks)
    manager = BlockManager(config_of([full(4)], 20), limits, context_rank=ranks - 1)
    manager.add_request("a")
    manager.allocate("a", 40)
    table, row = manager.tables[0], manager.row("a")
    table.put(row, [1, 3], table.absent)
    for positions in (range(40), range(3, 29), range(9, 11), range(5), range(60, 64), range(0)):
        expected = []
        for position in positions:
            index, offset = divmod(position, 4 * ranks)
            block = int(table.ids[row, index]) if index < table.ids.shape[1] else -1
            is_here = block > 0 and offset % ranks == ranks - 1
            expected.append(block * 4 + offset // ranks if is_here else -1)
        assert table.slots(row, positions).tolist() == expected, positions


def test_decode_takes_one_block_each_block_size_tokens() -> None:
    manager = manager_of([full(4)])
    manager.add_request("r")
    manager.allocate("r", 3)
    held = []
    for _ in range(10):
        manager.append(["r"])
        held.append(manager.pool.stats().in_use)
    assert held == [1, 2, 2, 2, 2, 3, 3, 3, 3, 4]


def test_an_encoder_is_stored_once_at_its_own_length() -> None:
    manager = manager_of([full(4), cross(4)], setting=Setting("", [], max_encoder_tokens=20))
    manager.add_request("r", encoder_tokens=9)
    manager.begin_step()
    manager.allocate("r", 5)
    assert len(manager.block_ids("r", 1)) == 3
    assert len(manager.slot_mapping(1)) == 9
    manager.begin_step()
    manager.allocate("r", 5)
    assert len(manager.block_ids("r", 1)) == 3 and not len(manager.slot_mapping(1))


@pytest.mark.parametrize(("mode", "held"), [("none", 3), ("align", 4), ("all", 2)])
def test_states_hold_what_their_mode_says_with_speculative_blocks(mode: str, held: int) -> None:
    block_size = 40 if mode == "none" else 4
    manager = manager_of([mamba(block_size, mode, speculative=2)], setting=Setting("", [], mode))
    manager.add_request("r")
    manager.allocate("r", 1)
    most = 0
    for _ in range(39):
        manager.append(["r"])
        most = max(most, len(manager.block_ids("r", 0)))
    assert most == held


def test_slots_and_tables_are_contiguous_and_agree_with_the_slow_formula() -> None:
    draw = random.Random(3)
    manager = manager_of([full(4), sliding(3, 7)], 200, max_num_requests=8)
    names = [f"r{i}" for i in range(8)]
    stored = dict.fromkeys(names, 0)
    for name in names:
        manager.add_request(name)
    for _ in range(25):
        manager.begin_step()
        batch = draw.sample(names, draw.randint(1, 8))
        chunk = [n for n in batch if stored[n] == 0]
        expected: list[tuple[str, int]] = []
        for name in chunk:
            manager.allocate(name, 7)
            expected += [(name, p) for p in range(7)]
            stored[name] = 7
        decode = [n for n in batch if n not in chunk]
        if decode:
            manager.append(decode)
            expected += [(n, stored[n]) for n in decode]
            for name in decode:
                stored[name] += 1
        for group, spec in enumerate([full(4), sliding(3, 7)]):
            slots, size = manager.slot_mapping(group), spec.block_size
            table = manager.block_table(group)
            assert slots.dtype == np.int64 and slots.flags.c_contiguous
            assert table.dtype == np.int32 and table.flags.c_contiguous
            slow = [table[manager.row(n), p // size] * size + p % size for n, p in expected]
            assert slots.tolist() == slow
        assert manager.seq_lens(names).tolist() == [stored[n] for n in names]


def test_a_sharing_layer_uses_its_targets_table_and_gets_no_slots_in_fast_prefill() -> None:
    options: dict[str, Any] = {"shared_layers": [("layers.9", "layers.0")]}
    fast = manager_of([full(4)], kv_sharing_fast_prefill=True, **options)
    slow = manager_of([full(4)], **options)
    for manager, in_prefill in ((fast, 0), (slow, 6)):
        manager.add_request("r")
        manager.begin_step()
        manager.allocate("r", 6)
        assert len(manager.slot_mapping("layers.0")) == 6
        assert len(manager.slot_mapping("layers.9")) == in_prefill
        manager.append(["r"])
        assert manager.slot_mapping("layers.9").tolist()[in_prefill:] == [
            manager.slot_mapping("layers.0")[-1]
        ]
        same = manager.block_table("layers.9", ["r"]) == manager.block_table("layers.0", ["r"])
        assert same.all()


def test_a_layer_that_shares_with_nobody_known_is_an_error() -> None:
    with pytest.raises(BlockError, match="layer a shares the cache of b, which is in no group"):
        manager_of([full(4)], shared_layers=[("a", "b")])
    with pytest.raises(BlockError, match="layer 'nope' keeps no cache and shares none"):
        manager_of([full(4)]).block_table("nope")


def test_an_absent_block_can_be_the_null_block() -> None:
    manager = manager_of([sliding(4, 5)], absent_block=0)
    manager.add_request("r")
    for _ in range(3):
        manager.allocate("r", 12)
    row = manager.block_table(0, ["r"])[0]
    assert row[:5].tolist() == [0] * 5 and (row[5:9] > 0).all()


@pytest.mark.parametrize("ranks", [2, 3])
def test_context_parallel_ranks_together_write_every_token_once(ranks: int) -> None:
    limits = RequestLimits(max_model_len=60, max_num_batched_tokens=60, dcp=ranks)
    owners: list[list[int]] = []
    for rank in range(ranks):
        manager = BlockManager(config_of([full(4)], 50), limits, context_rank=rank)
        manager.add_request("r")
        manager.begin_step()
        manager.allocate("r", 20)
        for _ in range(9):
            manager.append(["r"])
        slots = manager.slot_mapping(0)
        assert len(manager.block_ids("r", 0)) == -(-29 // (4 * ranks))
        owners.append([t for t, slot in enumerate(slots) if slot >= 0])
        assert len(set(slots[slots >= 0].tolist())) == len(owners[-1])
    assert sorted(sum(owners, [])) == list(range(29))


def test_a_shortage_names_the_group_and_leaves_everything_as_it_was() -> None:
    setting = Setting("", [full(4), sliding(4, 9)])
    manager = manager_of(setting.specs, 5, setting)
    model = ValueModel(setting, manager)
    manager.add_request("r")
    before = model.snapshot()
    with pytest.raises(
        OutOfBlocks,
        match=r"request 'r': group 1 \(sliding\) ran short: 6 blocks needed, 4 free: short by 2;",
    ) as caught:
        manager.allocate("r", 12)
    assert (caught.value.group, caught.value.short_by) == (1, 2)
    assert model.snapshot() == before
    manager.allocate("r", 8)


def test_a_batch_that_does_not_fit_gets_nothing() -> None:
    manager = manager_of([full(2)], 4)
    for name in ("a", "b"):
        manager.add_request(name)
    manager.allocate("a", 2)
    manager.allocate("b", 2)
    with pytest.raises(OutOfBlocks, match="2 requests: group 0 .full. ran short: 2 blocks needed"):
        manager.append(["a", "b"])
    assert manager.seq_lens(["a", "b"]).tolist() == [2, 2] and manager.pool.num_free == 1
    manager.append(["a"])


def test_a_window_that_moves_on_pays_for_the_block_it_needs() -> None:
    """The pool is full, but the step frees as many blocks as it takes."""
    manager = manager_of([sliding(2, 3)], 4)
    manager.add_request("r")
    manager.allocate("r", 5)
    assert manager.pool.num_free == 0
    for _ in range(10):
        manager.append(["r"])


def test_forks_that_write_together_copy_once() -> None:
    manager = manager_of([full(4)])
    manager.add_request("a")
    manager.allocate("a", 6)
    manager.fork("a", "b")
    assert manager.pool.stats().in_use == 2
    (copy,) = manager.append(["a", "b"])
    assert manager.block_ids("a", 0)[1] == copy.dst and manager.block_ids("b", 0)[1] == copy.src
    assert manager.append(["a", "b"]) == ()
    manager.free("a")
    manager.free("b")
    assert manager.pool.stats().in_use == 0


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    manager = manager_of([full(4)])
    manager.add_request("a")
    manager.allocate("a", 8)
    manager.fork("a", "b")
    assert manager.append(["a", "b"]) == ()


def test_draft_tokens_get_room_that_a_fork_does_not_share() -> None:
    manager = manager_of([full(4)])
    manager.add_request("a")
    manager.allocate("a", 4, num_lookahead_tokens=3)
    assert len(manager.block_ids("a", 0)) == 2 and manager.num_tokens("a") == 4
    manager.fork("a", "b")
    assert len(manager.block_ids("b", 0)) == 1


def test_swapping_out_and_in_takes_other_blocks_and_restores_content() -> None:
    manager = manager_of([full(4), sliding(4, 5)])
    manager.add_request("a")
    manager.allocate("a", 10)
    memory = {int(b): f"block {b}" for g in (0, 1) for b in manager.block_ids("a", g)}
    before = [[memory[int(b)] for b in manager.block_ids("a", g)] for g in (0, 1)]
    manager.swap_out("a", lambda group, ids: [memory.pop(int(b)) for b in ids])
    assert manager.pool.stats().in_use == 0 and not memory
    with pytest.raises(BlockError, match="request 'a' is swapped out: swap it in first"):
        manager.append(["a"])
    manager.add_request("b")
    manager.allocate("b", 12)
    manager.swap_in(
        "a", lambda group, ids, kept: memory.update(zip(ids.tolist(), kept, strict=True))
    )
    assert [[memory[int(b)] for b in manager.block_ids("a", g)] for g in (0, 1)] == before
    assert not set(manager.block_ids("a", 0)) & set(manager.block_ids("b", 0))
    manager.append(["a"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.free("x"), "request 'x' is not live: it is finished, or was never added"),
        (lambda m: m.append(["x"]), "request 'x' is not live"),
        (lambda m: m.allocate("gone", 1), "request 'gone' is not live: it is finished"),
        (lambda m: m.append(["a", "a"]), "a request is named twice in one step"),
        (lambda m: m.allocate("a", 0), "cannot allocate 0 new and 0 lookahead tokens"),
        (lambda m: m.allocate("a", 13), "13 tokens in one step, at most 12 fit"),
        (lambda m: m.allocate("full", 1), "request 'full': 41 tokens are more than max_model_len"),
        (lambda m: m.add_request("b", range(41)), "request 'b': 41 tokens are more than max_model"),
        (lambda m: m.add_request("a"), "request 'a' is live already"),
        (lambda m: m.add_request("b", encoder_tokens=3), "3 encoder tokens, the plan allows 0"),
        (lambda m: m.fork("a", "full"), "request 'full' is live already"),
        (lambda m: m.swap_in("a", print), "request 'a' is not swapped out"),
        (lambda m: m.append(["full", "a"]), "request 'full': 41 tokens are more than max_model"),
        (lambda m: m.append(["a"]), "request 'a' has no tokens yet: allocate its prompt first"),
        (lambda m: m.append(["a"], [1, 2]), "1 requests but 2 token ids"),
        (lambda m: [m.add_request(i) for i in range(9)], "all 10 rows are taken: free a request"),
    ],
)
def test_wrong_use_says_so_and_changes_nothing(call: Any, message: str) -> None:
    setting = Setting("", [full(4)])
    manager = manager_of(setting.specs, setting=setting, max_num_requests=10)
    model = ValueModel(setting, manager)
    for name in ("a", "full", "gone"):
        manager.add_request(name)
    for _ in range(4):
        manager.allocate("full", 10)
    manager.allocate("gone", 3)
    manager.free("gone")
    before = model.snapshot()
    with pytest.raises(BlockError, match=message):
        call(manager)
    for name in manager.live_requests:
        if isinstance(name, int):
            manager.free(name)
    assert model.snapshot() == before


def test_a_config_without_groups_serves_requests_that_store_nothing() -> None:
    config = KVCacheConfig(num_blocks=1, tensors=(), groups=(), bytes_per_block=0)
    manager = BlockManager(config, Setting("", []).limits())
    manager.add_request("r")
    manager.allocate("r", 5)
    manager.append(["r"])
    assert manager.num_tokens("r") == 6


def test_a_group_without_layers_on_this_rank_still_has_a_table() -> None:
    group = KVCacheGroupSpec(layer_names=(), spec=full(4))
    config = KVCacheConfig(num_blocks=9, tensors=(), groups=(group,), bytes_per_block=1)
    manager = BlockManager(config, Setting("", []).limits())
    manager.add_request("r")
    manager.allocate("r", 5)
    assert len(manager.block_ids("r", 0)) == 2


def test_a_state_that_a_chunk_skipped_gets_no_block() -> None:
    """After 10 tokens at once the state at 8 was never written: holding it would be waste."""
    manager = manager_of([mamba(4, "align")], setting=Setting("", [], "align"))
    manager.add_request("r")
    manager.allocate("r", 10)
    manager.allocate("r", 1)
    assert manager.pool.stats().in_use == 1
    for _ in range(2):
        manager.append(["r"])
    assert manager.pool.stats().in_use == 2  # the state at 12, and the running one


def test_requests_that_share_a_window_leave_it_in_the_same_step() -> None:
    specs: list[KVCacheSpec] = [sliding(2, 3), full(2)]
    manager = manager_of(specs, prefix_caching=True)
    for name in ("a", "b", "c"):
        hit = manager.add_request(name, list(range(9)))
        manager.allocate(name, 9 - hit)
    shared = manager.block_table(0, ["a"])[0][3]
    assert manager.pool.references([shared])[0] == 3
    for token in range(12):
        manager.append(["a", "b", "c"], [50 + token] * 3)
    assert manager.pool.references([shared])[0] == 0
    for name in ("a", "b", "c"):
        manager.free(name)
    assert manager.pool.num_free == 99


@pytest.mark.parametrize(
    ("mode", "block_size", "num_blocks", "together"),
    [("align", 544, 1606, 84), ("all", 768, 1137, 80)],
)
def test_as_many_state_models_decode_together_as_an_engines_own_manager_holds(
    mode: str, block_size: int, num_blocks: int, together: int
) -> None:
    """Three groups of states and one of full attention, as in Qwen3-Next; requests of 8,192 tokens
    one after another until one finds no room. The counts are vLLM 0.17's, driven the same way."""
    specs = [*[mamba(block_size, mode)] * 3, full(block_size)]
    limits = Setting("", specs, mode).limits(max_model_len=8192, max_num_batched_tokens=2048)
    manager = BlockManager(config_of(specs, num_blocks), limits)
    with pytest.raises(OutOfBlocks):
        for name in range(together + 1):
            manager.add_request(name)
            for _ in range(4):
                manager.allocate(name, min(2048, 8191 - manager.num_tokens(name)))
            manager.append([name])
    assert name == together
    held = [len(manager.block_ids(0, group)) for group in range(4)]
    assert held == [1, 1, 1, -(-8192 // block_size)]
