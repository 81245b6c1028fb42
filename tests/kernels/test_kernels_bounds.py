"""What is out of range: nothing is written or read, it is counted, and `check` names the first."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import BLOCKS, MARGIN, Case, buffer_bytes, canary_buffer, views_of

from kvpipe.backends.base import Buffer
from kvpipe.backends.host import HostBackend
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.layouts.base import ArrayView

CASE = Case("page_hnd", 80, 16, ("bfloat16", "bfloat16"), "contiguous", 0)
SLOTS = BLOCKS * 16
REFERENCE = TorchBackend()


@pytest.fixture
def cache(backend):
    views = views_of(CASE)
    buffer, whole = canary_buffer(buffer_bytes(views), backend.device)
    return backend, views, buffer, whole, whole.clone()


def rows(backend, view: ArrayView, count: int) -> torch.Tensor:
    return torch.ones(count, *view.shape[2:], dtype=torch.bfloat16, device=backend.device)


@pytest.mark.parametrize("slot", [SLOTS, SLOTS + 1, 2**31, 2**32, 2**32 + 3, 2**62])
def test_a_slot_past_the_end_writes_nothing_and_is_named(cache, slot):
    backend, views, buffer, whole, before = cache
    slots = torch.tensor([-1, slot], device=backend.device)
    backend.write_kv(buffer, views[0], rows(backend, views[0], 2), slots)
    with pytest.raises(IndexError, match=rf"slot_mapping\[1\] is slot {slot}, the last one is 79;"):
        backend.check()
    assert torch.equal(whole, before)
    backend.check()  # reported once


def test_a_slot_past_the_end_is_counted_once_for_k_and_v_and_all_heads(cache):
    backend, views, buffer, whole, before = cache
    slots = torch.tensor([SLOTS, -1, SLOTS + 7], device=backend.device)
    new = [rows(backend, view, 3) for view in views]
    backend.write_kv_pair([(buffer, view) for view in views], new, slots)
    with pytest.raises(IndexError, match="; 2 out of range since the last check"):
        backend.check()
    assert torch.equal(whole, before)


def test_the_first_of_several_errors_is_the_one_named(cache):
    backend, views, buffer, _, _ = cache
    for slot in (SLOTS + 1, SLOTS + 2, SLOTS + 3):
        slots = torch.tensor([slot], device=backend.device)
        backend.write_kv(buffer, views[0], rows(backend, views[0], 1), slots)
    with pytest.raises(IndexError, match="is slot 81, the last one is 79; 3 out of range"):
        backend.check()


def test_padding_is_no_error(cache):
    backend, views, buffer, whole, before = cache
    slots = torch.tensor([-1, -(2**62)], device=backend.device)
    backend.write_kv(buffer, views[0], rows(backend, views[0], 2), slots)
    backend.check()
    assert torch.equal(whole, before)


def test_quantising_checks_slots_too(backend):
    case = Case("page_nhd", 64, 3, ("fp8_e4m3", "float16"), "contiguous", 0)
    view = views_of(case)[0]
    buffer, whole = canary_buffer(buffer_bytes([view]), backend.device)
    before = whole.clone()
    new = torch.ones(1, 2, 64, dtype=torch.float16, device=backend.device)
    backend.write_kv(buffer, view, new, torch.tensor([15], device=backend.device))
    with pytest.raises(IndexError, match=r"slot_mapping\[0\] is slot 15, the last one is 14"):
        backend.check()
    assert torch.equal(whole, before)


def test_a_block_past_the_end_is_gathered_as_zeros_and_named(cache):
    backend, views, buffer, _, _ = cache
    table = torch.tensor([0, BLOCKS, 2**31 - 1], dtype=torch.int32)
    got = backend.gather(buffer, views[1], table, 48, 16)
    with pytest.raises(
        IndexError, match=r"block_table\[\d\] is block \d+, the last one is 4; 2 out of range"
    ):
        backend.check()
    assert not got[16:].view(torch.uint8).any() and got[:16].view(torch.uint8).any()


@pytest.mark.parametrize("block", [2**31, 2**32, 2**32 + 1, 2**62])
def test_an_id_that_int32_cannot_hold_is_past_the_end_and_not_its_low_bits(cache, block):
    backend, views, buffer, _, _ = cache
    table = torch.tensor([block], device=backend.device)
    assert not backend.gather(buffer, views[0], table, 16, 16).view(torch.uint8).any()
    with pytest.raises(
        IndexError, match=r"block_table\[0\] is block 2147483647, the last one is 4"
    ):
        backend.check()
    zero = torch.zeros(1, dtype=torch.int64, device=backend.device)
    slots = backend.slot_mapping(table[None], zero, zero, 16)
    assert int(slots[0]) >= SLOTS  # write_kv then reports it


def test_an_id_below_what_int32_holds_is_padding(cache):
    backend, views, buffer, _, _ = cache
    table = torch.tensor([-(2**32), -(2**40) + 1], device=backend.device)
    assert not backend.gather(buffer, views[0], table, 32, 16).view(torch.uint8).any()
    backend.check()


@pytest.mark.parametrize("tokens", [2, 32, 33, 70])
def test_of_two_tokens_of_one_call_with_one_slot_the_last_is_kept(cache, tokens):
    backend, views, buffer, whole, before = cache
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(tokens))[:tokens]
    slots[tokens // 2], slots[-1] = -1, slots[0]
    slots[tokens // 3] = slots[tokens - 2]
    new = torch.randn(2, tokens, 2, 80).bfloat16()
    last = {slot: token for token, slot in enumerate(slots.tolist()) if slot >= 0}
    expected = before.cpu()
    for view, each in zip(views, new, strict=True):
        target = REFERENCE.array(on_cpu(expected, buffer), view)
        for slot, token in last.items():
            target[slot // 16, slot % 16] = each[token]
    rows_of = [each.to(backend.device) for each in new]
    here = slots.to(backend.device)
    backend.write_kv_pair([(buffer, view) for view in views], rows_of, here)
    assert torch.equal(whole.cpu(), expected)
    whole.copy_(before)
    for view, each in zip(views, rows_of, strict=True):
        backend.write_kv(buffer, view, each, here)
    assert torch.equal(whole.cpu(), expected)
    plain = on_cpu(before.cpu(), buffer)
    for view, each in zip(views, new, strict=True):
        REFERENCE.write_kv(plain, view, each, slots)
    wanted = on_cpu(expected, buffer)
    assert torch.equal(plain.data, wanted.data)


def on_cpu(whole: torch.Tensor, buffer: Buffer) -> Buffer:
    data = whole.cpu()[MARGIN : MARGIN + buffer.num_bytes]
    return Buffer(num_bytes=buffer.num_bytes, data=data)


def test_one_thread_of_a_planned_write_keeps_the_last_of_two_rows_with_one_slot():
    views = views_of(CASE)
    buffer, _ = canary_buffer(buffer_bytes(views), "cpu")
    backend = HostBackend()
    new = torch.arange(6 * 2 * 80).reshape(6, 2, 80).bfloat16()
    backend.plan_write([(buffer, views[0])], torch.bfloat16)(new, torch.tensor([3, 9, 3, 7, 9, 3]))
    kept = backend.array(buffer, views[0]).flatten(0, 1)
    assert torch.equal(kept[3], new[5]) and torch.equal(kept[9], new[4])


def test_tokens_past_the_block_table_are_refused(cache):
    backend, views, buffer, _, _ = cache
    with pytest.raises(IndexError, match="17 tokens wanted, the block table ends at 16"):
        backend.gather(buffer, views[0], torch.tensor([0], dtype=torch.int32), 17, 16)


def test_a_block_past_the_end_is_not_filled(cache):
    backend, views, buffer, whole, before = cache
    backend.fill([buffer], views, torch.tensor([-1, BLOCKS]), 0)
    with pytest.raises(
        IndexError, match=r"fill: block_ids\[1\] is block 5, the last one is 4; 2 out of range"
    ):
        backend.check()  # once a view
    assert torch.equal(whole, before)


@pytest.mark.parametrize("pair", [(0, BLOCKS), (BLOCKS, 0)])
def test_a_block_past_the_end_is_not_copied(cache, pair):
    backend, views, buffer, whole, before = cache
    backend.copy_blocks([buffer], views, [pair])
    with pytest.raises(IndexError, match="copy_blocks: pair 0 names block 5, the last one is 4"):
        backend.check()
    assert torch.equal(whole, before)


def test_a_block_past_the_end_is_neither_packed_nor_unpacked(cache):
    backend, views, buffer, whole, before = cache
    packed = backend.pack([buffer], views, [BLOCKS, 1])
    with pytest.raises(IndexError, match=r"pack: block_ids\[0\] is block 5, the last one is 4"):
        backend.check()
    backend.unpack([buffer], views, [BLOCKS, 1], packed)
    with pytest.raises(IndexError, match=r"unpack: block_ids\[0\] is block 5, the last one is 4"):
        backend.check()
    assert torch.equal(whole, before)


def test_a_request_or_position_past_the_end_has_no_slot(backend):
    table = torch.tensor([[3, 4], [5, -1]], dtype=torch.int32)
    requests, positions = torch.tensor([0, 2, 1, -1]), torch.tensor([32, 0, 2, 5])
    slots = backend.slot_mapping(table, requests[1:], positions[1:], 16)
    assert slots.tolist() == [-1, 5 * 16 + 2, -1]
    with pytest.raises(
        IndexError, match=r"request_index\[0\] is request 2, the last one is 1; 1 out of range"
    ):
        backend.check()
    assert backend.slot_mapping(table, requests[:1], positions[:1], 16).tolist() == [-1]
    with pytest.raises(
        IndexError, match=r"positions\[0\] is token 32, the block table ends at 31; 1 out of range"
    ):
        backend.check()


@pytest.mark.parametrize(
    ("pairs", "named"),
    [([(0, 1), (1, 2)], 1), ([(0, 3), (2, 3)], 3), ([(1, 0), (0, 1)], 0)],
)
def test_copies_that_depend_on_their_order_are_refused(cache, pairs, named):
    backend, views, buffer, whole, before = cache
    with pytest.raises(ValueError, match=f"block {named} is a destination and part of another"):
        backend.copy_blocks([buffer], views, pairs)
    assert torch.equal(whole, before)


def test_rows_of_another_shape_are_refused(cache):
    backend, views, buffer, whole, before = cache
    slots = torch.tensor([0], device=backend.device)
    wrong = torch.ones(1, 2, 81, dtype=torch.bfloat16, device=backend.device)
    with pytest.raises(ValueError, match=r"new rows \[1, 2, 80\]"):
        backend.write_kv(buffer, views[0], wrong, slots)
    with pytest.raises(ValueError, match=r"new rows \[1, 2, 80\]"):
        backend.write_kv(buffer, views[0], rows(backend, views[0], 2), slots)
    plan = backend.plan_write([(buffer, view) for view in views], torch.bfloat16)
    good = rows(backend, views[0], 1)
    with pytest.raises(ValueError, match="int64 slots wanted"):
        plan(good, slots.to(torch.int32), good)
    with pytest.raises(ValueError, match="planned for 2 arrays, got 1"):
        plan(good, slots)
    with pytest.raises(ValueError, match="torch.float16"):
        plan(good.half(), slots, good)
    with pytest.raises(ValueError, match=r"new rows \[1, 2, 80\] and \[1, 2, 80\]"):
        plan(rows(backend, views[0], 2), slots, rows(backend, views[1], 0))
    with pytest.raises(ValueError, match=r"got \[1, 2, 80\] torch.bfloat16 and \[2, 2, 80\]"):
        plan(good, slots, rows(backend, views[1], 2))
    assert torch.equal(whole, before)


def test_packed_bytes_of_another_size_are_refused(cache):
    backend, views, buffer, _, _ = cache
    packed = backend.pack([buffer], views, [0])
    with pytest.raises(ValueError, match=r"unpack: 2 blocks of 2 views are 20,480 bytes, got 10,2"):
        backend.unpack([buffer], views, [0, 1], packed)


def test_more_slots_than_32_bits_count_are_refused(cache):
    backend, _, buffer, _, _ = cache
    huge = ArrayView(
        layer="l", array="k", buffer=0, dtype="uint8", per_token=True, offset=0,
        shape=(2**28, 16, 1, 1), strides=(0, 0, 0, 1),
    )  # fmt: skip
    new = torch.ones(1, 1, 1, dtype=torch.uint8, device=backend.device)
    with pytest.raises(ValueError, match="4,294,967,296 slots, the kernels count to 2,147,483,647"):
        backend.write_kv(buffer, huge, new, torch.tensor([0], device=backend.device))


def test_a_view_that_leaves_its_buffer_is_our_mistake(cache):
    backend, views, buffer, _, _ = cache
    short = type(buffer)(num_bytes=buffer.num_bytes - 16, data=buffer.data[:-16])
    with pytest.raises(AssertionError, match="ends at byte 51,200 of a buffer of 51,184"):
        backend.fill([short], views, torch.tensor([0]), 0)
