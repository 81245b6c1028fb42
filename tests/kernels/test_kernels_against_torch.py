"""Every operation, on every execution of the kernels, leaves the bytes that torch leaves.

Whole buffers and their canaries are compared, so a byte written in the wrong place fails too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    BLOCKS,
    COMMIT_CASES,
    FULL_CASES,
    Case,
    buffer_bytes,
    canary_buffer,
    new_rows,
    some_slots,
    views_of,
)

from kvpipe.backends.torch_ import TorchBackend
from kvpipe.layouts.base import ArrayView

REFERENCE = TorchBackend()
CASES = [
    *(pytest.param(case, id=str(case)) for case in COMMIT_CASES),
    *(pytest.param(case, id=str(case), marks=pytest.mark.full) for case in FULL_CASES),
]
per_case = pytest.mark.parametrize("case", CASES)


class Both:
    """The same canary buffer twice: one for the backend under test, one for torch."""

    def __init__(self, backend, views: list[ArrayView]) -> None:
        self.backend, self.views, size = backend, views, buffer_bytes(views)
        self.buffer, self.whole = canary_buffer(size, backend.device)
        self.expected_buffer, self.expected_whole = canary_buffer(size, "cpu")

    def do(self, operation: str, *arguments, **options):
        """The operation on both; results must be equal, and are returned."""
        results = []
        for backend, buffer in (
            (self.backend, self.buffer),
            (REFERENCE, self.expected_buffer),
        ):
            given = {id(BUFFER): buffer, id(BUFFERS): [buffer]}
            placed = [on(backend, given.get(id(each), each)) for each in arguments]
            if operation == "unpack":  # a copy each: what reads may not change what it reads
                placed[-1] = placed[-1].clone()
            results.append(getattr(backend, operation)(*placed, **options))
        got, wanted = results
        if wanted is not None:
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            assert same_numbers(got.cpu(), wanted)
        return got

    def same(self) -> bool:
        return torch.equal(self.whole.cpu(), self.expected_whole)


BUFFER, BUFFERS = object(), object()


def on(backend, argument):
    return argument.to(backend.device) if isinstance(argument, torch.Tensor) else argument


def same_numbers(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bits, except that any NaN equals any NaN."""
    if not wanted.dtype.is_floating_point or not wanted.numel():
        return torch.equal(got, wanted)
    nan = wanted.float().isnan()
    bits = [each.contiguous().view(torch.uint8).view(*each.shape, -1) for each in (got, wanted)]
    return torch.equal(got.float().isnan(), nan) and torch.equal(bits[0][~nan], bits[1][~nan])


def write(both: Both, case: Case, seed: int = 3) -> None:
    slots = some_slots(both.views[0], seed)
    dtype, scales = REFERENCE.dtype(case.dtypes[1]), (0.37, 2.5)
    for backend, buffer in ((both.backend, both.buffer), (REFERENCE, both.expected_buffer)):
        # Made where they are used: a copy to a GPU would make slices contiguous.
        rows = [
            new_rows(case, len(slots), view, dtype, backend.device, seed + i)
            for i, view in enumerate(both.views)
        ]
        if len(rows) == 1:
            backend.write_kv(buffer, both.views[0], rows[0], on(backend, slots), scales[0])
        else:
            targets = [(buffer, view) for view in both.views]
            backend.write_kv_pair(targets, rows, on(backend, slots), scales)


@per_case
def test_write_kv_stores_what_torch_stores(backend, case: Case):
    both = Both(backend, views_of(case))
    write(both, case)
    assert both.same()
    backend.check()


@per_case
def test_gather_reads_what_torch_reads(backend, case: Case):
    both = Both(backend, views_of(case))
    block_size = case.block_size
    table = torch.tensor([BLOCKS - 1, -1, 0, 2], dtype=torch.int32)
    outs = [None]
    if case.dtypes[0] != case.dtypes[1]:
        outs.append({"fp8_e4m3": "float16", "fp8_e5m2": "bfloat16"}[case.dtypes[0]])
    for view in both.views:
        both.do("gather", BUFFER, view, table, 1, block_size)
        for out in outs:
            tokens = 2 * block_size + block_size // 2 + 1
            both.do("gather", BUFFER, view, table, tokens, block_size, out, 0.37)
    assert both.same()


@pytest.mark.parametrize("case", [*CASES[: len(COMMIT_CASES) : 6], *CASES[len(COMMIT_CASES) :: 6]])
def test_heads_are_gathered_apart_as_torch_does(backend, case: Case):
    both = Both(backend, views_of(case))
    size = case.block_size
    tables = torch.tensor([[BLOCKS - 1, -1, 0], [2, 1, 3], [-1, 4, 4]], dtype=torch.int32)
    out = None if case.dtypes[0] == case.dtypes[1] else "bfloat16"
    for view in both.views:
        arguments = (BUFFER, view, tables, [0, size // 2, size - 1])
        for tokens in (1, 2 * size + 1 - size // 2, 0):
            both.do("gather_heads", *arguments, min(tokens, 2 * size + 1), size, out, 0.37)
        both.do("gather", BUFFER, view, tables[1], 2 * size + 1, size)  # the plan is as it was
    backend.check()


@per_case
def test_whole_blocks_are_filled_copied_packed_and_unpacked_as_torch_does(backend, case: Case):
    both = Both(backend, views_of(case))
    views = both.views
    both.do("copy_blocks", BUFFERS, views, [(0, 3), (1, 2), (4, 4)])
    assert both.same()
    packed = both.do("pack", BUFFERS, views, [4, 0, 2])
    both.do("fill", BUFFERS, views, torch.tensor([1, -1, 4]), 0xFF)
    assert both.same()
    both.do("unpack", BUFFERS, views, [1, 3, 0], packed.cpu())
    assert both.same()
    backend.check()


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_slots_of_positions_are_torchs(backend, block_size: int):
    both = Both(backend, [])
    generator = torch.Generator().manual_seed(block_size)
    table = torch.randint(-1, 4, (5, 7), dtype=torch.int32, generator=generator)
    requests = torch.randint(0, 5, (400,), generator=generator)
    positions = torch.randint(-1, 7 * block_size, (400,), generator=generator)
    both.do("slot_mapping", table, requests, positions, block_size)
    both.do("slot_mapping", table[:, 1:4], requests, positions % block_size, block_size)
    backend.check()


def test_latent_and_rope_rows_of_mla_go_to_one_row_in_one_launch(backend):
    case = Case("mla", 576, 16, ("bfloat16", "bfloat16"), "contiguous", 0)
    view = views_of(case)[0]
    both, split = Both(backend, [view]), Both(backend, [view])
    slots = some_slots(view, 1)
    latent = torch.randn(len(slots), 1, 512).bfloat16()
    rope = torch.randn(len(slots), 1, 64).bfloat16()
    both.do("write_kv", BUFFER, view, torch.cat([latent, rope], -1), slots)
    here = backend.device
    backend.write_kv_pair(
        [(split.buffer, view.columns(0, 512)), (split.buffer, view.columns(512, 576))],
        [latent.to(here), rope.to(here)],
        slots.to(here),
    )
    assert both.same() and torch.equal(split.whole, both.whole)


def test_manager_blocks_may_hold_several_kernel_blocks(backend):
    case = Case("page_nhd", 80, 16, ("float16", "float16"), "contiguous", 0)
    both = Both(backend, views_of(case))
    table = torch.tensor([1, 0], dtype=torch.int32)
    for tokens in (64, 50, 33, 16, 5):
        both.do("gather", BUFFER, both.views[1], table, tokens, 32)


def test_states_are_filled_copied_and_packed_beside_token_arrays(backend):
    token = views_of(Case("page_nhd", 64, 3, ("bfloat16", "bfloat16"), "contiguous", 0))
    start = buffer_bytes(token)
    state = ArrayView(
        layer="m", array="ssm", buffer=0, dtype="float32", per_token=False, offset=start,
        shape=(BLOCKS, 4, 33, 128), strides=(4 * 33 * 128 * 4 + 48, 33 * 128 * 4, 512, 4),
    )  # fmt: skip
    odd = replace(
        state, array="conv", dtype="uint8", offset=start + buffer_bytes([state]) + 1,
        shape=(BLOCKS, 7, 3), strides=(29, 3, 1),
    )  # fmt: skip
    both = Both(backend, [*token, state, odd])
    both.do("copy_blocks", BUFFERS, both.views, [(3, 1)])
    packed = both.do("pack", BUFFERS, both.views, [1, 2])
    both.do("unpack", BUFFERS, both.views, [4, 0], packed.cpu())
    both.do("fill", BUFFERS, both.views, torch.tensor([2]), 0)
    assert both.same()


@pytest.mark.parametrize("row", [16, 80, 128, 1040])
@pytest.mark.parametrize("shift", [0, 16, 48, 1])
def test_launches_that_write_around_the_caches_write_the_same(backend, row, shift):
    """From 1 MiB on the host streams its stores, 64 bytes at a time where addresses allow."""
    tokens = (1 << 20) // row + 1
    view = ArrayView(
        layer="l", array="k", buffer=0, dtype="uint8", per_token=True, offset=shift,
        shape=(tokens // 16 + 1, 16, 1, row), strides=(16 * row, row, row, 1),
    )  # fmt: skip
    both = Both(backend, [view])
    generator = torch.Generator().manual_seed(row)
    rows = torch.randint(0, 256, (tokens, 1, row), dtype=torch.uint8, generator=generator)
    slots = torch.randperm(view.shape[0] * 16, generator=generator)[:tokens]
    both.do("write_kv", BUFFER, view, rows, slots)
    table = torch.randperm(view.shape[0], generator=generator).to(torch.int32)
    both.do("gather", BUFFER, view, table, tokens, 16)
    half = view.shape[0] // 2
    both.do("copy_blocks", BUFFERS, [view], [(i, half + i) for i in range(half)])
    packed = both.do("pack", BUFFERS, [view], list(range(view.shape[0])))
    both.do("unpack", BUFFERS, [view], table.tolist(), packed.cpu())
    assert both.same()


def test_nothing_to_do_does_nothing(backend):
    case = COMMIT_CASES[0]
    both = Both(backend, views_of(case))
    view = both.views[0]
    rows = torch.empty(0, *view.shape[2:], dtype=REFERENCE.dtype(case.dtypes[1]))
    none = torch.empty(0, dtype=torch.int64)
    both.do("write_kv", BUFFER, view, rows, none)
    both.do("gather", BUFFER, view, torch.tensor([1], dtype=torch.int32), 0, case.block_size)
    both.do("fill", BUFFERS, both.views, none, 0)
    both.do("fill", BUFFERS, [], torch.tensor([1]), 0)
    both.do("copy_blocks", BUFFERS, both.views, [])
    both.do("slot_mapping", torch.zeros(1, 1, dtype=torch.int32), none, none, 16)
    empty = both.do("pack", BUFFERS, both.views, [])
    both.do("unpack", BUFFERS, both.views, [], empty)
    assert both.same()


def test_a_plan_is_reused_for_other_rows_strides_and_counts(backend):
    case = Case("page_hnd", 96, 16, ("float16", "float16"), "contiguous", 0)
    both = Both(backend, views_of(case))
    plan = backend.plan_write([(both.buffer, view) for view in both.views], torch.float16)
    for seed, count, source in ((1, 1, "contiguous"), (2, 7, "contiguous"), (3, 5, "qkv_slice"),
                                (4, 9, "odd_address"), (5, 2, "contiguous")):  # fmt: skip
        here = replace(case, source=source)
        slots = torch.randperm(80, generator=torch.Generator().manual_seed(seed))[:count]
        k, v = (
            new_rows(here, count, view, torch.float16, backend.device, seed + i)
            for i, view in enumerate(both.views)
        )
        plan(k, slots.to(backend.device), v)
        for rows, view in zip((k, v), both.views, strict=True):
            REFERENCE.write_kv(both.expected_buffer, view, rows.cpu(), slots)
        assert both.same()
