"""What of a load a command would not read: it is refused, since who says it wants it answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvpipe.errors import Problem
from kvpipe.request.confdir import NO_CARDS
from kvpipe.request.want import Want

_OF_CARDS = ("prices", "caches", "batches", "seqs", "token_ms", "write", "image")
_OF_TRACES = ("wait_ms", "first_token_ms", "percentile")
_TIMES = ("wait_ms", "first_token_ms", "token_ms")
_DEFAULTS: Mapping[str, Any] = {"requests": 1, "length": "auto", "percentile": 99}
_WHO = {
    "requests": "kvpipe run, find and compare take it",
    "length": "scheduler.max_model_len (--context) is a request's length; kvpipe find takes it",
    "device": "device=h100 (--on) is the card; kvpipe find want.device=[h100,l40s] chooses one",
    **dict.fromkeys(_OF_CARDS, "kvpipe find with want.device=[h100,l40s] takes it"),
    **dict.fromkeys(_OF_TRACES, "kvpipe replay, or find with cards, takes it, of a trace"),
    "token_ms": "kvpipe replay, or find with want.device=[h100,l40s], takes it",
}


def is_traced(section: Any) -> bool:
    return not isinstance(section, Mapping) or section.get("name", "none") != "none"


def not_read(name: str, reads: Sequence[str], raw: Mapping[str, Any]) -> Iterator[Problem]:
    """name: of the command; reads: the keys of `want` that it looks at. raw: the composed values,
    right or wrong."""
    want = raw.get("want")
    if not isinstance(want, Mapping):
        return
    said = _said(want)
    for key in said:
        if key not in reads:
            yield Problem(f"want.{key}", f"nothing for kvpipe {name}", f"{want[key]}", _WHO[key])
    is_held = not {*_TIMES}.isdisjoint(said) or not is_traced(raw.get("trace") or {})
    if "percentile" in said and "percentile" in reads and not is_held:
        times = ", ".join(f"want.{key}" for key in _TIMES)
        expected = f"times that requests are held to ({times})"
        yield Problem("want.percentile", expected, "none", "set one, or leave it out")


def _said(want: Mapping[str, Any]) -> list[str]:
    """Keys that have another value than where nobody says anything, in the order of the section."""
    return [key for key in Want.model_fields if want.get(key, d := _DEFAULTS.get(key)) != d]


def unread(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a search: what is about cards where none are named, about a trace where there is none.
    raw: the composed values, right or wrong."""
    want, traced = raw.get("want"), is_traced(raw.get("trace") or {})
    if not isinstance(want, Mapping):
        return
    said = _said(want)
    if want.get("device") is None:
        yield from _without_cards(said, traced)
    else:
        yield from _of_chosen_cards(raw)
    if want.get("device") is not None and "image" in said and "write" not in said:
        knob = "want.write=compose or kubernetes writes one"
        yield Problem("want.image", "a file that names it", "want.write=null", knob)
    if traced and want.get("device") is not None and "requests" in said:
        knob = "choose trace=none for users that are simply there"
        yield users_beside_trace(want["requests"], knob)
    if not traced:
        knob = "choose trace=synthetic, azure_code_sample or another"
        for key in filter(_OF_TRACES.__contains__, said):
            yield Problem(f"want.{key}", "a trace of requests that arrive", "trace=none", knob)


def users_beside_trace(users: object, knob: str) -> Problem:
    wanted = "nothing: a trace says how many requests come, and when"
    return Problem("want.requests", wanted, f"{users}", knob)


_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def _of_chosen_cards(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """A card, or a number of ranks, that is said beside the cards to choose from."""
    device, parallel = raw.get("device"), raw.get("parallel")
    name = device.get("name") if isinstance(device, Mapping) else None
    if isinstance(name, str) and name not in NO_CARDS:
        knob = "leave out --on (device=), or want.device"
        yield Problem("device", "nothing beside want.device, which names the cards", name, knob)
    for key in _RANKS:
        ranks = parallel.get(key, 1) if isinstance(parallel, Mapping) else 1
        if isinstance(ranks, int) and ranks > 1:
            expected = "nothing beside want.device, whose servers have each number of ranks"
            yield Problem(f"parallel.{key}", expected, f"{ranks}", "leave it out")


def of_users(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a page without a choice of cards, whose lengths are those of a slider."""
    want = raw.get("want")
    if isinstance(want, Mapping) and want.get("device") is None and "length" in _said(want):
        yield Problem("want.length", "nothing for kvpipe page", f"{want['length']}", _WHO["length"])


def _without_cards(said: list[str], traced: bool) -> Iterator[Problem]:
    """Without a choice of cards, what is searched is settings, for users that are simply there."""
    knob = "want.device=[h100,l40s] names them"
    if traced:
        choice = f"{knob}, or choose trace=none"
        yield Problem("trace", "cards to serve it with", "none", choice)
    for key in filter(_OF_CARDS.__contains__, said):
        yield Problem(f"want.{key}", "cards to choose from", "want.device=null", knob)
