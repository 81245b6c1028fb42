"""What a served page asks, answered: which stops a model has, and a fresh plan of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.page.axes import BATCH, CACHE, CARDS, LENGTH, AskedStops, axes_of
from kvpipe.page.document import page_document, position_document, subject_document
from kvpipe.page.planner import Planner
from kvpipe.page.shelf import Shelf
from kvpipe.page.subject import Subject, words_without
from kvpipe.pipeline import prepare
from kvpipe.report.identity import model_words
from kvpipe.request.confdir import shipped_cards, shipped_names
from kvpipe.request.quick import quick_compose

MOST_KEPT = 8  # composed requests
_ALL_STOPS = 10**6


@dataclass(frozen=True, kw_only=True)
class Choice:
    """model: a preset, or the number of a file on the shelf. device: an option file."""

    model: str | int
    device: str


@dataclass(kw_only=True)
class Live:
    """words: the overrides that the server was started with; a choice replaces model and device."""

    words: Sequence[str]
    shelf: Shelf
    start: Choice
    users: int
    _planners: dict[Choice, Planner] = field(default_factory=dict, repr=False)
    _one_at_a_time: Lock = field(default_factory=Lock, repr=False)

    def document(self) -> dict[str, Any]:
        """What the page opens with."""
        return {
            **page_document("live", (), users=self.users),
            "models": presets(),
            "devices": shipped_cards(),
            "files": self.files(),
            "choice": {"model": self.start.model, "device": self.start.device},
        }

    def files(self) -> list[dict[str, Any]]:
        return [
            {"number": number, "kind": file.kind, "name": file.name}
            for number, file in enumerate(self.shelf.files)
        ]

    def subject(self, choice: Choice) -> dict[str, Any]:
        """The sliders of a model on a device; ConfigError where the two make no request."""
        with self._one_at_a_time:
            prepared = prepare(self._planner(choice).raw)
        axes = axes_of(prepared, AskedStops(), _ALL_STOPS, dense=True)
        subject = Subject(
            title="",
            words=tuple(words_without(self._words(choice), axes)),
            model=model_words(prepared.resolved),
            device=prepared.resolved.device.name,
            axes=axes,
            positions=(),
            pipeline=prepared.resolved.parallel.pp,
            copies=prepared.resolved.parallel.dp,
        )
        return subject_document(subject, {})

    def plan(self, choice: Choice, changes: Mapping[str, Any]) -> dict[str, Any]:
        """One position, planned now."""
        began = perf_counter()
        with self._one_at_a_time:
            position = self._planner(choice).position(checked(changes))
        return {**position_document(position), "milliseconds": 1e3 * (perf_counter() - began)}

    def _words(self, choice: Choice) -> list[str]:
        """As the page's command says the request."""
        if isinstance(choice.model, str):
            model = f"model={choice.model}"
        else:
            model = f"./{self.shelf.file(choice.model).name}"
        return [model, f"device={choice.device}", *self._kept()]

    def _kept(self) -> list[str]:
        """What a choice leaves of the command line."""
        return [word for word in self.words if word.partition("=")[0] not in ("model", "device")]

    def _planner(self, choice: Choice) -> Planner:
        if isinstance(choice.model, int):
            self.shelf.file(choice.model)  # what lies there may be another thing by now
        if choice not in self._planners:
            while len(self._planners) >= MOST_KEPT:
                self._planners.pop(next(iter(self._planners)))
            self._planners[choice] = Planner(raw=self._composed(choice))
        return self._planners[choice]

    def _composed(self, choice: Choice) -> dict[str, Any]:
        _check_name("device", choice.device, shipped_names("device"))
        named, kept = "hf", self._kept()
        if isinstance(choice.model, str):
            _check_name("model", choice.model, presets())
            named = choice.model
        raw = quick_compose([*kept, f"model={named}", f"device={choice.device}"])
        if raw is None:
            wanted = "settings of this command line that are plain (no list, no model.*)"
            raise ConfigError(Problem("command line", wanted, " ".join(kept)))
        if isinstance(choice.model, int):
            file = self.shelf.file(choice.model)
            if file.kind != "model":
                raise ConfigError(Problem("file", "a model's", f"'{file.name}', a log"))
            raw["model"] = {**raw["model"], "path": str(file.path)}
        return raw


def checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    """A slider's settings, and no other; ConfigError otherwise."""
    for key, value in changes.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if key not in (LENGTH, BATCH, CARDS, CACHE) or not (whole or isinstance(value, str)):
            raise ConfigError(Problem("changes", "the page's four settings", f"{key}={value!r}"))
    return dict(changes)


def presets() -> list[str]:
    return [name for name in shipped_names("model") if name != "hf"]


def _check_name(group: str, name: str, listed: Sequence[str]) -> None:
    """It becomes part of a path: only what is listed."""
    if name not in listed:
        raise ConfigError(Problem(group, "a listed name", f"'{name}'"))
