"""Decode attention through pages is dense attention over the tokens that a request sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_cases import BLOCKS, MARGIN, Case, buffer_bytes, canary_buffer, views_of

from kvpipe.backends.base import Buffer
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.layouts.base import ArrayView

REFERENCE = TorchBackend()
SCALING = 0.125
# order, width, block size, cached dtype, padding: every dtype, vectors of 8 and single numbers,
# heads side by side and apart, V of another width than K.
CASES = [
    ("page_nhd", 64, 16, "float32", 0),
    ("page_hnd", 80, 3, "float32", 3),
    ("k_before_v", 192, 16, "bfloat16", 0),
    ("cross_layer", 128, 1, "bfloat16", 16),
    ("kv_packed", 96, 32, "float16", 0),
    ("layers_outside", 64, 16, "float16", 3),
    ("page_nhd", 128, 16, "fp8_e4m3", 0),
    ("page_hnd", 80, 3, "fp8_e4m3", 3),
    ("page_nhd", 64, 16, "fp8_e5m2", 16),
    ("k_before_v", 576, 3, "fp8_e5m2", 0),
]
TABLES = [[4, 2, 0], [1, 3, 2], [3, -1, 1]]


class Pages:
    """K and V of random finite numbers, the same bytes for torch and for the backend under test."""

    def __init__(self, backend, views: list[ArrayView], seed: int = 0) -> None:
        self.backend, self.views = backend, views
        size = buffer_bytes(views)
        self.wanted, _ = canary_buffer(size, "cpu", seed)
        generator = torch.Generator().manual_seed(seed)
        for view in views:
            numbers = torch.randn(view.shape, generator=generator)
            REFERENCE.array(self.wanted, view).copy_(numbers.to(REFERENCE.dtype(view.dtype)))
        whole = torch.zeros(size + 2 * MARGIN, dtype=torch.uint8).to(backend.device)
        self.buffer = Buffer(num_bytes=size, data=whole[MARGIN : MARGIN + size])
        self.same_bytes()

    def same_bytes(self) -> None:
        self.buffer.data.copy_(self.wanted.data)

    def attend(self, query, tables, spans, block_size, scales=(1.0, 1.0)):
        """What the backend and what torch say, [R, Q, Dv] each."""
        answers = []
        for backend, buffer in ((self.backend, self.buffer), (REFERENCE, self.wanted)):
            k, v = ((buffer, view) for view in self.views)
            here = [torch.as_tensor(each).to(backend.device) for each in (query, tables, spans)]
            answers.append(backend.attend(k, v, *here, block_size, SCALING, scales).cpu())
        return answers


def pages_of(backend, case) -> Pages:
    order, width, size, dtype, padding = case
    return Pages(backend, views_of(Case(order, width, size, (dtype, dtype), "contiguous", padding)))


def queries(pages: Pages, group: int, requests: int = 3, dtype=torch.float32) -> torch.Tensor:
    _, _, heads, width = pages.views[0].shape
    generator = torch.Generator().manual_seed(group)
    return torch.randn(requests, heads * group, width, generator=generator).to(dtype)


def close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    step = {torch.float32: 3e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[wanted.dtype]
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    return torch.allclose(got.float(), wanted.float(), rtol=step, atol=step)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_torchs_over_every_layout_and_dtype(backend, case):
    pages, size = pages_of(backend, case), case[2]
    for group in (1, 4):
        spans = [[0, 3 * size], [0, size], [max(0, size - 2), 2 * size + 1]]
        got, wanted = pages.attend(queries(pages, group), TABLES, spans, size, (0.5, 3.0))
        assert close(got, wanted)
    backend.check()
    assert torch.equal(pages.buffer.data.cpu(), pages.wanted.data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_queries_of_16_bits_give_answers_of_16_bits(backend, dtype):
    pages = pages_of(backend, ("page_nhd", 64, 16, "bfloat16", 0))
    got, wanted = pages.attend(queries(pages, 2, dtype=dtype), TABLES, [[0, 40]] * 3, 16)
    assert close(got, wanted)


def test_attention_is_the_dense_attention_of_torch(backend):
    """sdpa over K and V that were never paged chooses the same token."""
    pages = pages_of(backend, ("page_nhd", 64, 16, "float32", 0))
    query = queries(pages, 4)
    got, _ = pages.attend(query, TABLES[:2] + [[0, 4, 1]], [[0, 48]] * 3, 16)
    for row, table in enumerate([[4, 2, 0], [1, 3, 2], [0, 4, 1]]):
        k, v = (
            REFERENCE.array(pages.wanted, view)[table].flatten(0, 1).transpose(0, 1)[None]
            for view in pages.views
        )
        dense = torch.nn.functional.scaled_dot_product_attention(
            query[row, None, :, None], k, v, scale=SCALING, enable_gqa=True
        )[0, :, 0]
        assert close(got[row], dense)
        assert torch.equal(got[row].argmax(-1), dense.argmax(-1))


@pytest.mark.parametrize("length", [1, 255, 256, 257, 600])
def test_splits_of_many_tokens_are_put_together(backend, length):
    view = ArrayView(
        layer="l", array="k", buffer=0, dtype="float32", per_token=True, offset=0,
        shape=(40, 16, 1, 32), strides=(4096, 256, 128, 4),
    )  # fmt: skip
    pages = Pages(backend, [view, replace(view, array="v", offset=128)])
    query = queries(pages, 3, requests=2) * 8  # scores far apart
    tables = torch.stack([torch.randperm(40, generator=torch.Generator().manual_seed(i))
                          for i in (0, 1)])  # fmt: skip
    spans = [[600 - length, 600], [3, 4]]
    got, wanted = pages.attend(query, tables, spans, 16)
    assert close(got, wanted)


def test_what_a_request_does_not_see_may_be_anything(backend):
    """NaN in every byte but those of the seen tokens: a window that starts and ends in a block."""
    pages = pages_of(backend, ("page_nhd", 64, 16, "float32", 0))
    query, spans = queries(pages, 2)[:1], [[21, 38]]
    before, wanted = pages.attend(query, TABLES[:1], spans, 16)
    seen = {slot for t in range(21, 38) for slot in [(TABLES[0][t // 16], t % 16)]}
    for view in pages.views:
        array = REFERENCE.array(pages.wanted, view)
        for block in range(BLOCKS):
            for token in range(16):
                if (block, token) not in seen:
                    array[block, token] = float("nan")
    pages.same_bytes()
    after, _ = pages.attend(query, TABLES[:1], spans, 16)
    assert torch.equal(after, before) and close(after, wanted)


def test_blocks_that_are_not_held_are_not_seen_and_nothing_seen_is_zero(backend):
    pages = pages_of(backend, ("page_nhd", 64, 16, "float32", 0))
    spans = [[0, 48], [0, 16], [5, 5]]
    tables = [[-1, 2, -1], [-1, -1, -1], [0, 1, 2]]
    got, wanted = pages.attend(queries(pages, 2), tables, spans, 16)
    assert close(got, wanted) and got[0].any() and not got[1:].any()
    backend.check()


@pytest.mark.parametrize("block", [BLOCKS, 2**31 - 1])
def test_a_block_past_the_end_is_not_read_and_is_named(backend, block):
    pages = pages_of(backend, ("page_nhd", 64, 16, "bfloat16", 0))
    tables = torch.tensor([[2, block, 1]], dtype=torch.int32)
    got, wanted = pages.attend(queries(pages, 2)[:1], tables, [[0, 48]], 16)
    assert close(got, wanted)
    with pytest.raises(
        IndexError,
        match=rf"attend: block_table\[1\] is block {block}, the last one is 4; 1 out of range",
    ):
        backend.check()


def test_a_span_past_the_block_table_is_cut_and_named(backend):
    pages = pages_of(backend, ("page_nhd", 64, 16, "bfloat16", 0))
    query = queries(pages, 2)[:1].to(backend.device)
    k, v = ((pages.buffer, view) for view in pages.views)
    tables = torch.tensor([[2]], dtype=torch.int32, device=backend.device)
    spans = torch.tensor([[0, 17]], device=backend.device)
    got = backend.attend(k, v, query, tables, spans, 16, SCALING)
    whole = backend.attend(k, v, query, tables, torch.tensor([[0, 16]]), 16, SCALING)
    assert torch.equal(got, whole)
    with pytest.raises(IndexError, match="request 0 sees token 16, the last one of .* is 15"):
        backend.check()


def test_manager_blocks_may_hold_several_kernel_blocks(backend):
    pages = pages_of(backend, ("page_nhd", 80, 16, "float16", 0))
    tables, spans = [[1, 0], [0, 1], [0, -1]], [[0, 64], [17, 50], [3, 40]]
    got, wanted = pages.attend(queries(pages, 2), tables, spans, 32)
    assert close(got, wanted)


def test_the_latent_rows_of_mla_are_keys_and_in_part_values(backend):
    row = views_of(Case("mla", 576, 16, ("bfloat16", "bfloat16"), "contiguous", 0))[0]
    pages = Pages(backend, [row, row.columns(0, 512)])
    spans = [[0, 48], [2, 17], [0, 5]]
    got, wanted = pages.attend(queries(pages, 8), [[4, 2, 0], [1, 3, 2], [0, 0, 0]], spans, 16)
    assert got.shape == (3, 8, 512) and close(got, wanted)


def test_a_plan_is_reused_for_other_batches_and_lengths(backend):
    pages = pages_of(backend, ("page_nhd", 64, 16, "float32", 0))
    k, v = ((pages.buffer, view) for view in pages.views)
    plan = backend.plan_attention(k, v, 4, 16, SCALING)
    for requests, length in ((1, 1), (3, 48), (2, 17), (0, 0), (3, 5)):
        query = queries(pages, 2, requests)
        tables = torch.tensor(TABLES[:2] * 2, dtype=torch.int32)[:requests]
        spans = torch.tensor([[0, length]] * requests).reshape(-1, 2)
        here = [each.to(backend.device) for each in (query, tables, spans)]
        wanted = REFERENCE.attend(
            *((pages.wanted, view) for view in pages.views), query, tables, spans, 16, SCALING
        )
        assert close(plan(*here, length).cpu(), wanted)


def test_other_shapes_and_dtypes_are_refused(backend):
    pages = pages_of(backend, ("page_nhd", 64, 16, "float32", 0))
    k, v = ((pages.buffer, view) for view in pages.views)
    with pytest.raises(ValueError, match="5 query heads over 2 KV heads"):
        backend.plan_attention(k, v, 5, 16, SCALING)
    with pytest.raises(ValueError, match="blocks that divide 24, wanted"):
        backend.plan_attention(k, v, 4, 24, SCALING)
    with pytest.raises(ValueError, match=r"query \[R, 4, 64\] and spans \[R, 2\] wanted"):
        plan = backend.plan_attention(k, v, 4, 16, SCALING)
        plan(torch.zeros(1, 4, 32), torch.zeros(1, 1), torch.zeros(1, 2), 1)
