"""kvpipe: plan, allocate and bind an LLM's KV cache.

    import kvpipe

    result = kvpipe.run(["model=llama", "cache=sliding"])      # all five stages
    plan = kvpipe.plan(layers, limits, memory)                 # grouping alone: no Hydra, no torch

`run` takes what the command line takes. `plan` is for engine developers: CacheLayers, limits and
memory in, Plan out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpipe.pipeline import Result
    from kvpipe.stages.grouping.planning import plan as plan

__version__ = "0.1.0"
__all__ = ["plan", "run"]


def run(overrides: Sequence[str] = (), *, config_dir: str | None = None) -> Result:
    """All five stages on the composed request; nothing is printed and nothing is written.

    overrides: as on the command line (`"cache=sliding"`, `"cache.block_size=32"`). ConfigError
    (every problem) or DoesNotFit otherwise. The Result owns its memory until it is dropped.
    """
    from kvpipe.pipeline import execute

    if isinstance(overrides, str):
        raise TypeError("overrides is a list of settings, such as ['model=llama'], not one string")
    from kvpipe.front.prepared import prepared_request

    return execute(prepared_request(overrides, config_dir=config_dir).prepared)


def __getattr__(name: str) -> Any:
    # `import kvpipe` stays cheap: the planner is imported when it is first asked for.
    if name == "plan":
        from kvpipe.stages.grouping.planning import plan

        return plan
    raise AttributeError(f"module 'kvpipe' has no attribute '{name}'")
