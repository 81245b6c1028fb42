"""What of a load `find` would not read: it is refused, since whoever says it wants it answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.errors import Problem
from kvpipe.request.want import Want

_OF_CARDS = ("prices", "caches", "batches", "seqs", "token_ms", "write", "image")
_OF_TRACES = ("wait_ms", "first_token_ms", "percentile")
_NOBODYS = {key: Want.model_fields[key].default for key in ("percentile",)}


def is_traced(section: Any) -> bool:
    return not isinstance(section, Mapping) or section.get("name", "none") != "none"


def unread(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """raw: the composed values, right or wrong."""
    want, traced = raw.get("want"), is_traced(raw.get("trace") or {})
    if not isinstance(want, Mapping):
        return
    said = [key for key in (*_OF_CARDS, *_OF_TRACES) if want.get(key) != _NOBODYS.get(key)]
    if want.get("device") is None:
        yield from _without_cards(said, traced)
    elif "image" in said and "write" not in said:
        knob = "want.write=compose or kubernetes writes one"
        yield Problem("want.image", "a file that names it", "want.write=null", knob)
    if traced and want.get("device") is not None and want.get("requests") not in (None, 1):
        knob = "choose trace=none for users that are simply there"
        wanted = "nothing: a trace says how many requests come, and when"
        yield Problem("want.requests", wanted, f"{want['requests']}", knob)
    if not traced:
        knob = "choose trace=synthetic, azure_code_sample or another"
        for key in filter(_OF_TRACES.__contains__, said):
            yield Problem(f"want.{key}", "a trace of requests that arrive", "trace=none", knob)


def _without_cards(said: list[str], traced: bool) -> Iterator[Problem]:
    """Without a choice of cards, what is searched is settings, for users that are simply there."""
    knob = "want.device=[h100,l40s] names them"
    if traced:
        choice = f"{knob}, or choose trace=none"
        yield Problem("trace", "cards to serve it with", "none", choice)
    for key in filter(_OF_CARDS.__contains__, said):
        yield Problem(f"want.{key}", "cards to choose from", "want.device=null", knob)
