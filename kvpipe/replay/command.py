"""`python -m kvpipe replay`: profiling and grouping as in `run`, then the trace. Owns no memory.

Files of a replay: replay.json (every figure) and blocks_over_time.svg (the plot).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError, Problem
from kvpipe.files.atomic import write_atomic
from kvpipe.pipeline import Prepared, make_backend, plan_with, profile_ranks
from kvpipe.text.width import terminal_width


def run_replay(prepared: Prepared, make_folder: Callable[[], Path], out: TextIO) -> int:
    """Replay the request's trace on its plan, report on `out`, write the files; the exit code.

    ConfigError (before make_folder is called) for a wrong trace section or a missing numpy;
    DoesNotFit where the plan does not fit.
    """
    _need_numpy()
    from kvpipe.replay.play import read_trace, replay
    from kvpipe.replay.plot import render_svg
    from kvpipe.replay.text import render

    trace = read_trace(prepared.config.trace)
    requests = trace.requests()
    result = replay(
        requests,
        plan_of(prepared),
        trace.options,
        max_num_seqs=prepared.resolved.max_num_seqs,
        prefix_caching=prepared.config.cache.enable_prefix_caching,
    )
    folder = make_folder()
    document = json.dumps(result.to_json(), indent=1)
    write_atomic(folder / "replay.json", document + "\n")
    write_atomic(folder / "blocks_over_time.svg", render_svg(result))
    report = prepared.config.plugins["report"].name
    if report == "json":
        out.write(json.dumps(json.loads(document)) + "\n")
    elif report != "none":
        resolved = prepared.resolved
        heading = f"{resolved.model.name} on {resolved.device.name}"
        out.write(render(result, heading, terminal_width()) + "\n")
    return 0


def plan_of(prepared: Prepared) -> Plan:
    """The stages before memory is owned: what the request's memory becomes."""
    backend = make_backend(prepared.config, prepared.resolved.backend)
    profile = profile_ranks(prepared, backend)
    return plan_with(prepared, profile.available_kv_bytes, compared=())


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            Problem("command", "numpy for `replay`", "none", "pip install 'kvpipe[torch]'")
        ) from error
