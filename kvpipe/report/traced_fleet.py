"""Fleets that serve a trace, told: a ranked table, what a replica less lacks, the command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvpipe.answers.traced_fleet import TracedAnswer, TracedFleet, TracedLoad
from kvpipe.answers.waits import Waits, of
from kvpipe.report.fleet import by_cards, drawn, refusals, refused_document, shape_of, to_start
from kvpipe.simulation.latencies import Percentiles
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section

_HEADERS = ("cards", "of", "as", "cost/h", "first token", "a token", "one less")


def sections(answer: TracedAnswer, load: TracedLoad, model: str) -> list[Section]:
    found, share = answer.fleets, load.waits.percentile
    table = Section(
        title=f"find: {load_words(load)}, {model}",
        headers=_HEADERS if found else (),
        align="rllrrrl" if found else "",
        rows=[_row(fleet, share) for fleet in found],
        paragraphs=[
            Line(
                f"{count(answer.tried, 'candidate')} planned, {count(answer.replays, 'replay')} "
                "of the trace, each whole but where it had lost; first token, a token: "
                f"{share}% of the requests wait no longer. "
                f"one less: what a replica less lacks. {_asked(load.waits)}",
                "faint",
            ),
            Line(told_times(load), "faint"),
            *_low_end(answer),
            *by_cards(answer.unpriced),
            *refusals(answer.refused),
        ],
    )
    if not found:
        return [table]
    return [table, to_start(found[0], found[0].server)]


def load_words(load: TracedLoad) -> str:
    last = load.requests[-1].arrival_s / load.options.arrival_rate_scale
    text = f"{count(len(load.requests), 'request')} of {load.options.name}"
    return f"{text}, at most {count(load.length, 'token')}, in {last:,.0f} s"


def _asked(waits: Waits) -> str:
    told = (("wait", waits.wait_s), ("first token", waits.first_token_s), ("token", waits.token_s))
    asked = [f"{name} {1000 * most:,.10g} ms" for name, most in told if most is not None]
    return "Asked: " + (", ".join(asked) if asked else "to keep up with what arrives")


def _low_end(answer: TracedAnswer) -> list[Line]:
    if not answer.fleets:
        return []
    words = "memory: the estimate's best value; with the least of its range the first"
    if not answer.unsure:
        return [Line(f"{words} serves the load, too (replayed)", "faint")]
    return [Line(f"{words} does not serve the load: {answer.unsure}", "warning")]


def told_times(load: TracedLoad) -> str:
    """What the times rest on: the reader must know that nothing is that fast."""
    if load.options.step_seconds != "auto":
        return "time: as trace.step_seconds says (set, not measured)"
    if load.options.efficiency < 1:
        return (
            f"time: {load.options.efficiency:.0%} of the cards' nominal speed is reached "
            "(trace.efficiency, set by you)"
        )
    return (
        "time: at the cards' nominal speed, which no engine reaches, so expect to need more; "
        "trace.efficiency=0.5 counts with half of it"
    )


def _row(fleet: TracedFleet, share: int) -> tuple[str, ...]:
    result, shape = fleet.result, fleet.server.shape
    return (
        f"{fleet.cards:,}",
        shape.device,
        shape_of(fleet.replicas, shape),
        "-" if fleet.cost is None else f"{fleet.cost:,.2f}",
        _milliseconds(result.first_token, share),
        _milliseconds(result.each_token, share),
        fleet.one_less or "-",
    )


def _milliseconds(found: Percentiles | None, share: int) -> str:
    return "-" if found is None else f"{1000 * of(found, share):,.1f} ms"


def document(answer: TracedAnswer, load: TracedLoad) -> dict[str, Any]:
    return {
        "load": {
            "trace": load.options.name,
            "requests": len(load.requests),
            "length": load.length,
            "waits": asdict(load.waits),
            "efficiency": load.options.efficiency,
        },
        "tried": answer.tried,
        "replays": answer.replays,
        "fleets": [_fleet(fleet) for fleet in answer.fleets],
        "refused": refused_document(answer.refused),
    }


def _fleet(fleet: TracedFleet) -> dict[str, Any]:
    return {
        "cards": fleet.cards,
        "replicas": fleet.replicas,
        "cost_per_hour": fleet.cost,
        "one_less": fleet.one_less,
        **asdict(fleet.server.shape),
        "command": fleet.server.command,
        "no_command": fleet.server.no_command,
        "replay": dict(fleet.result.to_json()),
    }


def picture(answer: TracedAnswer, load: TracedLoad, model: str) -> str:
    share = load.waits.percentile
    return drawn(
        [(fleet, fleet.server.shape, _first_ms(fleet, share)) for fleet in answer.fleets],
        title=load_words(load),
        model=model,
        delay=f"milliseconds to the first token ({share}% of the requests)",
    )


def _first_ms(fleet: TracedFleet, share: int) -> float:
    first = fleet.result.first_token
    return 0.0 if first is None else 1000 * of(first, share)
