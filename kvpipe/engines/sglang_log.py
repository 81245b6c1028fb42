"""SGLang 0.5.23: the lines of its log that tell what it allocated, with the page more a pool has.

Its "GB" are GiB. Figures of a start that was never made (free memory) are left out of the lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.engines.pools import EnginePool
from kvpipe.engines.stored import StoredRow, StoredState
from kvpipe.text.figures import GIB

_TORCH = {
    "float32": "torch.float32",
    "float16": "torch.float16",
    "bfloat16": "torch.bfloat16",
    "fp8_e4m3": "torch.float8_e4m3fn",
    "fp8_e5m2": "torch.float8_e5m2",
}


def tokens_line(pool: EnginePool, rows: Sequence[StoredRow], page: int) -> str:
    """K and V apart, or the latent rows (and an indexer's) together."""
    held = pool.count + page
    keys = _bytes(rows, "k") * held
    values = _bytes(rows, "v") * held
    dtype = next((a.dtype for row in rows for a in row.arrays if a.dtype in _TORCH), "")
    head = f"KV Cache is allocated. dtype: {_TORCH.get(dtype, 'torch.uint8')}, #tokens: "
    if keys:
        return f"{head}{pool.count}, K size: {_gb(keys)}, V size: {_gb(values)}"
    return f"{head}{pool.count}, KV size: {_gb(sum(row.num_bytes for row in rows) * held)}"


def _bytes(rows: Sequence[StoredRow], name: str) -> int:
    return sum(a.num_bytes(1) for row in rows for a in row.arrays if a.name == name)


def states_line(pool: EnginePool, states: Sequence[StoredState]) -> str:
    """With the padding slot. ssm: what is no convolution's."""
    conv = sum(state.conv_bytes for state in states)
    slots = pool.count + 1
    return (
        f"Mamba Cache is allocated. max_mamba_cache_size: {pool.count}, conv_state size: "
        f"{slots * conv / GIB:.2f}GB, ssm_state size: "
        f"{slots * (pool.unit_bytes - conv) / GIB:.2f}GB"
    )


def last_line(tokens: int, chunk: int, max_requests: int | None, context: int) -> str:
    return (
        f"max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, max_running_requests="
        f"{max_requests}, context_len={context}"
    )


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GB"
