"""Figures of one engine as they are read, put together: ranks, copies, pools, starts.

A start ends where a line that only a start begins with comes a second time from the same speaker
after figures were read. Within one start the fewest tokens and the least cache memory stand where
a speaker repeats them; other sizes are the last ones, weights the largest (a draft is smaller).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpipe.errors import printable
from kvpipe.logs.engine_log import Capacity, EngineLog, Said
from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.figures import Figure, number, whole_number
from kvpipe.logs.load import Load
from kvpipe.logs.out_of_memory import OutOfMemory
from kvpipe.logs.phrases import Phrase
from kvpipe.logs.speaker import Speaker
from kvpipe.text.clean import whole_sentences

_LEAST = ("available_kv",)
_MOST = ("weights", "peak_torch")
_OF_THE_ENGINE = ("needed",)  # sizes that no rank has
_LENGTH = "scheduler.max_model_len"
_CAPACITY = ("kv_tokens", "num_gpu_blocks")
LONGEST_SAID = 240  # characters of a line that are kept
LONGEST_ERROR = 480


@dataclass
class _Start:
    ranks: dict[str, dict[str, Figure]] = field(default_factory=dict)
    pools: dict[str, list[Figure]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    capacities: dict[str, list[Capacity]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    padding: dict[tuple[int, float], None] = field(default_factory=dict)
    printed: dict[str, Any] = field(default_factory=dict)  # the engine's own settings
    said: dict[str, Said] = field(default_factory=dict)
    loaded: dict[str, list[str]] = field(default_factory=dict)  # rank -> types of models
    signs: set[tuple[str, str]] = field(default_factory=set)
    error: str = ""
    ran_out: OutOfMemory | None = None
    load: Load = Load()

    @property
    def has_figures(self) -> bool:
        return bool(self.ranks or self.capacities or self.pools or self.ran_out)

    @property
    def says_something(self) -> bool:
        """Figures, or of a start that one can tell by its head why it ended."""
        return self.has_figures or bool(self.error and self.facts)


class Starts:
    """One engine of one container. last: number of the line that the last figure stood in."""

    def __init__(self, engine: LoggedEngine) -> None:
        self.engine = engine
        self.now = _Start()
        self.count = 1
        self.last = 0

    def begins(self, sign: str, rank: str) -> None:
        """A line that a start begins with."""
        if (sign, rank) in self.now.signs and self.now.has_figures:
            self.now = _Start()
            self.count += 1
        self.now.signs.add((sign, rank))

    def take(
        self, phrase: Phrase, values: tuple[str | None, ...], who: Speaker, at: int, line: str
    ) -> None:
        """The figures of one phrase on line `at`. ValueError: one is no number."""
        for name, value in zip(phrase.names, values, strict=True):
            if value is not None:
                self._keep(phrase, name, value, values, who)
                self._note(name, at, line)

    def fails(self, message: str) -> None:
        """What a line tells of an error."""
        is_echo = any(words in message for words in self.engine.echoes)
        if not (is_echo and self.now.error):
            self.now.error = whole_sentences(printable(message), LONGEST_ERROR)

    def runs_out(self, found: OutOfMemory, who: Speaker, at: int) -> None:
        """A card ran out: the first line of a start tells, later ones follow from it."""
        if self.now.ran_out is None:
            self.now.ran_out, self.last = found, at
        if found.total is not None:
            mine = self.now.ranks.setdefault(who.rank, {})
            mine.setdefault("total", Figure.exact(found.total))

    def serves(self, line: str) -> None:
        """A line of a server that runs."""
        self.now.load = self.now.load.with_line(line)

    def _note(self, name: str, at: int, line: str) -> None:
        self.now.said[name] = Said(line=at, text=printable(line[:LONGEST_SAID]))
        self.last = at if name not in self.engine.settings else self.last

    # --- values by kind ---
    def _keep(
        self, phrase: Phrase, name: str, value: str, values: tuple[str | None, ...], who: Speaker
    ) -> None:
        now = self.now
        if phrase.kind in ("size", "bytes"):
            self._size(
                name, Figure.printed(value, phrase.unit if phrase.kind == "size" else 1), who
            )
        elif phrase.kind == "count":
            self._count(name, whole_number(value), who)
        elif phrase.kind == "ratio":
            self._ratio(name, number(value), who)
        elif phrase.kind == "padding":
            if name == "padding_layers":
                now.padding[whole_number(value), number(str(values[1]))] = None
        elif phrase.kind == "regrouped":
            now.padding.clear()
            now.printed[name] = value
        elif phrase.kind == "loaded":
            self._loads(value, who)
        elif phrase.kind == "truth":
            now.printed[name] = value.lower() == "true"
        else:
            now.facts[name] = value
            now.printed[name] = value

    def _size(self, name: str, figure: Figure, who: Speaker) -> None:
        if name in _OF_THE_ENGINE:
            self.now.facts[name] = figure
            return
        mine = self.now.ranks.setdefault(who.rank, {})
        if name in self.engine.pools:
            self.now.pools.setdefault(who.rank, []).append(figure)
        elif name == "weights" and len(self.now.loaded.get(who.rank, ())) > 1:
            mine["draft_weights"] = figure
        elif name in mine and name in self.engine.sums:
            mine[name] = Figure.sum([mine[name], figure])
        elif name in mine and name in _LEAST:
            mine[name] = min(mine[name], figure)
        elif name in mine and name in _MOST:
            mine[name] = max(mine[name], figure)
        else:
            mine[name] = figure

    def _count(self, name: str, value: int, who: Speaker) -> None:
        if name in _CAPACITY:
            lines = self.now.capacities.setdefault(who.copy, [])
            tokens, blocks = (value, None) if name == "kv_tokens" else (None, value)
            lines.append(Capacity(tokens=tokens, blocks=blocks))
        elif name == "concurrency_len":
            self._last_line(who, concurrency_len=value)
        elif name in self.engine.settings:
            self.now.printed[name] = value
        self.now.counts[name] = value

    def _ratio(self, name: str, value: float, who: Speaker) -> None:
        if name == "max_concurrency":
            self._last_line(who, max_concurrency=value)
        elif name in ("swap_gib", "offload_gib"):
            self.now.printed[name] = value
        self.now.facts[name] = value

    def _last_line(self, who: Speaker, **more: Any) -> None:
        """A concurrency belongs to the capacity line before it."""
        lines = self.now.capacities.setdefault(who.copy, [])
        before = lines.pop() if lines else Capacity()
        merged = {k: v for k, v in vars(before).items() if v is not None}
        lines.append(Capacity(**{**merged, **more}))

    def _loads(self, kind: str, who: Speaker) -> None:
        """A model is loaded: another one beside the first is a draft, the same one a new start."""
        known = self.now.loaded.setdefault(who.rank, [])
        if kind in known and self.now.has_figures:
            self.now = _Start()
            self.count += 1
            known = self.now.loaded.setdefault(who.rank, [])
        known.append(kind)

    # --- the value ---
    def log(self, notes: tuple[str, ...]) -> EngineLog:
        now = self.now
        for rank, parts in now.pools.items():
            now.ranks.setdefault(rank, {})["pools"] = Figure.sum(parts)
        _said_exactly(now)
        lines = {copy: _fewest(found) for copy, found in now.capacities.items()}
        poorest = _fewest(list(lines.values())) if lines else Capacity()
        settings = _settings(self.engine, now.printed)
        if "concurrency_len" in now.counts:  # a log without its head
            settings.setdefault(_LENGTH, now.counts["concurrency_len"])
            if "fitted" in now.facts:  # its head has the length before
                settings[_LENGTH] = now.counts["concurrency_len"]
        counts = {**now.counts, **_counts_of(poorest)}
        return EngineLog(
            engine=self.engine.name,
            version=now.facts.get("version"),
            ranks={rank: figures for rank, figures in now.ranks.items() if figures},
            counts=counts,
            capacities=lines,
            utilization=now.facts.get("utilization"),
            max_concurrency=poorest.max_concurrency,
            needed=now.facts.get("needed"),
            kv_dtype=now.facts.get("kv_dtype"),
            model=now.facts.get("model"),
            padding=tuple(now.padding),
            settings=settings,
            said=dict(now.said),
            starts=self.count,
            error=now.error,
            left_nothing=bool(self.engine.empty) and self.engine.empty in now.error,
            ran_out=now.ran_out,
            load=now.load,
            notes=notes,
        )


def _said_exactly(now: _Start) -> None:
    """Bytes of the cache that were set, where the rounded figure stands for them, too: a tiny cache
    is printed as 0.00 GiB."""
    asked = now.counts.get("kv_cache_memory_bytes")
    for figures in now.ranks.values():
        printed = figures.get("available_kv")
        if asked is not None and printed is not None and printed.low <= asked <= printed.high:
            figures["available_kv"] = Figure.exact(asked)


def _fewest(lines: list[Capacity]) -> Capacity:
    """The line with the fewest tokens; blocks printed apart from tokens join it."""
    tokens = [line for line in lines if line.tokens is not None]
    blocks = [line for line in lines if line.blocks is not None]
    if not tokens:
        return min(blocks, key=lambda line: line.blocks or 0, default=lines[0])
    best = min(tokens, key=lambda line: line.tokens or 0)
    if best.blocks is None and blocks:
        fewest = min(line.blocks or 0 for line in blocks)
        return Capacity(**{**vars(best), "blocks": fewest})
    return best


def _counts_of(line: Capacity) -> dict[str, int]:
    found = {
        "kv_tokens": line.tokens,
        "num_gpu_blocks": line.blocks,
        "concurrency_len": line.concurrency_len,
    }
    return {name: value for name, value in found.items() if value is not None}


def _settings(engine: LoggedEngine, printed: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's settings by kvpipe's keys; beside them what only a comparison asks for
    (swap_gib, offload_gib)."""
    found: dict[str, Any] = {}
    for name, value in printed.items():
        if name in engine.settings:
            key, convert = engine.settings[name]
            if (converted := convert(value)) is not None:
                found[key] = converted
        elif name in ("swap_gib", "offload_gib"):
            found[name] = value
    return found
