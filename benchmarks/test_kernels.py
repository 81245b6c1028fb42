"""The kernels on this CPU beside memcpy and torch, one thread.

    pytest benchmarks/test_kernels.py --benchmark-enable --benchmark-group-by=group
    pytest benchmarks/test_kernels.py -k ratios          # the promised ratios, interleaved

The ratios are of medians of interleaved rounds in thread CPU time; absolute times mean nothing on
another machine.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rivals.kernels import Rivals, contenders, interleaved, planned_launch_us  # noqa: E402

from kvpipe.backends.host import HostBackend  # noqa: E402

GROUPS = {
    "write_kv, whole blocks": 4,
    "write_kv, every token elsewhere": 4,
    "write_kv, bf16 to fp8": 2,
    "gather, whole blocks": 5,
    **{f"gather of {tokens} tokens, one array": 2 for tokens in (1, 16, 256)},
    **{
        f"decode attention over {tokens:,} tokens of {dtype}": 3
        for tokens in (64, 256, 1024, 4096)
        for dtype in ("bfloat16", "float16", "float32")
    },
    "fill 256 blocks": 2,
    "slot_mapping of 4,096 tokens": 2,
}
ROUNDS = 40


@cache
def host() -> HostBackend:
    missing = HostBackend.problems()
    if missing:
        pytest.skip(str(missing[0]))
    torch.set_num_threads(1)
    return HostBackend()


@cache
def groups() -> Rivals:
    return contenders(host())


@pytest.mark.parametrize(
    ("group", "index"), [(name, i) for name, count in GROUPS.items() for i in range(count)]
)
def test_operation(benchmark: Any, group: str, index: int) -> None:
    assert len(groups()[group]) == GROUPS[group]
    name, run = list(groups()[group].items())[index]
    benchmark.group, benchmark.name = group, name
    benchmark(run)


@cache
def medians(group: str) -> dict[str, float]:
    return interleaved(groups()[group], ROUNDS, cuda=False)


def test_ratios_of_writes_to_memcpy_and_torch() -> None:
    took = medians("write_kv, whole blocks")
    ours = took["kvpipe"]
    assert ours <= 1.3 * took["memcpy of the same bytes"]
    assert 1.6 * ours <= took["torch index_put_"]
    assert 1.6 * ours <= took["torch index_copy_ (needs one contiguous pool)"]


def test_ratios_of_fp8_writes_to_torch() -> None:
    took = medians("write_kv, bf16 to fp8")
    assert 5 * took["kvpipe"] <= took["torch: divide, clamp, cast, index_copy_"]


def test_ratios_of_gathers_to_the_best_of_torch() -> None:
    took = medians("gather, whole blocks")
    best = min(took["torch index_select of blocks"], took["torch index_select of tokens"])
    assert took["kvpipe"] <= 1.1 * best  # the same memcpy a block: equal but for noise


def test_ratios_of_decode_attention_to_dense_sdpa() -> None:
    for dtype, tokens in product(("bfloat16", "float16", "float32"), (256, 1024, 4096)):
        took = medians(f"decode attention over {tokens:,} tokens of {dtype}")
        assert took["kvpipe"] <= 1.2 * took["torch sdpa, dense K and V"]


def test_ratios_a_planned_launch_takes_less_than_two_microseconds() -> None:
    assert planned_launch_us(host()) < 2.0
