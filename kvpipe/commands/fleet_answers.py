"""What `kvpipe find want.device=[...]` answers: fleets of a number of users, or of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kvpipe.answers.fleet import FleetAnswer, Wanted, plan_fleet
from kvpipe.answers.fleet_candidates import Choice, Shape
from kvpipe.answers.search import Search
from kvpipe.answers.serve_line import image_of
from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.fleet import document, picture, sections
from kvpipe.report.identity import identity, model_words
from kvpipe.request.confdir import NO_CARDS, shipped_cards
from kvpipe.request.nicknames import option_named
from kvpipe.request.want import Want
from kvpipe.text.lines import lay_out

if TYPE_CHECKING:  # traces are read where one is asked for
    from kvpipe.simulation.traces.base import TraceRequest

WAITS = ("wait_ms", "first_token_ms")  # what only a trace of requests can be held to
PICTURE = "fleets.svg"
_CARDS = "want.device=[h100,l40s] names them"
NOT_SERVED = "want.device: none of these cards serves the load"


def fleet_answer(search: Search) -> Answer:
    """want.device: how many of which cards; of what arrives, where a trace says that."""
    if is_traced(search.prepared.config.trace):
        return _traced(search, *_cards(search.want))
    prepared = search.prepared
    answer, wanted = fleets_of_users(search)
    drawn = picture(answer, wanted, _model(search))
    best = answer.fleets[0] if answer.fleets else None
    return Answer(
        status="fits" if best else "does_not_fit",
        exit_code=0 if best else 1,
        lines=partial(lay_out, sections(answer, wanted, _model(search))),
        document={**identity(prepared, "kvpipe.fleet"), **document(answer, wanted)},
        pictures=_files(search, drawn, (best.replica, best.replicas) if best else None),
        fields={"cards": best and best.cards, "fleet": best and best.replica.shape.device},
        complaints=() if best else (NOT_SERVED,),
    )


def fleets_of_users(search: Search) -> tuple[FleetAnswer, Wanted]:
    """What serves users that are simply there."""
    _refuse_waits(search.want)
    devices, prices = _cards(search.want)
    want = search.want
    wanted = Wanted(requests=want.requests, length=search.length, token_s=_seconds(want.token_ms))
    return plan_fleet(search.prepared, wanted, _choice(want, devices), prices), wanted


def is_traced(section: Any) -> bool:
    return not isinstance(section, Mapping) or section.get("name", "none") != "none"


def _traced(search: Search, devices: list[str], prices: Mapping[str, float]) -> Answer:
    from kvpipe.answers.traced_fleet import TracedLoad, Waits, serve_trace
    from kvpipe.report import traced_fleet as told
    from kvpipe.simulation.play import read_trace

    prepared, want = search.prepared, search.want
    trace = read_trace(prepared.config.trace)
    requests = trace.requests()
    waits = Waits(
        percentile=want.percentile,
        wait_s=_seconds(want.wait_ms),
        first_token_s=_seconds(want.first_token_ms),
        token_s=_seconds(want.token_ms),
    )
    length = _length(search, requests)
    load = TracedLoad(requests=requests, options=trace.options, length=length, waits=waits)
    choice = replace(_choice(want, devices), slices=False)
    answer = serve_trace(prepared, load, choice, prices)
    best = answer.fleets[0] if answer.fleets else None
    return Answer(
        status="fits" if best else "does_not_fit",
        exit_code=0 if best else 1,
        lines=partial(lay_out, told.sections(answer, load, _model(search))),
        document={**identity(prepared, "kvpipe.traced_fleet"), **told.document(answer, load)},
        pictures=_files(
            search,
            told.picture(answer, load, _model(search)) if best else None,
            (best.server, best.replicas) if best else None,
        ),
        fields={"cards": best and best.cards, "fleet": best and best.server.shape.device},
        complaints=() if best else (NOT_SERVED,),
    )


def _length(search: Search, requests: Sequence[TraceRequest]) -> int:
    """Of the longest request that a server takes: want.length, or scheduler.max_model_len where
    one of them is said, else that of the trace."""
    prepared, want = search.prepared, search.want
    said = prepared.config.scheduler.max_model_len
    if want.length != "auto":
        return want.length
    if said != "auto":
        return said
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    return min(longest, prepared.resolved.model.context_length)


def _files(search: Search, drawn: str | None, best: tuple[Started, int] | None) -> dict[str, str]:
    """The picture, and what starts the fleet where that is asked for and known."""
    files = {PICTURE: drawn} if drawn else {}
    kind = search.want.write
    if kind is None or best is None or not best[0].command:
        return files
    from kvpipe.report.deployment import Deployment, written  # with yaml

    server, replicas = best
    wanted = Deployment(
        name=_label(search.prepared.resolved.model.name),
        image=search.want.image or image_of(search.prepared),
        command=server.command,
        replicas=replicas,
        cards=server.shape.cards,
    )
    return files | dict([written(kind, wanted)])


class Started(Protocol):
    @property
    def command(self) -> str: ...
    @property
    def shape(self) -> Shape: ...


def _label(model: str) -> str:
    """As Kubernetes and Compose take names."""
    plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in model.lower())
    return plain.strip("-")[:50].strip("-") or "model"


def refuse_trace(prepared: Prepared, want: Want) -> None:
    """ConfigError: without want.device, what is searched is for users that are simply there."""
    if is_traced(prepared.config.trace):
        knob = f"{_CARDS}, or choose trace=none"
        raise ConfigError(Problem("trace", "cards to serve it with", "none", knob))
    _refuse_waits(want)
    _refuse_choices(want)


def _refuse_choices(want: Want) -> None:
    """ConfigError: without cards, each setting is searched by itself."""
    problems = [
        Problem(f"want.{key}", "null, or cards to choose from, too", f"{said}", _CARDS)
        for key in ("caches", "batches", "seqs")
        if (said := getattr(want, key)) is not None
    ]
    if problems:
        raise ConfigError(problems)


def _refuse_waits(want: Want) -> None:
    """ConfigError: users that are simply there wait for nothing."""
    knob = "choose trace=synthetic, azure_code_sample or another"
    problems = [
        Problem(f"want.{key}", "a trace of requests that arrive", "trace=none", knob)
        for key in WAITS
        if getattr(want, key) is not None
    ]
    if problems:
        raise ConfigError(problems)


def unknown_cards(want: Mapping[str, Any]) -> Iterator[Problem]:
    """Every name of a card that no option file has; want: as it was said, right or wrong."""
    cards = shipped_cards()
    for key in ("device", "prices"):
        names = want.get(key)
        for name in names if isinstance(names, list | dict) else ():
            if isinstance(name, str) and option_named("device", name) in (None, *NO_CARDS):
                hint = did_you_mean(name, cards)
                yield Problem(f"want.{key}", "names of device=...", f"'{name}'", hint)
    yield from _prices_of_none(want)


def _prices_of_none(want: Mapping[str, Any]) -> Iterator[Problem]:
    """A price of a card that is not chosen from ranks nothing: it is a slip."""
    devices, prices = want.get("device"), want.get("prices")
    if not isinstance(devices, list) or not isinstance(prices, dict):
        return
    chosen = {option_named("device", name) for name in devices if isinstance(name, str)}
    for name in prices:
        found = option_named("device", name) if isinstance(name, str) else None
        if found is not None and found not in chosen:
            yield Problem("want.prices", "prices of want.device's cards", f"one of '{name}'")


def _cards(want: Want) -> tuple[list[str], dict[str, float]]:
    """The option files of the devices, each once, and their prices."""
    if unknown := list(unknown_cards(want.model_dump())):
        raise ConfigError(unknown)
    devices = [str(option_named("device", name)) for name in want.device or ()]
    prices = {str(option_named("device", name)): p for name, p in (want.prices or {}).items()}
    return list(dict.fromkeys(devices)), prices


def _choice(want: Want, devices: list[str]) -> Choice:
    return Choice(
        devices=devices,
        caches=list(dict.fromkeys(want.caches or (None,))),
        batches=list(dict.fromkeys(want.batches or (None,))),
        seqs=list(dict.fromkeys(want.seqs or (None,))),
    )


def _model(search: Search) -> str:
    return model_words(search.prepared.resolved)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
