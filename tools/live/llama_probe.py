"""Runs where llama.cpp is: starts contexts on cases and says what each one allocated.

python llama_probe.py CASES ANSWERS, as probing.py says.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from probing import answer_all, captured, one_line

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
    return answer_all(cases, answers, answer)


def answer(case: Json) -> Json:
    with captured() as log:
        try:
            found = {"started": True, **started(case)}
        except Exception as error:
            found = {"started": False, "error": one_line(error)}
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
