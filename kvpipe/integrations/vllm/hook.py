"""Where the plug-in takes hold of vLLM: one function is replaced, after it was looked at.

`get_kv_cache_configs` of the engine's planner. The engine's core has it by name, too: both are
replaced, or none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from kvpipe.integrations.vllm.planner import LOGGER, Configs, Planner

PLANNER = "vllm.v1.core.kv_cache_utils"
CORE = "vllm.v1.engine.core"
PLAN = "get_kv_cache_configs"
# What the plug-in calls of the planner, beside what it replaces.
USED = (
    *(PLAN, "get_kv_cache_groups", "create_kv_cache_group_specs", "unify_kv_cache_spec_page_size"),
    *("get_kv_cache_capacity", "generate_scheduler_kv_cache_config"),
)


def install_here() -> None:
    """Replace the function in this process; a warning where that cannot be done."""
    try:
        import vllm
        from vllm.v1.core import kv_cache_utils

        install(kv_cache_utils, sys.modules.get(CORE), vllm.__version__)
    except Exception as error:  # whatever a release has changed: its engine starts without us
        LOGGER.warning("kvpipe is left out: %s: %s", type(error).__name__, error)


def install(planner: ModuleType, core: ModuleType | None, version: str) -> None:
    """planner, core: vLLM's modules (core: None where it is not loaded yet)."""
    if getattr(getattr(planner, PLAN, None), "is_kvpipe", False):
        return  # vLLM may load plug-ins twice
    if problem := _not_as_expected(planner, core):
        LOGGER.warning("kvpipe is left out: %s", problem)
        return
    held = Planner(module=planner, plan=getattr(planner, PLAN), version=version)

    def get_kv_cache_configs(
        vllm_config: Any, kv_cache_specs: Sequence[Any], available_memory: Sequence[int]
    ) -> Configs:
        if "kvpipe" not in (getattr(vllm_config, "additional_config", None) or {}):
            return held.plan(vllm_config, kv_cache_specs, available_memory)
        from kvpipe.integrations.vllm.planning import planned

        return planned(held, vllm_config, kv_cache_specs, available_memory)

    get_kv_cache_configs.is_kvpipe = True  # type: ignore[attr-defined]
    for module in (planner, core):
        if module is not None:
            setattr(module, PLAN, get_kv_cache_configs)


def _not_as_expected(planner: ModuleType, core: ModuleType | None) -> str:
    """ "" or what is not as in the releases that were tested."""
    for name in USED:
        function = getattr(planner, name, None)
        if function is None:
            return f"{PLANNER} has no {name}"
        if getattr(function, "__module__", "") != PLANNER:
            return f"{name} was replaced already, by {getattr(function, '__module__', function)}"
    if core is not None and getattr(core, PLAN, None) is not getattr(planner, PLAN):
        return f"{CORE} has another {PLAN} than {PLANNER}"
    return ""
