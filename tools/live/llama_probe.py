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
        errors = [line for line in text.splitlines() if "error" in line.lower()]
        found["error"] += f"; {errors[0].strip()}" if errors else ""
        return found
    printed = [*_KV.findall(text), *_STATES.findall(text)]
    return {**found, "printed": [" ".join(line.split()) for line in printed]}


def started(case: Json) -> Json:
    """The context's own figures; what it prints about its caches is in the log."""
    lib = library()
    model_params = lib.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(case["path"].encode(), model_params)
    if not model:
        raise RuntimeError("the file was not loaded")
    params = lib.llama_context_default_params()
    for name, value in case["params"].items():
        setattr(params, name, TYPES[value] if name in ("type_k", "type_v") else value)
    params.n_threads = params.n_threads_batch = 1
    context = lib.llama_init_from_model(model, params)
    if not context:
        lib.llama_model_free(model)
        raise RuntimeError("no context was made")
    found = {
        "n_ctx": int(lib.llama_n_ctx(context)),
        "n_ctx_seq": int(lib.llama_n_ctx_seq(context)),
        "n_seq_max": int(lib.llama_n_seq_max(context)),
    }
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found


def library() -> Any:
    import llama_cpp

    llama_cpp.llama_backend_init()
    return llama_cpp


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
