"""A log whose capacity line stands for a size of the cache, where no line gives the memory."""

from __future__ import annotations

from dataclasses import replace

from kvpipe.answers.log_answer import LogComparison
from kvpipe.answers.log_memory import with_printed_size
from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.text.figures import GIB, count


def with_size(
    pasted: PastedRequest, compared: LogComparison | None
) -> tuple[PastedRequest, tuple[str, ...]]:
    """With the cache that a capacity line stands for, where no line gives the memory; in words."""
    readings = (*compared.agreeing, *compared.nearest) if compared is not None else ()
    implied = next((each.implied for each in readings if each.implied is not None), None)
    prepared = with_printed_size(pasted.prepared, pasted.log, implied)
    if prepared is pasted.prepared or implied is None or pasted.log is None:
        return pasted, ()
    counts = pasted.log.counts
    blocks, tokens = counts.get("num_gpu_blocks"), counts.get("kv_tokens")
    what = count(blocks, "block") if blocks else count(tokens or 0, "token")
    words = f"the cache has {implied.num_bytes / GIB:.2f} GiB: {what} were printed, and no memory"
    return replace(pasted, prepared=prepared), (words,)
