"""The slow path of the self-proof: bytes found by arithmetic on the plain numbers of plan.json.

Nothing here knows a spec, a layout or a backend: a layer's entry under `address_map.layers`, a
block table and these few lines are enough to find any token of any request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# read(buffer, offset, num_bytes) -> the raw bytes there
Reader = Callable[[int, int, int], bytes]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # everything else is one byte wide


def read_token(
    view: Mapping[str, Any], block_id: int, block_size: int, position: int, head: int, read: Reader
) -> bytes:
    """The content of one token and head. block_id: of the block that holds `position`; block_size:
    the group's, in tokens."""
    block_stride, token_stride, head_stride, item = view["strides"]
    kernel_block = view["shape"][1]
    apart = view.get("ids_apart") or block_size // kernel_block
    inside, place = divmod(position % block_size, kernel_block)
    start = (
        view["offset"]
        + (block_id * apart + inside) * block_stride
        + place * token_stride
        + head * head_stride
    )
    return read(view["buffer"], start, view["shape"][3] * item)


def read_state(view: Mapping[str, Any], block_id: int, read: Reader) -> bytes:
    """The whole state of one block: a contiguous run."""
    size = ITEM_BYTES.get(view["dtype"], 1)
    for count in view["shape"][1:]:
        size *= count
    return read(view["buffer"], view["offset"] + block_id * view["strides"][0], size)
