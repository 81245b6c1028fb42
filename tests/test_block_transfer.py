"""Copies and swaps on real memory: blocks of one group move, everything else stays."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cache_configs import config_of, full, names  # noqa: E402

from kvpipe.backends.torch_ import TorchBackend  # noqa: E402
from kvpipe.blocks import BlockCopy, BlockManager  # noqa: E402
from kvpipe.blocks.transfer import BlockMover  # noqa: E402
from kvpipe.cache.buffers import KVBuffers  # noqa: E402
from kvpipe.specs.base import RequestLimits  # noqa: E402
from kvpipe.specs.mamba import MambaSpec, StateArray  # noqa: E402
from kvpipe.stages.allocation import address_map  # noqa: E402
from kvpipe.stages.allocation.base import AllocationRequest  # noqa: E402
from kvpipe.stages.allocation.buffers import Buffers  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "decode_loop.py"
PAGE = full(block=8).page_size_bytes
STATE = MambaSpec(
    block_size=8,
    states=(StateArray(name="conv", shape=(5,), dtype="bfloat16"),),
    page_size_padded=PAGE,
)


def buffers_of(kernel_block_size: int, layout: str) -> KVBuffers:
    """A group of K/V and one of states over the same bytes, each byte distinct where it can be."""
    config = config_of([(names(2), full(block=8)), (names(2, 2, "mixer"), STATE)], num_blocks=7)
    addresses = address_map(config, (), layout, kernel_block_size=kernel_block_size)
    stage = Buffers(Buffers.Options(name="buffers", init="zero"))
    buffers = stage.run(AllocationRequest(config=config, addresses=addresses), TorchBackend())
    for i, buffer in enumerate(buffers.buffers):
        fill = torch.arange(buffer.num_bytes) * (7 + 2 * i) % 251
        buffer.data.copy_(fill.to(torch.uint8))
    return buffers


def content(buffers: KVBuffers, group: int) -> list[np.ndarray[Any, Any]]:
    """[num_blocks, ...] bytes of every array of a group, block by block of the manager."""
    found = []
    for layer in buffers.addresses.layers:
        for view in layer.views if layer.group == group else ():
            array = buffers.arrays(layer.layer)[view.array]
            flat = array.contiguous().view(torch.uint8).numpy()
            found.append(flat.reshape(buffers.addresses.num_blocks, -1).copy())
    return found


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("layout", ["flash_attn", "flashinfer_hnd"])
@pytest.mark.parametrize("kernel_block_size", [8, 4, 1])
def test_a_copy_moves_the_whole_block_of_its_group_and_nothing_else(
    kernel_block_size: int, layout: str, group: int
) -> None:
    buffers = buffers_of(kernel_block_size, layout)
    before = content(buffers, group)
    BlockMover(buffers).copy([BlockCopy(group, 2, 5), BlockCopy(group, 3, 1)])
    for old, new in zip(before, content(buffers, group), strict=True):
        expected = old.copy()
        expected[5], expected[1] = old[2], old[3]
        assert (new == expected).all() and (old[5] != old[2]).any()


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("kernel_block_size", [8, 2])
def test_what_was_saved_is_restored_into_other_blocks(kernel_block_size: int, group: int) -> None:
    buffers = buffers_of(kernel_block_size, "flash_attn")
    before = content(buffers, group)
    mover = BlockMover(buffers)
    saved = mover.save(group, np.array([4, 1]))
    for buffer in buffers.buffers:
        buffer.data.zero_()
    mover.restore(group, np.array([2, 6]), saved)
    for old, new in zip(before, content(buffers, group), strict=True):
        assert (new[2] == old[4]).all() and (new[6] == old[1]).all()
        assert not new[[0, 1, 3, 4, 5]].any()


def test_no_blocks_is_no_work() -> None:
    buffers = buffers_of(8, "flash_attn")
    before = content(buffers, 0)
    mover = BlockMover(buffers)
    mover.copy(())
    mover.restore(0, np.empty(0, np.intp), mover.save(0, np.empty(0, np.intp)))
    assert all((a == b).all() for a, b in zip(before, content(buffers, 0), strict=True))


def test_the_decode_loop_reads_what_it_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"]()
    assert "3 requests, 15,792,128 numbers read back as written" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("fault", ["copy", "restore"])
def test_the_decode_loop_fails_where_blocks_are_not_moved(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockMover, fault, lambda *_: None)
    with pytest.raises(AssertionError, match="model.layers"):
        runpy.run_path(str(EXAMPLE))["main"]()


def test_a_fork_of_a_state_copies_it_before_either_writes() -> None:
    limits = RequestLimits(max_model_len=8, max_num_batched_tokens=8)
    manager = BlockManager(config_of([(names(2), STATE)], num_blocks=7), limits)
    manager.add_request("a")
    manager.allocate("a", 3)
    manager.fork("a", "b")
    (copy,) = manager.append(["b"])
    assert copy == BlockCopy(0, manager.block_ids("a", 0)[0], manager.block_ids("b", 0)[0])
