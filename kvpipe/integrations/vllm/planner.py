"""vLLM's planner, as the plug-in is given it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

LOGGER = logging.getLogger("vllm.kvpipe")  # below vLLM's own logger, which has the handlers
Configs = list[Any]


@dataclass(frozen=True, kw_only=True)
class Planner:
    """vLLM's planner. plan: its get_kv_cache_configs as it was. version: of the engine."""

    module: ModuleType
    plan: Callable[..., Configs]
    version: str
