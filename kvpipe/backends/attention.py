"""Decode attention over pages, planned once: one query a request, through its block table.

R requests, H KV heads, Q query heads (a multiple of H), D and Dv head sizes of K and V.
"""

from __future__ import annotations

from math import gcd, log2
from typing import Any

from kvpipe.backends._grid import MAX_ROWS, grid_x, lanes_and_rows
from kvpipe.backends._launcher import Launch, Launcher
from kvpipe.backends._pages import check_extent
from kvpipe.backends.base import Array, Buffer
from kvpipe.backends.torch_ import FP8_MAX
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES

ATTENDED = ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2")
# Tokens that one row of the second launch adds up: enough rows for a GPU, and the values of one KV
# head's split stay in a core's own cache for all its query heads.
SPLIT_TOKENS = 256
_LOG2_E = log2(2.718281828459045)


class AttentionPlan:
    """plan(query, block_tables, spans, max_tokens) -> [R, Q, Dv] in the query's dtype.

    query [R, Q, D]; block_tables [R, max_blocks] int32; spans [R, 2] int64: the tokens
    [first, stop) that a request's query sees; max_tokens: the most that one sees. Sums are float32.
    Scratch memory is allocated a call: R * Q * (max_tokens + Dv / 256) numbers.
    """

    def __init__(
        self,
        backend: Launcher,
        keys: tuple[Buffer, ArrayView],
        values: tuple[Buffer, ArrayView],
        num_query_heads: int,
        block_size: int,
        scaling: float,
        scales: tuple[float, float],
    ) -> None:
        (k_buffer, k), (v_buffer, v) = keys, values
        check_extent(k_buffer, k)
        check_extent(v_buffer, v)
        fits = k.per_token and v.per_token and k.shape[:3] == v.shape[:3] and k.dtype == v.dtype
        if not fits or k.dtype not in ATTENDED or block_size % k.shape[1]:
            raise ValueError(
                f"attend: per-token K and V of one shape and dtype ({', '.join(ATTENDED)}), in "
                f"blocks that divide {block_size}, wanted, got {k.shape} {k.dtype} and "
                f"{v.shape} {v.dtype}"
            )
        if num_query_heads % k.shape[2] or k.shape[0] * k.shape[1] > MAX_ROWS:
            raise ValueError(f"attend: {num_query_heads} query heads over {k.shape[2]} KV heads")
        self._backend, self._torch = backend, backend.torch
        self._heads, self._group = k.shape[2], num_query_heads // k.shape[2]
        self._size, self._size_v = k.shape[3], v.shape[3]
        self._block_size, self._page_tokens = block_size, k.shape[1]
        of_k, of_v = scales if k.dtype in FP8_MAX else (1.0, 1.0)
        self._factors = backend.scales_at((scaling * _LOG2_E * of_k, of_v))
        self._new = self._torch.empty(0, dtype=self._torch.float32, device=backend.device).new_empty
        self._scores = self._prepare_scores(k_buffer, k)
        self._values = self._prepare_values(v_buffer, v)
        self._combine = self._prepare_combine()

    def __call__(self, query: Array, block_tables: Array, spans: Array, max_tokens: int) -> Array:
        requests = query.shape[0]
        heads = self._heads * self._group
        if query.shape[1:] != (heads, self._size) or spans.shape != (requests, 2):
            raise ValueError(
                f"attend: query [R, {heads}, {self._size}] and spans [R, 2] wanted, got "
                f"{list(query.shape)} and {list(spans.shape)}"
            )
        splits = -(-max_tokens // SPLIT_TOKENS)
        if not requests or not splits:
            return query.new_zeros((requests, heads, self._size_v))
        rows, float32 = requests * heads, self._torch.float32
        asked = query if query.dtype is float32 else query.to(float32)
        asked = asked if asked.is_contiguous() else asked.contiguous()
        out = self._new(requests, heads, self._size_v)
        scratch = self._new(rows * (max_tokens + splits * (self._size_v + 2)))
        scores = scratch.data_ptr()
        partials = scores + rows * max_tokens * scratch.itemsize
        table = block_tables.data_ptr(), block_tables.stride(0), block_tables.shape[1]
        seen = spans.data_ptr()
        blocks = (max_tokens + self._page_tokens - 2) // self._page_tokens + 1
        words = self._scores.words
        words[0], words[1], words[2], words[3] = scores, max_tokens, asked.data_ptr(), requests
        words[11], words[12], words[13] = table
        words[17], words[18] = seen, blocks
        self._run(self._scores, requests * self._heads * blocks)
        words = self._values.words
        words[0], words[1], words[2], words[3] = partials, scores, max_tokens, requests
        words[11], words[12], words[13] = table
        words[17], words[19] = seen, splits
        self._run(self._values, rows * splits)
        words = self._combine.words
        words[0], words[1] = out.data_ptr(), partials
        words[2], words[4] = requests * self._heads, splits
        self._run(self._combine, rows)
        return out if query.dtype is float32 else out.to(query.dtype)

    @staticmethod
    def _run(launch: Launch, rows: int) -> None:
        launch.shape[0] = grid_x(rows, launch.shape[4])
        launch.run()

    def _prepare_scores(self, buffer: Buffer, view: ArrayView) -> Launch:
        paged, width = self._paged(buffer, view)
        words = [0, 0, 0, 0, self._heads, self._group, self._size // width, *paged, 0, 0,
                 self._backend.errors.address, self._factors]  # fmt: skip
        lanes, rows = lanes_and_rows(self._page_tokens)
        name = f"kv_scores_{view.dtype}_v{width}"
        return self._backend.prepare(name, words, (1, 1, 1, lanes, rows, 1))

    def _prepare_values(self, buffer: Buffer, view: ArrayView) -> Launch:
        paged, width = self._paged(buffer, view)
        words = [0, 0, 0, 0, self._heads, self._group, self._size_v // width, *paged, 0,
                 SPLIT_TOKENS, 0]  # fmt: skip
        lanes, rows = lanes_and_rows(self._size_v // width)
        name = f"kv_values_{view.dtype}_v{width}"
        return self._backend.prepare(name, words, (1, 1, 1, lanes, rows, 1))

    def _prepare_combine(self) -> Launch:
        words = [0, 0, 0, self._group, 0, self._size_v, self._factors]
        lanes, rows = lanes_and_rows(self._size_v)
        return self._backend.prepare("kv_combine", words, (1, 1, 1, lanes, rows, 1))

    def _paged(self, buffer: Buffer, view: ArrayView) -> tuple[list[int], int]:
        """PAGED_PARAMETERS of kv_cache.cu, and how many numbers a lane loads at once."""
        num_blocks, page_tokens, heads, size = view.shape
        block, token, head = (
            stride if count > 1 else 0
            for stride, count in zip(view.strides[:3], view.shape[:3], strict=True)
        )
        cache, itemsize = buffer.data.data_ptr() + view.offset, DTYPE_BYTES[view.dtype]
        wide = gcd(cache, block, token, head) % min(16, 8 * itemsize) == 0 and size % 8 == 0
        words: list[Any] = [cache, block, token, head, 0, 0, 0, num_blocks,
                            self._block_size // page_tokens, page_tokens]  # fmt: skip
        return words, 8 if wide else 1
