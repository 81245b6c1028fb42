"""The parts of kvpipe for an engine of one's own: a plan's memory, block tables and kernels.

    made = kvpipe.plan(layers, limits, memory)               # layers: what each one caches
    pool = Pool.open(made, prefix_caching=True)              # memory, addresses, block tables

    cached = pool.manager.add_request("a", prompt)           # tokens that need no computation
    pool.begin_step()
    pool.grant("a", len(prompt) - cached)                    # a chunk of a prompt
    pool.append(["b", "c"], [17, 4])                         # one more token each
    for layer in layers:
        pool.write(layer.name, key, value)                   # [T, H, D], in order of grants
        k, v = pool.read(layer.name, "a", first=0)           # [n, H, D] through the block table
    pool.manager.free("a")

One pool of blocks, one block table a group of layers: the shape of small engines such as nano-vllm
and mini-sglang. An engine with kernels of its own takes `pool.buffers.native(layer)` (the tensor
that its attention backend expects), `pool.manager.slot_mapping(layer)` and
`pool.manager.block_table(layer, requests)` instead of `write` and `read`. examples/engine.py is an
engine made of these parts. T tokens of the step, n tokens of a request, H KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.blocks.transfer import BlockMover
from kvpipe.cache.addresses import LayerAddresses
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import Plan
from kvpipe.cache.scratch import refuse_scratch
from kvpipe.errors import ConfigError, Problem
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import Buffers

if TYPE_CHECKING:
    from kvpipe.backends.base import Array, Backend

__all__ = ["OutOfBlocks", "Pool"]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One rank's cache: manager of its blocks, and the memory they are in."""

    manager: BlockManager
    buffers: KVBuffers

    @classmethod
    def open(
        cls,
        plan: Plan,
        *,
        backend: Backend | None = None,
        rank: int = 0,
        prefix_caching: bool = False,
        max_num_requests: int = 256,
    ) -> Pool:
        """Memory for one rank of the plan, zeroed. backend: what owns it (None: the host's C++
        kernels, which need a compiler). ConfigError where a layer stores states, which no slot
        mapping can write."""
        config = plan.ranks[rank].config
        refuse_scratch(config.scratch, "a pool by itself")
        states = [group for group in config.groups if group.spec.is_state]
        if states:
            found = f"{states[0].layer_names[0]}, a state"
            raise ConfigError(Problem("plan", "layers that store K and V of tokens", found))
        addresses = address_map(config, plan.shared_layers)
        buffers = Buffers(Buffers.Options(name="buffers", init="zero")).run(
            AllocationRequest(config=config, addresses=addresses), backend or _host()
        )
        manager = BlockManager.from_plan(
            plan, rank, prefix_caching=prefix_caching, max_num_requests=max_num_requests
        )
        return cls(manager=manager, buffers=buffers)

    # --- one step ------------------------------------------------------------------------------
    def begin_step(self) -> None:
        self.manager.begin_step()

    def grant(self, request: Hashable, num_new_tokens: int) -> None:
        """Blocks for a chunk of a prompt; OutOfBlocks leaves everything as it was."""
        self._mover.copy(self.manager.allocate(request, num_new_tokens))

    def append(self, requests: Sequence[Hashable], token_ids: Sequence[int]) -> None:
        """Blocks for one more token of each, for all or for none."""
        self._mover.copy(self.manager.append(requests, token_ids))

    def write(self, layer: str, key: Array, value: Array) -> None:
        """[T, H, D] each: K and V of all tokens granted in this step, in the order granted."""
        import torch

        addresses = self.buffers.addresses.of_layer(layer)
        targets = [(self.buffers.buffers[view.buffer], view) for view in addresses.views]
        ids = addresses.views[0].kernel_ids(self.buffers.addresses.num_blocks)
        slots = torch.from_numpy(ids.slots(self.manager.slot_mapping(layer)).copy())
        self.buffers.backend.write_kv_pair(targets, (key, value), slots)

    def read(self, layer: str, request: Hashable, first: int = 0) -> tuple[Array, Array]:
        """K and V of a request's stored tokens from position `first` on, [n - first, H, D] each.
        Tokens that a window's blocks no longer hold are zeros."""
        addresses = self.buffers.addresses.of_layer(layer)
        key, value = (self._gathered(addresses, view, request, first) for view in addresses.views)
        return key, value

    # --- parts -----------------------------------------------------------------------------------
    @property
    def _mover(self) -> BlockMover:
        return BlockMover(self.buffers)

    def _gathered(self, layer: LayerAddresses, view: Any, request: Hashable, first: int) -> Array:
        import numpy as np
        import torch

        ids = view.kernel_ids(self.buffers.addresses.num_blocks)
        size = self.buffers.addresses.groups[layer.group].block_size
        skipped = first // size  # whole blocks before the first token wanted
        (table,) = self.manager.block_table(layer.group, [request])
        num_tokens = self.manager.num_tokens(request) - skipped * size
        rows = self.buffers.backend.gather(
            self.buffers.buffers[view.buffer],
            view,
            torch.from_numpy(ids.table(table[skipped:], np.arange(ids.held, dtype="i4")).copy()),
            num_tokens,
            ids.table_rows,
        )
        return rows[first - skipped * size :]


def _host() -> Backend:
    from kvpipe.backends.host import HostBackend

    return HostBackend()
