"""Stops of sliders that somebody asked for, and that no plan can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from kvpipe.errors import Problem, problems_of
from kvpipe.page.axes import CACHE, CARDS
from kvpipe.pipeline import prepare
from kvpipe.request.changed import changed
from kvpipe.request.confdir import shipped_option
from kvpipe.request.config import CacheConfig
from kvpipe.request.quick import quick_compose
from kvpipe.request.schema import check_section


def wrong_stops(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """raw: the composed values, their `command` of a page. Of a sweep's jobs and of several
    engines each has limits of its own, which the page shows: there, words alone are checked."""
    section = raw["command"]
    yield from _words(raw, _listed(section, "caches"))
    sections = (raw.get(key.partition(".")[0]) for key in (CARDS, CACHE))
    whole = all(isinstance(each, Mapping) for each in sections)
    if not whole or section.get("folder") is not None or section.get("engines"):
        return
    plain = {**raw, "command": shipped_option("command", "run")}
    usual = quick_compose([])  # in the place of what else is wrong
    before = set(problems_of(lambda: prepare(plain, usual)))
    for key, name in ((CARDS, "cards"), (CACHE, "caches")):
        for at, stop in enumerate(_listed(section, name)):
            for problem in problems_of(partial(prepare, changed(plain, {key: stop}), usual)):
                if problem not in before and problem.key == key:
                    yield replace(problem, key=f"command.{name}.{at}")


def _listed(section: Mapping[str, Any], name: str) -> list[Any]:
    stops = section.get(name)
    return stops if isinstance(stops, list) else []


def _words(raw: Mapping[str, Any], caches: list[Any]) -> Iterator[Problem]:
    cache = raw.get("cache")
    for at, stop in enumerate(caches):
        if isinstance(cache, Mapping) and isinstance(stop, str):
            _, problems = check_section("cache", CacheConfig, {**cache, "cache_dtype": stop})
            yield from (
                replace(each, key=f"command.caches.{at}") for each in problems if each.key == CACHE
            )
