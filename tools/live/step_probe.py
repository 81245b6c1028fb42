"""Runs inside a vLLM environment: several engines in one process, stepped in turn under one load.

python step_probe.py CASE: a JSON file with `arguments` of the engine, `ways` (a name each, further
arguments, and `layers_per_group` to force), loads of so many `running` requests, a `prompt` length
and `steps`. Prints one JSON line: tables of each way, and by load the CPU nanoseconds of every
step of every way. Each step is taken by all of them, one after another in an order drawn anew, so
that what else the machine does falls on all alike.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

Json = dict[str, Any]
SETTLED = 12  # steps before the first that is measured: prompts are read, caches are warm


def main(path: str) -> int:
    import vllm_probe

    vllm_probe.look_at_models_here()
    print("ANSWER " + json.dumps(measured(json.loads(Path(path).read_text()))), flush=True)
    return 0


def measured(case: Json) -> Json:
    engines = {way["name"]: started(case["arguments"], way) for way in case["ways"]}
    plans = {name: core_of(e).scheduler.kv_cache_config for name, e in engines.items()}
    return {
        "tables": {name: len(plan.kv_cache_groups) for name, plan in plans.items()},
        "printed": {
            name: getattr(core_of(e).vllm_config.cache_config, "kv_cache_size_tokens", None)
            for name, e in engines.items()
        },
        "loads": {n: list(steps_of(engines, n, case)) for n in case["running"]},
    }


def core_of(engine: Any) -> Any:
    return engine.engine_core.engine_core


def started(arguments: Json, way: Json) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    with layers_per_group(way.get("layers_per_group")):
        found = EngineArgs(**{**arguments, **way.get("arguments", {})})
        return LLMEngine.from_engine_args(found)


@contextmanager
def layers_per_group(size: int | None) -> Iterator[None]:
    """The engine's planner groups so many layers that are alike; None: as it does by itself."""
    from vllm.v1.core import kv_cache_utils as utils

    name = "_get_kv_cache_groups_uniform_page_size"
    own = getattr(utils, name)

    def grouped(specs: Json) -> Any:
        return utils.create_kv_cache_group_specs(specs, split(specs, size or 1))

    if size is not None:
        setattr(utils, name, grouped)
    try:
        yield
    finally:
        setattr(utils, name, own)


def split(specs: Json, size: int) -> list[list[str]]:
    alike: dict[Any, list[str]] = {}
    for layer, spec in specs.items():
        alike.setdefault(spec, []).append(layer)
    numbers = [(layers, -(-len(layers) // size)) for layers in alike.values()]
    return [layers[i::number] for layers, number in numbers for i in range(number)]


def steps_of(engines: dict[str, Any], running: int, case: Json) -> Iterator[Json]:
    """CPU nanoseconds by way, step by step; all finish the load before the next one."""
    for name, engine in engines.items():
        engine.reset_prefix_cache()
        ask(engine, f"{name} {running} ", running, case)
        for _ in range(SETTLED):
            engine.step()
    gc.collect()
    gc.disable()  # a collection would fall on whichever way's turn it is
    draw, order = Random(running), list(engines)
    for _ in range(case["steps"]):
        draw.shuffle(order)
        yield {name: cpu_of_a_step(engines[name], running) for name in order}
    gc.enable()
    for engine in engines.values():
        while engine.has_unfinished_requests():
            engine.step()


def ask(engine: Any, name: str, running: int, case: Json) -> None:
    from vllm import SamplingParams

    draw = Random(0)
    new = case["steps"] + 2 * SETTLED
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    for number in range(running):
        prompt = [draw.randrange(3, 500) for _ in range(case["prompt"])]
        engine.add_request(f"{name}{number}", {"prompt_token_ids": prompt}, params)


def cpu_of_a_step(engine: Any, running: int) -> int:
    start = time.process_time_ns()
    engine.step()
    spent = time.process_time_ns() - start
    found = len(core_of(engine).scheduler.running)
    assert found == running, f"{found} of {running} requests run: the load does not fit"
    return spent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
