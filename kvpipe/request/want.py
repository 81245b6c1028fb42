"""The load that a request names: how many users at once, where a command reads no more of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpipe.errors import ConfigError, Problem

_MOST = 2**31


def requests_asked(want: Mapping[str, Any]) -> int:
    """want.requests, 1 where nothing is said; ConfigError where it is no number of requests."""
    asked = want.get("requests", 1)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked < _MOST:
        expected = f"a whole number of users from 1 to {_MOST - 1:,}"
        raise ConfigError(Problem("want.requests", expected, repr(asked), "--users 16"))
    return asked
