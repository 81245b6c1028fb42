"""Run a request trace through the block manager on any plan: what Capacity promises, seen at work.

>>> from kvpipe.simulation import replay
>>> replay(requests, plan, options).max_running            # doctest: +SKIP
"""

from kvpipe.simulation.play import read_trace, replay, run
from kvpipe.simulation.result import ReplayResult

__all__ = ["ReplayResult", "read_trace", "replay", "run"]
