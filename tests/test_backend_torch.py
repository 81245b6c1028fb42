"""`backend=torch` against plain Python loops over bytes: tiny odd sizes, canaries around."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # a second thread costs more than it brings on small tensors

from kvpipe.backends.host_memory import host_memory  # noqa: E402
from kvpipe.backends.meta import MetaBackend  # noqa: E402
from kvpipe.backends.torch_ import TorchBackend  # noqa: E402
from kvpipe.errors import DoesNotFit  # noqa: E402
from kvpipe.layouts.base import ArrayView  # noqa: E402
from kvpipe.specs.base import DTYPE_BYTES  # noqa: E402

CANARY = 0xA5
MARGIN = 64  # bytes before and after the view
BACKEND = TorchBackend()


def view_of(
    block: int, head: int, *, blocks: int = 5, heads: int = 2, dtype: str = "bfloat16", gap: int = 0
) -> ArrayView:
    """[blocks, block, heads, head] with `gap` bytes between blocks, heads outside tokens."""
    size = DTYPE_BYTES[dtype]
    row = head * size
    strides = (block * heads * row + gap, row, block * row, size)
    shape = (blocks, block, heads, head)
    return ArrayView(
        layer="layer",
        array="k",
        buffer=0,
        dtype=dtype,
        per_token=True,
        offset=MARGIN,
        shape=shape,
        strides=strides,
    )


def buffer_for(view: ArrayView):
    buffer = BACKEND.allocate(view.shape[0] * view.strides[0] + 2 * MARGIN)
    buffer.data.fill_(CANARY)
    return buffer


def raw(buffer) -> bytearray:
    return bytearray(buffer.data.numpy().tobytes())


def place(view: ArrayView, slot: int, head: int) -> slice:
    block, token = divmod(slot, view.shape[1])
    start = view.offset + block * view.strides[0] + token * view.strides[1] + head * view.strides[2]
    return slice(start, start + view.shape[3] * view.strides[3])


def distinct_rows(count: int, view: ArrayView):
    """[count, H, D] of the view's dtype: bytes that no other row has (no NaN is compared)."""
    size = count * view.shape[2] * view.shape[3] * view.strides[3]
    flat = torch.tensor([(7 * i + i // 251) % 251 for i in range(size)], dtype=torch.uint8)
    return flat.view(BACKEND.dtype(view.dtype)).reshape(count, *view.shape[2:])


SIZES = list(product((1, 3, 16, 17), (80, 96, 576)))


@pytest.mark.parametrize(("block", "head"), SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "fp8_e4m3", "uint8"])
def test_a_write_changes_exactly_the_bytes_of_its_slots(block: int, head: int, dtype: str) -> None:
    view = view_of(block, head, dtype=dtype, gap=24)
    buffer = buffer_for(view)
    last = 5 * block - 1
    slots = [last, -1, 0, min(last, 2 * block)]
    slots = slots if len(set(slots)) == len(slots) else slots[:3]
    new = distinct_rows(len(slots), view)
    expected = raw(buffer)
    for row, slot in enumerate(slots):
        for h in range(2):
            if slot >= 0:
                expected[place(view, slot, h)] = new[row, h].view(torch.uint8).numpy().tobytes()
    BACKEND.write_kv(buffer, view, new, torch.tensor(slots))
    assert raw(buffer) == expected
    BACKEND.check()


@pytest.mark.parametrize(("block", "head"), [(1, 80), (3, 96), (17, 80)])
def test_gather_returns_a_requests_tokens_in_order(block: int, head: int) -> None:
    view = view_of(block, head)
    buffer = buffer_for(view)
    table, count = [3, 0, 4], 2 * block + 1
    buffer.data.copy_(torch.arange(buffer.num_bytes) % 249)
    everything = raw(buffer)
    expected = [
        [everything[place(view, table[t // block] * block + t % block, h)] for h in range(2)]
        for t in range(count)
    ]
    found = BACKEND.gather(buffer, view, table, count, block)
    assert found.shape == (count, 2, head)
    for t, h in product(range(count), range(2)):
        assert found[t, h].view(torch.uint8).numpy().tobytes() == bytes(expected[t][h])


def test_gather_through_smaller_kernel_blocks_finds_the_same_tokens() -> None:
    """A manager block of 6 tokens is three kernel blocks of 2: slots do not change."""
    view = view_of(2, 8, blocks=15)
    buffer = buffer_for(view)
    new = distinct_rows(6, view)
    BACKEND.write_kv(buffer, view, new, torch.arange(6) + 3 * 6)
    assert torch.equal(BACKEND.gather(buffer, view, [3], 6, 6), new)


def test_gather_fills_what_is_not_held_with_zeros() -> None:
    view = view_of(3, 8)
    buffer = buffer_for(view)
    found = BACKEND.gather(buffer, view, [-1, 1], 5, 3)
    assert not found[:3].view(torch.uint8).any() and found[3:].view(torch.uint8).all()
    BACKEND.check()


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_fill_sets_every_byte_of_the_blocks_and_no_other(byte: int) -> None:
    view = view_of(3, 5, gap=8)
    other = replace(view, buffer=1, array="v")
    buffers = [buffer_for(view), buffer_for(view)]
    expected = raw(buffers[0])
    for slot, h in product([3, 4, 5, 12, 13, 14], range(2)):
        part = place(view, slot, h)
        expected[part] = bytes([byte]) * (part.stop - part.start)
    BACKEND.fill(buffers, [view, other], torch.tensor([4, 1, -1]), byte)
    assert raw(buffers[0]) == expected and raw(buffers[1]) == expected


@pytest.mark.parametrize("dtype", [d for d in DTYPE_BYTES if "int" not in d])
def test_poison_is_nan_in_every_float_dtype(dtype: str) -> None:
    view = view_of(2, 3, dtype=dtype)
    buffer = buffer_for(view)
    BACKEND.fill([buffer], [view], [0], 0xFF)
    assert BACKEND.array(buffer, view)[0].to(torch.float32).isnan().all()


def test_copy_blocks_copies_pairs_and_nothing_else() -> None:
    view = view_of(3, 5, gap=8)
    buffer = buffer_for(view)
    buffer.data.copy_(torch.arange(buffer.num_bytes) % 249)
    expected = raw(buffer)
    for token, h in product(range(3), range(2)):
        expected[place(view, 4 * 3 + token, h)] = expected[place(view, token, h)]
        expected[place(view, 1 * 3 + token, h)] = expected[place(view, token, h)]
    BACKEND.copy_blocks([buffer], [view], [(0, 4), (0, 1)])
    assert raw(buffer) == expected


@pytest.mark.parametrize("pairs", [[(0, 1), (1, 2)], [(0, 2), (1, 2)], [(0, 1), (2, 0)]])
def test_copy_blocks_refuses_a_destination_that_is_in_another_pair(pairs) -> None:
    view = view_of(3, 5)
    buffer = buffer_for(view)
    before = raw(buffer)
    with pytest.raises(ValueError, match="is a destination and part of another pair"):
        BACKEND.copy_blocks([buffer], [view], pairs)
    assert raw(buffer) == before


def test_pack_and_unpack_move_blocks_of_tokens_and_states() -> None:
    tokens = view_of(3, 5)
    state = ArrayView(
        layer="layer",
        array="ssm",
        buffer=1,
        dtype="float32",
        per_token=False,
        offset=8,
        shape=(5, 2, 3),
        strides=(40, 12, 4),
    )
    buffers = [buffer_for(tokens), BACKEND.allocate(8 + 5 * 40)]
    for buffer in buffers:
        buffer.data.copy_(torch.arange(buffer.num_bytes) % 249)
    packed = BACKEND.pack(buffers, [tokens, state], [4, 2])
    assert packed.dtype == torch.uint8 and packed.numel() == 2 * (3 * 2 * 5 * 2 + 2 * 3 * 4)
    wanted = b"".join(
        bytes(raw(buffers[0])[place(tokens, block * 3 + t, h)])
        for block, t, h in product([4, 2], range(3), range(2))
    ) + b"".join(bytes(raw(buffers[1])[8 + b * 40 : 8 + b * 40 + 24]) for b in (4, 2))
    assert packed.numpy().tobytes() == wanted
    before = [raw(buffer) for buffer in buffers]
    BACKEND.unpack(buffers, [tokens, state], [0, 1], packed)
    assert torch.equal(BACKEND.pack(buffers, [tokens, state], [0, 1]), packed)
    BACKEND.unpack(buffers, [tokens, state], [4, 2], packed)
    changed = [i for i, (a, b) in enumerate(zip(before[1], raw(buffers[1]), strict=True)) if a != b]
    assert changed and all(8 <= i < 8 + 24 or 48 <= i < 48 + 24 for i in changed)


def test_slot_mapping_is_block_times_size_plus_position() -> None:
    table = torch.tensor([[5, -1, 2], [7, 1, -1]], dtype=torch.int32)
    rows, positions = [0, 0, 0, 1, 1, 0], [0, 3, 8, 2, 5, -1]
    found = BACKEND.slot_mapping(table, torch.tensor(rows), torch.tensor(positions), 3)
    assert found.dtype == torch.int64
    assert found.tolist() == [15, -1, 8, 23, 5, -1]
    BACKEND.check()


# --- out of range ----------------------------------------------------------------------------
def test_a_slot_past_the_end_is_not_written_and_named_by_check() -> None:
    view = view_of(3, 5)
    buffer = buffer_for(view)
    before = raw(buffer)
    BACKEND.write_kv(buffer, view, distinct_rows(3, view), torch.tensor([15, -1, 99]))
    assert raw(buffer) == before
    with pytest.raises(
        IndexError, match=r"slot 15 is past the last one, 14 of 'k' in layer; 2 out"
    ):
        BACKEND.check()
    BACKEND.check()  # told once


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda b, v: BACKEND.fill([b], [v], [5], 0), "block 5 is past the last one, 4"),
        (lambda b, v: BACKEND.pack([b], [v], [6]), "block 6 is past"),
        (lambda b, v: BACKEND.copy_blocks([b], [v], [(0, 7)]), "block 7 is past"),
        (lambda b, v: BACKEND.copy_blocks([b], [v], [(8, 0)]), "block 8 is past"),
        (lambda b, v: BACKEND.gather(b, v, [9], 1, 3), "slot 27 is past"),
        (lambda b, v: BACKEND.gather(b, v, [0], 4, 3), "block index 1 is past the last one, 0"),
        (lambda b, v: BACKEND.slot_mapping([[1]], [0], [3], 3), "block index 1 is past"),
        (
            lambda b, v: BACKEND.slot_mapping([[1]], [1], [0], 3),
            "request 1 is past the last one, 0",
        ),
    ],
)
def test_every_operation_counts_what_is_out_of_range(operation, message: str) -> None:
    view = view_of(3, 5)
    buffer = buffer_for(view)
    before = raw(buffer)
    operation(buffer, view)
    assert raw(buffer) == before
    with pytest.raises(IndexError, match=message):
        BACKEND.check()


def test_empty_batches_do_nothing() -> None:
    view = view_of(3, 5)
    buffer = buffer_for(view)
    before = raw(buffer)
    none = torch.empty(0, dtype=torch.int64)
    BACKEND.write_kv(buffer, view, distinct_rows(0, view), none)
    BACKEND.fill([buffer], [view], none, 0)
    BACKEND.copy_blocks([buffer], [view], [])
    BACKEND.unpack([buffer], [view], [], BACKEND.pack([buffer], [view], []))
    assert BACKEND.gather(buffer, view, [1], 0, 3).shape == (0, 2, 5)
    assert BACKEND.slot_mapping([[1]], none, none, 3).shape == (0,)
    assert BACKEND.pack([buffer], [], [1]).numel() == 0
    assert raw(buffer) == before
    BACKEND.check()


# --- fp8 -------------------------------------------------------------------------------------
def all_numbers(dtype):
    """Every number of a 16-bit format, as [65536, 1, 1]."""
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(-1, 1, 1)


@pytest.mark.parametrize("scale", [1.0, 0.037])
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("fp8", "limit"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_fp8_rounds_to_the_nearest_of_the_format_and_keeps_nan(fp8, limit, source, scale) -> None:
    """Against the format's own 256 numbers, by distance: not against torch's cast."""
    view = view_of(1, 1, blocks=65536, heads=1, dtype=fp8)
    buffer = buffer_for(view)
    new = all_numbers(source)
    BACKEND.write_kv(buffer, view, new, torch.arange(65536), scale)
    found = BACKEND.array(buffer, view).flatten().to(torch.float64)
    exact = (new.flatten().to(torch.float32) / scale).to(torch.float64)
    nan = exact.isnan()
    assert found[nan].isnan().all() and not found[~nan].isnan().any()
    grid = torch.arange(256, dtype=torch.uint8).view(BACKEND.dtype(fp8)).to(torch.float64)
    grid = torch.unique(grid[grid.isfinite()])
    wanted = exact[~nan].clamp(-limit, limit)
    above = torch.searchsorted(grid, wanted).clamp(max=len(grid) - 1)
    below = (above - 1).clamp(min=0)
    best = torch.minimum((grid[above] - wanted).abs(), (wanted - grid[below]).abs())
    assert torch.equal((found[~nan] - wanted).abs(), best)
    assert found[~nan].abs().max() == limit


def test_fp8_infinities_become_the_largest_number() -> None:
    view = view_of(1, 1, blocks=3, heads=1, dtype="fp8_e4m3")
    buffer = buffer_for(view)
    new = torch.tensor([math.inf, -math.inf, 1000.0]).reshape(3, 1, 1)
    BACKEND.write_kv(buffer, view, new, torch.arange(3))
    assert BACKEND.array(buffer, view).flatten().to(torch.float32).tolist() == [448, -448, 448]


def test_gather_dequantises_with_the_scale_that_was_written() -> None:
    view = view_of(2, 4, dtype="fp8_e4m3")
    buffer = buffer_for(view)
    new = torch.tensor([1.0, -2.0, 0.5, 3.0]).repeat(2, 2, 1)
    BACKEND.write_kv(buffer, view, new, torch.tensor([4, 5]), 0.25)
    found = BACKEND.gather(buffer, view, [2], 2, 2, out_dtype="float32", scale=0.25)
    assert found.dtype == torch.float32 and torch.equal(found, new)
    assert BACKEND.gather(buffer, view, [2], 2, 2).dtype == torch.float8_e4m3fn


def test_nan_payloads_survive_a_write_and_a_gather() -> None:
    view = view_of(1, 2, heads=1)
    buffer = buffer_for(view)
    new = torch.tensor([0x7FC1, 0xFFFF], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    BACKEND.write_kv(buffer, view, new.reshape(1, 1, 2), torch.tensor([3]))
    assert BACKEND.gather(buffer, view, [3], 1, 1).view(torch.uint16).tolist() == [
        [[0x7FC1, 0xFFFF]]
    ]


# --- memory ----------------------------------------------------------------------------------
def test_allocate_is_zeroed_and_really_that_large() -> None:
    buffer = BACKEND.allocate(12345)
    assert buffer.data.untyped_storage().nbytes() == 12345
    assert not buffer.data.any()
    assert BACKEND.allocate(0).data.numel() == 0


def test_more_than_is_free_does_not_fit() -> None:
    with pytest.raises(DoesNotFit, match=r"asked for, .* free; backend=meta plans"):
        BACKEND.allocate(1 << 60)


def machine(root: Path, total_kib: int, available_kib: int, cgroup: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    text = f"MemTotal: {total_kib} kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\n"
    (root / "proc/meminfo").write_text(text)
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def group(folder: Path, v2: bool, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if not v2:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cache}\n")


def test_memory_is_the_machines_without_a_cgroup_limit(tmp_path: Path) -> None:
    root = machine(tmp_path, 1000, 600, "0::/\n")
    group(root / "sys/fs/cgroup", True, "max", 5, 0)
    info = host_memory(root)
    assert (info.total_bytes, info.free_bytes, info.source) == (1024000, 614400, "/proc/meminfo")


def test_memory_respects_a_cgroup_v2_limit_of_any_ancestor(tmp_path: Path) -> None:
    root = machine(tmp_path, 1000, 600, "0::/pod/app\n")
    group(root / "sys/fs/cgroup/pod", True, "500000", 100000, 20000)
    group(root / "sys/fs/cgroup/pod/app", True, "max", 100000, 0)
    info = host_memory(root)
    assert (info.total_bytes, info.free_bytes, info.source) == (500000, 420000, "cgroup /pod")


def test_memory_respects_a_cgroup_v1_limit(tmp_path: Path) -> None:
    root = machine(tmp_path, 1000, 600, "4:memory:/job\n0::/\n")
    group(root / "sys/fs/cgroup/memory/job", False, "300000", 50000, 10000)
    group(root / "sys/fs/cgroup/memory", False, str((1 << 63) - 4096), 50000, 0)
    info = host_memory(root)
    assert (info.total_bytes, info.free_bytes, info.source) == (300000, 260000, "cgroup /job")


def test_memory_in_a_container_whose_mount_is_its_own_group(tmp_path: Path) -> None:
    root = machine(tmp_path, 1000, 600, "0::/docker/abc\n")
    group(root / "sys/fs/cgroup", True, "400000", 400000, 0)
    assert host_memory(root).total_bytes == 400000
    assert host_memory(root).free_bytes == 0


def test_memory_of_this_machine_is_believable() -> None:
    info = BACKEND.memory_info()
    assert 0 < info.free_bytes <= info.total_bytes


# --- backends as plugins ---------------------------------------------------------------------
def test_meta_accepts_every_operation_and_holds_nothing() -> None:
    meta = MetaBackend()
    view = view_of(3, 5)
    buffer = meta.allocate(1 << 50)
    assert buffer.num_bytes == 1 << 50 and buffer.data is None
    assert meta.array(buffer, view) is None
    meta.write_kv(buffer, view, None, None)
    meta.check()
    assert meta.describe()["backend"] == "meta"


def test_a_missing_torch_is_a_problem_that_names_what_to_install(monkeypatch) -> None:
    assert TorchBackend.problems() == []
    monkeypatch.setattr("kvpipe.backends.torch_.find_spec", lambda name: None)
    (problem,) = TorchBackend.problems()
    assert "pip install" in problem.knob and "backend=meta" in problem.knob


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that torch sees")
def test_a_cuda_device_takes_the_same_code() -> None:
    backend = TorchBackend(TorchBackend.Options(name="torch", device="cuda"))
    view = view_of(3, 80)
    buffer = backend.allocate(view.shape[0] * view.strides[0] + 2 * MARGIN)
    new = distinct_rows(3, view).cuda()
    backend.write_kv(buffer, view, new, torch.tensor([0, -1, 14]))
    assert torch.equal(backend.gather(buffer, view, [0], 1, 3)[0], new[0])
    assert backend.memory_info().source == "torch.cuda.mem_get_info"
