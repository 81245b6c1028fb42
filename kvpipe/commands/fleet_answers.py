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
from kvpipe.commands.unread_wants import is_traced
from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.report.base import Answer
from kvpipe.report.fleet import Counted, document, named, picture, sections
from kvpipe.report.identity import identity, model_words
from kvpipe.report.last_line import last_line
from kvpipe.request.confdir import NO_CARDS, shipped_cards
from kvpipe.request.nicknames import option_named
from kvpipe.request.want import Want
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, lay_out
from kvpipe.text.meanwhile import Tell, silent

if TYPE_CHECKING:  # traces are read where one is asked for
    from kvpipe.answers.traced_fleet import TracedAnswer, TracedLoad
    from kvpipe.simulation.traces.base import TraceRequest

PICTURE = "fleets.svg"
NOT_SERVED = "want.device: none of these cards serves the load"


def fleet_answer(search: Search, tell: Tell) -> Answer:
    """want.device: how many of which cards; of what arrives, where a trace says that. tell: is
    told what is tried."""
    if is_traced(search.prepared.config.trace):
        return _traced(search, tell)
    prepared = search.prepared
    answer, wanted = fleets_of_users(search, tell)
    drawn = picture(answer, wanted, _model(search))
    best = answer.fleets[0] if answer.fleets else None
    status = _status(answer, wanted)
    load = f"{count(wanted.requests, 'request')} of {count(wanted.length, 'token')}"
    shape = named(best.replicas, best.replica.shape) if best else ""
    return Answer(
        status=status,
        exit_code=0 if best else 1,
        verdict=_verdict(search, status, load, best, shape),
        lines=partial(lay_out, sections(answer, wanted, _model(search))),
        document={**identity(prepared, "kvpipe.fleet"), **document(answer, wanted)},
        pictures=_files(search, drawn, (best.replica, best.replicas) if best else None),
        fields={"cards": best and best.cards, "fleet": best and best.replica.shape.device},
        complaints=_complaints(search.want, best.replica if best else None),
    )


def _status(answer: FleetAnswer, wanted: Wanted) -> str:
    if not answer.fleets:
        return "does_not_fit"
    return "fits" if answer.fleets[0].is_sure(wanted.requests) else "may_not_fit"


def _verdict(search: Search, status: str, load: str, first: Counted | None, shape: str) -> Line:
    """first: of the ranking. shape: how its cards serve."""
    if first is None:
        on = f"any of {', '.join(search.want.device or ())}"
    else:
        on = f"{count(first.cards, 'card')}: {shape}"
    return last_line(status.replace("_", " "), f"{load} on {on}")


def fleets_of_users(search: Search, tell: Tell = silent) -> tuple[FleetAnswer, Wanted]:
    """What serves users that are simply there."""
    devices, prices = _cards(search.want)
    want = search.want
    wanted = Wanted(requests=want.requests, length=search.length, token_s=_seconds(want.token_ms))
    return plan_fleet(search.prepared, wanted, _choice(want, devices), prices, tell), wanted


def fleets_of_trace(search: Search, tell: Tell = silent) -> tuple[TracedAnswer, TracedLoad]:
    """What serves the requests of a trace as they arrive."""
    from kvpipe.answers.traced_fleet import TracedLoad, serve_trace
    from kvpipe.answers.waits import waits_of
    from kvpipe.simulation.play import read_trace

    devices, prices = _cards(search.want)
    trace = read_trace(search.prepared.config.trace)
    requests = trace.requests()
    load = TracedLoad(
        requests=requests,
        options=trace.options,
        length=_length(search, requests),
        waits=waits_of(search.prepared.config.want),
    )
    choice = replace(_choice(search.want, devices), slices=False)
    return serve_trace(search.prepared, load, choice, prices, tell), load


def _traced(search: Search, tell: Tell) -> Answer:
    from kvpipe.answers.waits import turned_away
    from kvpipe.report import traced_fleet as told

    answer, load = fleets_of_trace(search, tell)
    best = answer.fleets[0] if answer.fleets else None
    turned = tuple(turned_away(best.result)) if best else ()
    model, prepared = _model(search), search.prepared
    status = "does_not_fit" if turned or not best else "may_not_fit" if answer.unsure else "fits"
    shape = named(best.replicas, best.server.shape) if best else ""
    return Answer(
        status=status,
        verdict=_verdict(search, status, told.load_words(load), best, shape),
        exit_code=0 if best and not turned else 1,
        lines=partial(lay_out, told.sections(answer, load, model)),
        document={**identity(prepared, "kvpipe.traced_fleet"), **told.document(answer, load)},
        pictures=_files(
            search,
            told.picture(answer, load, model) if best else None,
            (best.server, best.replicas) if best else None,
        ),
        fields={"cards": best and best.cards, "fleet": best and best.server.shape.device},
        complaints=(*turned, *_complaints(search.want, best.server if best else None)),
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
    return files | written(kind, wanted)


class Started(Protocol):
    @property
    def command(self) -> str: ...
    @property
    def no_command(self) -> str: ...
    @property
    def shape(self) -> Shape: ...


def _complaints(want: Want, best: Started | None) -> tuple[str, ...]:
    """Why nothing is served, or why the file that was asked for is not there."""
    if best is None:
        return (NOT_SERVED,)
    if want.write is None or best.command:
        return ()
    return (f"want.write={want.write}: no file, for want of a line to start: {best.no_command}",)


def _label(model: str) -> str:
    """As Kubernetes and Compose take names."""
    plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in model.lower())
    return plain.strip("-")[:50].strip("-") or "model"


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
    priced: set[str] = set()
    for name in prices:
        found = option_named("device", name) if isinstance(name, str) else None
        if found is not None and found not in chosen:
            yield Problem("want.prices", "prices of want.device's cards", f"one of '{name}'")
        elif found in priced:
            yield Problem("want.prices", "one price of a card", f"two of {found}")
        priced |= {found} if found else set()


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
