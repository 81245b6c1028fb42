"""Rows, slots and bytes beyond 2^31 and 2^32, on memory that is mostly holes of a file."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvpipe.backends.base import Buffer
from kvpipe.backends.host import HostBackend
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.layouts.base import ArrayView

pytestmark = pytest.mark.full
REFERENCE = TorchBackend()
MAX_ROWS = 2**31 - 1  # kernels count rows and slots in 32 bits


@pytest.fixture(params=["fast", "exact", "reverse"])
def host(request: pytest.FixtureRequest, compiled: None) -> HostBackend:
    return HostBackend(HostBackend.Options(name="host", build=request.param))


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[object]:
    """num_bytes -> a buffer over a file without blocks; the address space is all it takes."""

    def make(num_bytes: int) -> Buffer:
        path = tmp_path / "holes"
        with path.open("wb") as file:
            file.truncate(num_bytes)
        if path.stat().st_blocks:
            pytest.skip("this file system has no holes")
        with path.open("r+b") as file:
            pages = mmap.mmap(file.fileno(), num_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = torch.frombuffer(pages, dtype=torch.uint8)
        return Buffer(num_bytes=num_bytes, data=data)

    yield make


def view_of(num_blocks: int, block_size: int, token: int, width: int) -> ArrayView:
    """One head of `width` bytes every `token` bytes."""
    return ArrayView(
        layer="l", array="k", buffer=0, dtype="uint8", per_token=True, offset=0,
        shape=(num_blocks, block_size, 1, width), strides=(block_size * token, token, width, 1),
    )  # fmt: skip


# Bytes far beyond 2^32 in few slots, and as many slots as the kernels count in 32 bits.
SHAPES = {
    "48 GiB in blocks of 1 MiB": view_of(3 << 14, 16, 1 << 16, 80),
    "2^31 - 16 slots of one byte": view_of((MAX_ROWS - 15) // 16, 16, 1, 1),
}


@pytest.mark.parametrize("view", SHAPES.values(), ids=SHAPES)
def test_the_last_slots_are_written_and_read_where_torch_writes_and_reads(host, sparse, view):
    num_blocks, size, _, width = view.shape
    buffer = sparse(num_blocks * view.strides[0])
    last = num_blocks * size - 1
    slots = torch.tensor([0, last, last // 2, last - size, (1 << 31) % last, -1])
    new = torch.arange(6 * width).reshape(6, 1, width).to(torch.uint8) + 1
    host.write_kv(buffer, view, new, slots)
    for slot, row in zip(slots[:5].tolist(), new[:5, 0], strict=True):
        at = slot // size * view.strides[0] + slot % size * view.strides[1]
        assert torch.equal(buffer.data[at : at + width], row)
    blocks = [last // size, 0, last // 2 // size]
    table = torch.tensor(blocks, dtype=torch.int32)
    got = host.gather(buffer, view, table, 3 * size, size)
    assert torch.equal(got, REFERENCE.gather(buffer, view, table, 3 * size, size))
    assert got.any(dim=(1, 2)).sum() >= 3
    host.check()


@pytest.mark.parametrize("view", SHAPES.values(), ids=SHAPES)
def test_the_last_blocks_are_copied_packed_filled_and_unpacked(host, sparse, view):
    num_blocks = view.shape[0]
    buffer = sparse(num_blocks * view.strides[0])
    last = num_blocks - 1
    pattern = torch.arange(view.strides[0]).to(torch.uint8)
    buffer.data[-view.strides[0] :] = pattern
    host.copy_blocks([buffer], [view], [(last, 0), (last, last - 7)])
    held = REFERENCE.pack([buffer], [view], [last])
    for block in (0, last - 7, last):
        assert torch.equal(host.pack([buffer], [view], [block]), held)
    host.fill([buffer], [view], torch.tensor([last]), 0xAB)
    assert (host.pack([buffer], [view], [last]) == 0xAB).all()
    host.unpack([buffer], [view], [last], held)
    assert torch.equal(REFERENCE.pack([buffer], [view], [last]), held)
    host.fill([buffer], [view], torch.tensor([num_blocks]), 0)
    with pytest.raises(IndexError, match=f"is block {num_blocks}, the last one is {last}"):
        host.check()


def test_more_slots_than_the_kernels_count_are_refused(host, sparse):
    view = view_of((MAX_ROWS + 1) // 16, 16, 1, 1)
    buffer = sparse(view.shape[0] * 16)
    with pytest.raises(ValueError, match="2,147,483,648 slots, the kernels count to 2,147,483,647"):
        host.write_kv(buffer, view, torch.ones(1, 1, 1, dtype=torch.uint8), torch.tensor([0]))
    with pytest.raises(ValueError, match="not a per-token array in blocks that divide 16"):
        host.gather(buffer, view, torch.tensor([0], dtype=torch.int32), 1, 16)


def test_slots_of_the_last_positions_are_torchs(host):
    size, columns = 1 << 20, (1 << 11) - 1
    table = torch.arange(columns, 0, -1, dtype=torch.int32)[None]
    at = torch.tensor([0, size * columns - 1, size * columns // 2, size * columns])
    none = torch.zeros_like(at)
    wanted = REFERENCE.slot_mapping(table, none, at, size)
    assert torch.equal(host.slot_mapping(table, none, at, size), wanted)
    assert int(wanted.max()) > (1 << 31) - (1 << 21)
    with pytest.raises(IndexError, match=f"is token {size * columns}, the block table ends at"):
        host.check()
