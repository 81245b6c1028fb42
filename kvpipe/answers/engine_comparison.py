"""One request, planned by several engines: what each makes of the same card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvpipe.answers.block_plan import plan_blocks
from kvpipe.answers.engine_question import question_of
from kvpipe.answers.served import Served, refused, served
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import PlannedEngine
from kvpipe.errors import ConfigError, DoesNotFit, KvpipeError, Problem, did_you_mean
from kvpipe.pipeline import Prepared, prepare
from kvpipe.plugins import REGISTRIES
from kvpipe.request.confdir import shipped_option


@dataclass(frozen=True, kw_only=True)
class Compared:
    """name: as it is chosen. plan None: refused, in the engine's words. exit_code: of the refusal
    (1: it does not fit, 2: the request is wrong). served: at the ends of the memory's estimate
    (None: the request is wrong)."""

    name: str
    plan: EnginePlan | None
    served: Served | None = None
    refused: tuple[str, ...] = ()
    exit_code: int = 0

    def word(self, asked: int) -> str:
        """fits, may not fit, does not fit: of so many users of a copy; refused: not planned."""
        return "refused" if self.served is None else self.served.word(asked)

    def serves(self, asked: int) -> bool:
        """By the best value of the memory, as exit codes go."""
        return self.served is not None and self.served.best.users >= asked


def compare_engines(prepared: Prepared, names: Sequence[str]) -> tuple[Compared, ...]:
    """In the order asked for. ConfigError for a name that is none."""
    check_names(names)
    return tuple(_one(prepared, name) for name in dict.fromkeys(names))


def check_names(names: Sequence[str]) -> None:
    """ConfigError with each name that no engine has."""
    known = REGISTRIES["engine"].names()
    key, expected = "command.engines", "engines by name"
    if not names:
        raise ConfigError(Problem(key, expected, "none", f"valid: {', '.join(known)}"))
    wrong = [name for name in dict.fromkeys(names) if name not in known]
    if wrong:
        raise ConfigError(
            Problem(key, expected, f"{name!r}", did_you_mean(str(name), known), of_name=True)
            for name in wrong
        )


def _one(prepared: Prepared, name: str) -> Compared:
    made = None
    try:
        made = _chosen(prepared, name)
        plan = plan_any(made)
        return Compared(name=name, plan=plan, served=served(made))
    except DoesNotFit as error:
        assert made is not None
        return _refused(name, refused(made, error), served(made))
    except KvpipeError as error:
        return _refused(name, error, None)


def _refused(name: str, error: KvpipeError, ends: Served | None) -> Compared:
    return Compared(
        name=name,
        plan=None,
        served=ends,
        refused=tuple(error.lines()),
        exit_code=error.exit_code,
    )


def plan_any(prepared: Prepared) -> EnginePlan:
    """The plan of the request's engine, of whichever contract it is."""
    made = prepared.config.plugins["engine"].make(Engine)
    if isinstance(made, PlannedEngine):
        return plan_engine(made, question_of(prepared))
    return plan_blocks(prepared)


def _chosen(prepared: Prepared, name: str) -> Prepared:
    """The same request under that engine: with the section as the user set it, where it is the
    run's own; and of a length that is the same for all."""
    raw: dict[str, Any] = dict(prepared.raw)
    if raw["engine"].get("name") != name:
        raw["engine"] = shipped_option("engine", name)
    length = prepared.resolved.limits.max_model_len
    raw["scheduler"] = {**raw["scheduler"], "max_model_len": length}
    return prepare(raw)
