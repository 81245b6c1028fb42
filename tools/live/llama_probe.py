"""Runs where llama.cpp is: starts contexts on cases and says what each one allocated.

python llama_probe.py CASES ANSWERS: JSON files, one case or answer a line. Imports no kvpipe.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# ggml's numbers of its types.
TYPES = {
    **{"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8},
    **{"iq4_nl": 20, "bf16": 30},
}
_KV = re.compile(r"llama_kv_cache: size = .*")
_STATES = re.compile(r"llama_memory_recurrent: size = .*")
_WHY = re.compile(r"error|must be|not supported|requires|failed", re.IGNORECASE)


def main(cases: str, answers: str) -> int:
    with open(answers, "a") as out:
        for line in Path(cases).read_text().splitlines():
            case = json.loads(line)
            print(json.dumps({"name": case["name"], **answer(case)}), file=out, flush=True)
    return 0


def answer(case: Json) -> Json:
    with captured() as log:
        try:
            found = {"started": True, **started(case)}
        except Exception as error:
            found = {"started": False, "error": f"{type(error).__name__}: {error}"}
    text = log.read_text(errors="replace")
    log.unlink()
    if not found["started"]:
        errors = [line for line in text.splitlines() if _WHY.search(line)]
        found["error"] += f"; {errors[0].strip()}" if errors else ""
        return found
    printed = [*_KV.findall(text), *_STATES.findall(text)]
    return {**found, "printed": [" ".join(line.split()) for line in printed]}


def started(case: Json) -> Json:
    """The context's own figures; what it prints about its caches is in the log."""
    from cyllama.llama import llama_cpp as lib

    lib.llama_backend_init()
    lib.ggml_backend_load_all()
    model_params = lib.LlamaModelParams()
    model_params.n_gpu_layers = 0
    model = lib.LlamaModel(case["path"], model_params)
    params = lib.LlamaContextParams()
    for name, value in case["params"].items():
        setattr(params, name, TYPES[value] if name in ("type_k", "type_v") else value)
    params.n_threads = params.n_threads_batch = 1
    context = lib.LlamaContext(model, params)
    found = {
        "n_ctx": context.n_ctx,
        "n_ctx_seq": context.n_ctx_seq,
        "n_seq_max": context.n_seq_max,
        "commit": lib.ggml_commit(),
    }
    context.close()
    return found


@contextmanager
def captured() -> Iterator[Path]:
    """Everything that the library writes, in a file."""
    handle, name = tempfile.mkstemp(prefix="kvpipe-live-", suffix=".log")
    kept = [os.dup(1), os.dup(2)]
    try:
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        yield Path(name)
    finally:
        for number, saved in enumerate(kept, 1):
            os.dup2(saved, number)
            os.close(saved)
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
