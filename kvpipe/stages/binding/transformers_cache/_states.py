"""Fixed-size states of a transformers cache in pages, alone or beside K/V in one layer.

B rows; a state is [B, *shape] in transformers and one block of each row's request in pages.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from kvpipe.stages.binding.transformers_cache._layers import PagedAttentionLayer
from kvpipe.stages.binding.transformers_cache._store import PagedStore


class StateTensors(MutableMapping[int, Any]):
    """What transformers calls `conv_states` or `recurrent_states`: number -> tensor [B, *shape].

    Models update the tensor in place. Where the rows' blocks are equally far apart it is a view of
    the pages; elsewhere a copy that is written back when the layer is done (`flush`)."""

    def __init__(self, store: PagedStore, layer: str, pages: list[Any], dtypes: list[Any]) -> None:
        """pages: of each number the state of every block, [blocks, *shape]."""
        self.store, self.layer, self.pages, self.dtypes = store, layer, pages, dtypes
        self.group = store.buffers.addresses.of_layer(layer).group
        self.scratch: dict[int, Any] = {}
        self.may_alias = True

    def __getitem__(self, number: int) -> Any:
        if number not in self.scratch:
            pages, blocks = self.pages[number], self.store.state_blocks(self.group)
            step = _equal_step(blocks)
            if self.may_alias and step and pages.dtype == self.dtypes[number]:
                return pages[blocks[0] : blocks[-1] + 1 : step]
            self.store.open_states(self)
            self.scratch[number] = self._copied(pages, blocks).to(self.dtypes[number])
        return self.scratch[number]

    @staticmethod
    def _copied(pages: Any, blocks: list[int]) -> Any:
        """Zeros for rows that hold no block: they have no token yet."""
        copied = pages[[max(block, 0) for block in blocks]]
        copied[[block < 0 for block in blocks]] = 0
        return copied

    def __setitem__(self, number: int, value: Any) -> None:
        self[number].copy_(value)

    def flush(self) -> None:
        """Copies back to their pages."""
        for number, tensor in self.scratch.items():
            pages = self.pages[number]
            blocks = self.store.state_blocks(self.group)
            held = [row for row, block in enumerate(blocks) if block >= 0]
            pages[[blocks[row] for row in held]] = tensor[held].detach().to(pages.dtype)
        self.scratch.clear()

    def __delitem__(self, number: int) -> None:
        raise TypeError("the states of a bound cache live as long as its pages")

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.pages)))

    def __len__(self) -> int:
        return len(self.pages)


def _equal_step(blocks: list[int]) -> int:
    """The distance between neighbours where all are equally far apart and held, else 0."""
    if min(blocks) < 0:
        return 0
    steps = {b - a for a, b in zip(blocks, blocks[1:], strict=False)} or {1}
    step = steps.pop()
    return step if not steps and step > 0 else 0


class PagedStateLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """Fixed-size states: convolution inputs and a recurrent state, in one block of the request."""

    def __init__(self, conv: StateTensors, recurrent: StateTensors, num_states: int) -> None:
        super().__init__(number_of_states=num_states)
        self.conv_states, self.recurrent_states = conv, recurrent
        self.store_of_states = conv.store
        for number in range(num_states):
            self.is_conv_states_initialized[number] = number < len(conv)
            self.is_recurrent_states_initialized[number] = number < len(recurrent)
            if number < len(conv):
                self.conv_kernel_size[number] = conv.pages[number].shape[-1]

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Pages exist already."""

    is_croppable = False
    is_compileable = False

    def activate_past_recording(self) -> None:
        raise NotImplementedError("assisted decoding rolls states back, which pages cannot")

    def update_conv_state(
        self, conv_states: Any, state_idx: int = 0, *args: Any, **kwargs: Any
    ) -> Any:
        """[B, channels, T] of this step -> the whole input of the convolution; the last K columns
        are kept, with zeros before the first token."""
        width = self.conv_kernel_size[state_idx]
        whole = conv_states
        if self.has_previous_state[state_idx]:
            whole = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        elif whole.shape[-1] < width:
            whole = torch.nn.functional.pad(whole, (width - whole.shape[-1], 0))
        self.has_previous_state[state_idx] = True
        self.conv_states[state_idx] = whole[..., -width:]
        return whole

    def update_recurrent_state(
        self, recurrent_states: Any, state_idx: int = 0, *args: Any, **kwargs: Any
    ) -> Any:
        self.recurrent_states[state_idx] = recurrent_states
        return self.recurrent_states[state_idx]

    def flush(self) -> None:
        self.conv_states.flush()
        self.recurrent_states.flush()

    def reorder_cache(self, beam_idx: Any) -> None: ...

    def reset(self) -> None:
        self.has_previous_state = dict.fromkeys(range(self.number_of_states), False)


class PagedHybridLayer(PagedStateLayer, PagedAttentionLayer):
    """One model layer that keeps K/V and a state: two groups for one index."""

    def __init__(self, state: PagedStateLayer, attention: PagedAttentionLayer) -> None:
        self.__dict__.update(attention.__dict__)
        self.__dict__.update(state.__dict__)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None: ...

    def get_max_length(self) -> int:
        return PagedAttentionLayer.get_max_length(self)

    def reorder_cache(self, beam_idx: Any) -> None: ...

    def reset(self) -> None:
        PagedStateLayer.reset(self)
        PagedAttentionLayer.reset(self)
