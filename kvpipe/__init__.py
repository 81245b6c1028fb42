"""kvpipe: plan, allocate and bind an LLM's KV cache.

    import kvpipe

    result = kvpipe.run(["model=llama", "cache=sliding"])      # all five stages
    plan = kvpipe.plan(layers, limits, memory)                 # grouping alone: no Hydra, no torch
    found = kvpipe.find(["model=llama", "device=h100", "want.requests=64", "want.length=8192"])
    replayed = kvpipe.replay(["model=llama", "device=h100", "trace=azure_code_sample"])
    compared = kvpipe.compare(["model=llama", "device=h100", "scheduler.max_model_len=8192"])

`run`, `find`, `replay` and `compare` take what the command line takes and give results with
`to_json()`, `text()`, `svg()` and `save(folder)`. `plan` is for engine developers: CacheLayers,
limits and memory in, Plan out. A wrong request raises ConfigError (every problem of it), one that
is too large DoesNotFit (by how much, and the longest length that fits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpipe.errors import ConfigError as ConfigError
    from kvpipe.errors import DoesNotFit as DoesNotFit
    from kvpipe.front.api import compare as compare
    from kvpipe.front.api import find as find
    from kvpipe.front.api import read_model as read_model
    from kvpipe.front.api import replay as replay
    from kvpipe.front.api import run as run
    from kvpipe.stages.grouping.planning import plan as plan

__version__ = "0.1.0"
__all__ = ["ConfigError", "DoesNotFit", "compare", "find", "plan", "read_model", "replay", "run"]

_HOMES = {
    "ConfigError": "kvpipe.errors",
    "DoesNotFit": "kvpipe.errors",
    "compare": "kvpipe.front.api",
    "find": "kvpipe.front.api",
    "plan": "kvpipe.stages.grouping.planning",
    "read_model": "kvpipe.front.api",
    "replay": "kvpipe.front.api",
    "run": "kvpipe.front.api",
}


def __getattr__(name: str) -> Any:
    # `import kvpipe` stays cheap: each is imported when it is first asked for.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'kvpipe' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
