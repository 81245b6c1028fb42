"""Runs inside a vLLM environment: one engine under load, step by step, and what its scheduler held.

python vllm_load.py CASE: a JSON file with `arguments` of the engine, prompt `lengths`, `new` tokens
each, prints one JSON line: tokens by request, the printed capacity, requests that ran at once
before the first preemption, steps and seconds. Then a load that any cache here holds, so that the
scheduler takes the same steps whatever the groups are: CPU time of a step, several times.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

Json = dict[str, Any]
TIMED = (64, 130, 255, 40, 100, 70)  # tokens: prompts of the timed load, all at once
TIMED_NEW, TIMES = 60, 5


def main(path: str) -> int:
    import vllm_probe

    vllm_probe.look_at_models_here()
    print("ANSWER " + json.dumps(served(json.loads(Path(path).read_text()))), flush=True)
    return 0


def served(case: Json) -> Json:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(EngineArgs(**case["arguments"]))
    core = engine.engine_core.engine_core

    def asked(lengths: list[int], new: int, name: str) -> Json:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        for number, prompt in enumerate(prompts(lengths)):
            engine.add_request(f"{name}{number}", {"prompt_token_ids": prompt}, params)
        return run(engine, core.scheduler)

    found, timed = asked(case["lengths"], case["new"], ""), []
    for again in range(TIMES):
        engine.reset_prefix_cache()
        timed.append(asked(list(TIMED), TIMED_NEW, f"timed {again} "))
    cache = core.vllm_config.cache_config
    return {
        **found,
        "num_blocks": core.scheduler.kv_cache_config.num_blocks,
        "groups": [len(g.layer_names) for g in core.scheduler.kv_cache_config.kv_cache_groups],
        "printed": getattr(cache, "kv_cache_size_tokens", None),
        "timed": [[each["cpu_seconds"], each["steps"], each["preemptions"]] for each in timed],
    }


def prompts(lengths: list[int]) -> list[list[int]]:
    """Random tokens; every third prompt begins as the one before it, so that prefixes are hit."""
    draw, found = Random(0), list[list[int]]()
    for number, length in enumerate(lengths):
        own = [draw.randrange(3, 500) for _ in range(length)]
        shared = found[-1][: length // 2] if number % 3 == 2 else []
        found.append(shared + own[len(shared) :])
    return found


def run(engine: Any, scheduler: Any) -> Json:
    """Until all are finished."""
    tokens: dict[str, list[int]] = {}
    before_preemption, preempted, steps, hits = 0, 0, 0, 0
    seen: dict[str, Any] = {}
    start, cpu = time.perf_counter(), time.process_time()
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps += 1
        seen |= {request.request_id: request for request in scheduler.running}
        preempted = sum(request.num_preemptions for request in seen.values())
        if not preempted:
            before_preemption = max(before_preemption, len(scheduler.running))
        for output in outputs:
            tokens[output.request_id] = [int(t) for t in output.outputs[0].token_ids]
            hits += (output.num_cached_tokens or 0) if output.finished else 0
    return {
        "tokens": tokens,
        "at_once": before_preemption,
        "preemptions": preempted,
        "steps": steps,
        "hit_tokens": hits,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu, 3),  # of all threads; others do not slow it
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
