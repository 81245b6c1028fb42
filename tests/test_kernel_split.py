"""Kernels that take small blocks read large ones, with other layers' pages between, as several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvpipe
from kvpipe.backends.host import HostBackend
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.blocks import BlockManager
from kvpipe.blocks.request import BlockCopy
from kvpipe.blocks.transfer import BlockMover
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec, Plan
from kvpipe.engines.kvpipe import PLUGIN as KVPIPE
from kvpipe.engines.vllm_0_33 import PLUGIN as VLLM_0_33
from kvpipe.errors import ConfigError
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import Buffers
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import make_plan
from kvpipe.stages.grouping.pool import Pool
from kvpipe.stages.grouping.slots.kernels import are_read

torch = pytest.importorskip("torch")

HEADS, WIDTH, NUM_BLOCKS, KERNEL = 2, 8, 150, 16
ROW = HEADS * WIDTH * 2  # bytes of K, and of V, of a token
# Tokens of a block and layers: slots of 400 tokens of one layer; the last two leave some unused.
#   16 x 25    | k v | k v | k v | ...            a kernel block of each of 25 layers
#   80 x 5     | k v k v k v k v k v | k v ...    five kernel blocks of a layer, then the next one's
#   48 x 8     | k v k v k v | ...          ...   unused: one kernel block
TABLES = ((16, 25), (80, 5), (400, 1), (48, 8), (272, 1))
SLOT = 400 * 2 * ROW
LIMITS = RequestLimits(max_model_len=900, max_num_batched_tokens=700)


def spec_of(tokens: int, window: bool) -> Any:
    if window:
        return SlidingWindowSpec(
            block_size=tokens, num_kv_heads=HEADS, head_size=WIDTH, dtype="float16",
            sliding_window=500,
        )  # fmt: skip
    return FullAttentionSpec(
        block_size=tokens, num_kv_heads=HEADS, head_size=WIDTH, dtype="float16"
    )


def arena() -> KVCacheConfig:
    groups = tuple(
        KVCacheGroupSpec(
            layer_names=tuple(f"{tokens}.{i}" for i in range(layers)),
            spec=spec_of(tokens, window=tokens in (80, 48)),
        )
        for tokens, layers in TABLES
    )
    pool = Pool(groups=groups, rules=KVPIPE, layout="BLNHC", in_slots=True)
    assert pool.bytes_per_block == SLOT
    return pool.config(NUM_BLOCKS)


def allocated(backend: Any, layout: str) -> KVBuffers:
    config = arena()
    addresses = address_map(config, (), layout, kernel_block_size=KERNEL)
    stage = Buffers(Buffers.Options(name="buffers", init="zero"))
    return stage.run(AllocationRequest(config=config, addresses=addresses), backend)


def byte_of(layout: str, array: str, tokens: int, layer: int, block: int, at: int) -> list[int]:
    """First byte of each head of a token: slot, the layer's page, the kernel block, K or V."""
    page = block * SLOT + layer * tokens * 2 * ROW
    inside = page + at % tokens // KERNEL * (KERNEL * 2 * ROW)
    n, wide = at % KERNEL, WIDTH * 2
    if layout == "kv_packed":  # heads outermost, K and V of a token side by side
        return [inside + (h * KERNEL + n) * 2 * wide + wide * (array == "v") for h in range(HEADS)]
    start = inside + KERNEL * ROW * (array == "v")
    if layout.endswith("hnd"):
        return [start + (h * KERNEL + n) * wide for h in range(HEADS)]
    return [start + n * ROW + h * wide for h in range(HEADS)]


class Walked:
    """Two requests, each token written once into every layer; what lies where, token by token."""

    def __init__(self, backend: Any, layout: str) -> None:
        self.layout, self.backend = layout, backend
        self.buffers = allocated(backend, layout)
        self.manager = BlockManager(arena(), LIMITS, max_num_requests=4)
        self.wanted: dict[tuple[str, str, str, int], Any] = {}
        self.random = np.random.default_rng(0)
        for request, steps in (("a", (37, 500, 113)), ("b", (401,))):
            self.manager.add_request(request)
            for new in steps:
                self.step(request, new)

    def step(self, request: str, new: int) -> None:
        self.manager.begin_step()
        first = self.manager.num_tokens(request)
        self.manager.allocate(request, new)
        for layer in self.buffers.addresses.layers:
            slots = self.manager.slot_mapping(layer.group)
            for view in layer.views:
                rows = self.random.standard_normal((new, HEADS, WIDTH)).astype(np.float16)
                ids = view.kernel_ids(NUM_BLOCKS)
                where = torch.from_numpy(np.array(ids.slots(slots)))
                buffer = self.buffers.buffers[view.buffer]
                self.backend.write_kv(buffer, view, torch.from_numpy(rows), where)
                for i, row in enumerate(rows):
                    self.wanted[request, layer.layer, view.array, first + i] = row

    def held(self, request: str, group: int) -> range:
        tokens = TABLES[group][0]
        (blocks,) = self.manager.block_table(group, [request])
        first = int((blocks > 0).argmax()) * tokens
        return range(first, self.manager.num_tokens(request))


LAYOUTS = [
    pytest.param("flashinfer_hnd"),
    *(pytest.param(name, marks=pytest.mark.full) for name in ("flash_attn", "kv_packed")),
]


@pytest.fixture(scope="module", params=LAYOUTS)
def walked(request: pytest.FixtureRequest) -> Walked:
    return Walked(HostBackend(), request.param)


@pytest.mark.full
def test_every_token_lies_where_the_walk_finds_it_and_no_two_share_a_byte(walked: Walked) -> None:
    raw = walked.buffers.buffers[0].data.numpy()
    owner: dict[int, tuple[Any, ...]] = {}
    for group, (tokens, layers) in enumerate(TABLES):
        for request in ("a", "b"):
            (blocks,) = walked.manager.block_table(group, [request])
            for at in walked.held(request, group):
                for layer in range(layers):
                    for array in ("k", "v"):
                        place = (walked.layout, array, tokens, layer, int(blocks[at // tokens]), at)
                        row = walked.wanted[request, f"{tokens}.{layer}", array, at]
                        for head, start in enumerate(byte_of(*place)):
                            assert owner.setdefault(start, (*place, head)) == (*place, head)
                            found = raw[start : start + 2 * WIDTH].view(np.float16)
                            assert (found == row[head]).all(), place
    tokens_held = sum(
        layers * len(walked.held(request, group))
        for group, (_, layers) in enumerate(TABLES)
        for request in "ab"
    )
    assert len(owner) == 2 * HEADS * tokens_held


@pytest.mark.parametrize("group", range(len(TABLES)), ids=lambda g: f"{TABLES[g][0]} tokens")
def test_gather_and_attention_are_those_of_tokens_that_were_never_paged(
    walked: Walked, group: int
) -> None:
    backend, layer = walked.backend, f"{TABLES[group][0]}.0"
    k_view, v_view = walked.buffers.addresses.of_layer(layer).views
    ids = k_view.kernel_ids(NUM_BLOCKS)
    held = TABLES[group][0] // KERNEL
    assert (ids.held, ids.apart, ids.rows) == (held, 25 if held > 1 else 1, KERNEL)
    tables = walked.manager.block_table(group, ["a", "b"])
    tables = np.where(tables > 0, tables, -1).astype(np.int32)
    entries = torch.from_numpy(ids.table(tables, np.arange(ids.held, dtype=np.int32)).copy())
    buffer = walked.buffers.buffers[0]
    query = torch.randn(2, 2 * HEADS, WIDTH, generator=torch.Generator().manual_seed(1))
    spans = [[walked.held(name, group).start, walked.held(name, group).stop] for name in "ab"]
    got = backend.attend(
        *((buffer, view) for view in (k_view, v_view)),
        query, entries, torch.tensor(spans), ids.table_rows, 0.5,
    )  # fmt: skip
    for r, name in enumerate("ab"):
        held = walked.held(name, group)
        rows = {
            view.array: np.stack([walked.wanted[name, layer, view.array, at] for at in held])
            for view in (k_view, v_view)
        }
        for view in (k_view, v_view):
            read = backend.gather(buffer, view, entries[r], held.stop, ids.table_rows)
            assert (read[held.start :].numpy() == rows[view.array]).all()
        for q in range(2 * HEADS):
            keys, values = (rows[x][:, q // 2].astype(np.float64) for x in "kv")
            scores = np.exp(0.5 * keys @ query[r, q].double().numpy())
            dense = scores @ values / scores.sum()
            assert np.allclose(got[r, q].double().numpy(), dense, rtol=1e-4, atol=1e-4)
    backend.check()


def test_a_copied_block_takes_all_of_its_kernel_blocks_and_nothing_beside_them() -> None:
    buffers = allocated(TorchBackend(), "flash_attn")
    data = buffers.buffers[0].data
    data.copy_((torch.arange(data.numel()) * 7 % 251).to(torch.uint8))
    before = data.clone()
    BlockMover(buffers).copy([BlockCopy(3, 4, 9)])  # the 48-token table fills 24 of 25 parts
    wanted = before.clone()
    used = 8 * 48 * 2 * ROW
    wanted[9 * SLOT : 9 * SLOT + used] = before[4 * SLOT : 4 * SLOT + used]
    assert torch.equal(data, wanted) and not torch.equal(data, before)


def test_pages_that_no_kernel_block_divides_the_slot_by_are_refused() -> None:
    groups = (
        KVCacheGroupSpec(layer_names=("a", "b"), spec=spec_of(48, False)),
        KVCacheGroupSpec(
            layer_names=("c",),
            spec=FullAttentionSpec(block_size=48, num_kv_heads=5, head_size=8, dtype="float16"),
        ),
    )
    config = Pool(groups=groups, rules=KVPIPE, layout="BLNHC", in_slots=True).config(9)
    with pytest.raises(ConfigError, match=r"kernel_block_size: .*padded or interleaved"):
        address_map(config, kernel_block_size=16)  # a slot of 7,680 bytes, a kernel block of 1,024
    with pytest.raises(ConfigError, match="pages cannot be split: padded or interleaved"):
        address_map(config, (), "flashinfer_nhd", any_kernel_block=False)


def test_an_engine_that_splits_no_such_page_is_told_so() -> None:
    with pytest.raises(ConfigError, match="padded or interleaved"):
        address_map(arena(), kernel_block_size=16, splits_apart_pages=False)
    assert not VLLM_0_33.splits_apart_pages


# --- the planner ----------------------------------------------------------------------------------
# 52 windows beside 10 full layers, as Gemma-3-27B has them.
GEMMA = [CacheLayer(name=f"l{i}", spec=spec_of(16, i % 6 != 5 or i > 59)) for i in range(62)]


def planned(
    kernel_sizes: tuple[int, ...], rules: Any = KVPIPE, layers: list[CacheLayer] = GEMMA
) -> Plan:
    request = GroupingRequest(
        ranks=(tuple(layers),),
        limits=RequestLimits(max_model_len=8192, max_num_batched_tokens=512),
        memory=(2**28,),
        rules=rules,
        kernel_sizes=kernel_sizes,
    )
    return make_plan(request)


def sizes(plan: Plan) -> list[tuple[int, int]]:
    return [(group.spec.block_size, len(group.layer_names)) for group in plan.groups]


def test_a_kernel_of_small_blocks_takes_no_better_plan_away() -> None:
    """2 windows in blocks of 80 tokens beside 10 in blocks of 16: five kernel blocks of ten."""
    free, split = planned(()), planned((16, 32, 64))
    assert sizes(free) == sizes(split) and (80, 2) in sizes(split)
    whole = planned((16, 32, 64), rules=replace(KVPIPE, splits_apart_pages=False))
    assert free.capacity and whole.capacity
    assert whole.capacity.steady_bytes >= free.capacity.steady_bytes
    assert all(tokens in (16, 32, 64) for tokens, _ in sizes(whole))
    addresses = address_map(split.ranks[0].config, (), "flashinfer_nhd", any_kernel_block=False)
    found = {g.block_size: g.kernel_block_size for g in addresses.groups}
    assert found == {16: 16, 80: 16}


@pytest.mark.parametrize("kernel_sizes", [(16,), (16, 32, 64)])
def test_whatever_the_planner_splits_the_address_map_takes(kernel_sizes: tuple[int, ...]) -> None:
    plan = planned(kernel_sizes)
    config = plan.ranks[0].config
    layers = {n: g.layer_spec(n) for g in plan.groups for n in g.layer_names}
    assert plan.slots is not None and are_read(plan.groups, [layers], kernel_sizes)
    if len(kernel_sizes) == 1:
        address_map(config, kernel_block_size=kernel_sizes[0])
    else:
        address_map(config, (), "flashinfer_nhd", any_kernel_block=False)


@pytest.mark.parametrize(("windows", "full"), [(29, 11), (8, 5), (25, 11)])
def test_of_layers_whose_rows_differ_a_plan_is_found_that_kernels_read(
    windows: int, full: int
) -> None:
    """2 heads beside 3: the cheapest slots are no whole number of both layers' kernel blocks."""
    three = replace(spec_of(16, False), num_kv_heads=3)
    layers = [CacheLayer(name=f"w{i}", spec=spec_of(16, True)) for i in range(windows)]
    layers += [CacheLayer(name=f"f{i}", spec=three) for i in range(full)]
    sizes_ = (16, 32, 64)
    free, split = planned((), layers=layers), planned(sizes_, layers=layers)
    specs = {n: g.layer_spec(n) for g in free.groups for n in g.layer_names}
    assert not are_read(free.groups, [specs], sizes_)
    assert split.slots and split.slots.never_worse_than == ("equal groups", "vllm_0_33")
    address_map(split.ranks[0].config, (), "flashinfer_nhd", any_kernel_block=False)


FAULTS = [pytest.param(name, marks=pytest.mark.full) for name in ("alias", "swap", "lost")]


@pytest.mark.parametrize("inject", ["none", *FAULTS])
def test_a_run_with_split_pages_proves_itself_and_finds_injected_faults(inject: str) -> None:
    asked = [
        "model=gemma3_27b", "device=cpu", "cache.kv_cache_memory_bytes=1600MiB",
        "scheduler.max_model_len=4096", "scheduler.max_num_batched_tokens=512",
        "layout.kernel_block_size=16", f"binding.verify.inject={inject}", "backend=torch",
    ]  # fmt: skip
    result = kvpipe.run(asked)
    groups = result.addresses[0].groups
    assert any(g.kernel_block_size == 16 < g.block_size for g in groups)
    report = result.bound[0].verify
    assert (report.mismatches == 0) == (inject == "none") and report.rows
