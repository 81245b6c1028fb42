"""The sections `want` and `trace`: what is wrong in them is told whichever command is asked, since
a request is right as a whole or it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.errors import Problem, problems_of
from kvpipe.request.schema import NOTHING, check_section
from kvpipe.request.want import Want

_CHECKED = "want.requests"  # by every request, in words of its own


def wrong_loads(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """raw: the composed values. What a config of others leaves out is missed by who reads it."""
    want, trace = raw.get("want"), raw.get("trace")
    if isinstance(want, Mapping):
        _, problems = check_section("want", Want, want)
        yield from (each for each in problems if each.got != NOTHING and each.key != _CHECKED)
        if want.get("device") or want.get("prices"):
            from kvpipe.commands.fleet_answers import unknown_cards

            yield from unknown_cards(want)
    if isinstance(trace, Mapping) and trace.get("name", "none") != "none":
        from kvpipe.simulation.play import read_trace  # numpy, which no plan imports

        yield from problems_of(lambda: read_trace(trace))
