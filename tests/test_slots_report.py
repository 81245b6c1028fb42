"""What the report says of equal slots: the promise, the bound and the running server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvpipe.front.api import RunResult, run


@pytest.fixture(scope="module")
def gemma() -> Iterator[RunResult]:
    yield run(
        [
            "model=gemma3_27b",
            "device=h100_80gb",
            "cache.kv_cache_memory_bytes=20GiB",
            "scheduler.max_model_len=32768",
            "scheduler.max_num_batched_tokens=8192",
            "report=full",
        ]
    )
