"""Every server, beside vLLM's, whose command line is read: the first that knows it."""

from __future__ import annotations

from kvpipe.engines.llama_cpp_pasted import read_llama_server
from kvpipe.engines.pasted import Pasted
from kvpipe.engines.sglang_pasted import read_sglang
from kvpipe.engines.tensorrt_llm_pasted import read_trtllm_serve

_READERS = (read_sglang, read_llama_server, read_trtllm_serve)


def read_server_line(text: str) -> Pasted | None:
    """The last line of a server that is planned only; None where there is none."""
    found = (read(text) for read in _READERS)
    return next((pasted for pasted in found if pasted is not None), None)
