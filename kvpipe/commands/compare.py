"""`kvpipe compare model=llama device=h100_80gb engines=[vllm,sglang]`: engines side by side.

Files: compare.json (every figure) and cards.svg (the cards side by side).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kvpipe.answers.engine_comparison import Compared, check_names, compare_engines
from kvpipe.answers.lacking import fewer_users, not_one
from kvpipe.answers.served import VERDICTS
from kvpipe.answers.speed import speed_of
from kvpipe.answers.trials import asked_of_a_copy
from kvpipe.answers.uncounted import status_beside_weights, uncounted_words
from kvpipe.cache.load import ENDS
from kvpipe.commands.base import Command, CommandOptions
from kvpipe.errors import Problem, problems_of
from kvpipe.pipeline import Prepared, profile_ranks
from kvpipe.report.base import Answer
from kvpipe.report.cards import cards
from kvpipe.report.comparison import Fastest, document, first_section, sections
from kvpipe.report.identity import model_words, where
from kvpipe.report.last_line import last_line
from kvpipe.report.sweep_table import Column, figure
from kvpipe.request.want import requests_asked
from kvpipe.text.lines import lay_out

_VERBS = dict(zip(VERDICTS, ("can", "may", "cannot"), strict=True))
_OURS = "kvpipe"  # whose rules a run has that names no engine
SHOWN = ("vllm", "sglang", "llama_cpp", "transformers", "tensorrt_llm")


class Compare(Command):
    class Options(CommandOptions):
        engines: list[str]

    summary = "Engines side by side: users, tokens, what is lost, what each prints, its flags"
    wants = ("requests",)
    example = "kvpipe compare model=llama device=h100_80gb scheduler.max_model_len=8192"
    files = ("compare.json", "cards.svg")
    columns = tuple(Column(title=name, align="r", text=figure(f"users_{name}")) for name in SHOWN)
    legend = (
        f"users of max_model_len on all copies, steady ({ENDS['steady']}), by engine; - where it "
        "refuses",
    )
    fields = tuple(f"users_{name}" for name in SHOWN)

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        named = (raw.get("command") or {}).get("engines")
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            return ()  # told by the schema
        return problems_of(lambda: check_names(named))

    @classmethod
    def pictures_of_sweep(cls, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        from kvpipe.report.jobs_picture import jobs_picture

        start = "users_"
        named = dict.fromkeys((*cls.fields, *(key for row in rows for key in row)))
        told = [name for name in named if name.startswith(start)]
        asked = [name for name in told if any(row.get(name) is not None for row in rows)]
        return {"engines.svg": jobs_picture(rows, [name.removeprefix(start) for name in asked])}

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        """Exit 1 where no engine runs the users that were asked for; what one refuses stands in the
        table."""
        found = compare_engines(prepared, self._names(prepared))
        resolved = prepared.resolved
        length = resolved.limits.max_model_len
        status, uncounted = _beside_weights(prepared)
        heading = f"{model_words(resolved)} on {where(resolved)}{uncounted}"
        fastest = _fastest(prepared, found)
        users = {each.name: each.plan.users.steady for each in found if each.plan is not None}
        asked, copies = asked_of_a_copy(prepared), resolved.parallel.dp
        serves = any(each.serves(asked) for each in found)
        words = {each.word(asked) for each in found}
        if status == "fits":
            word = next((word for word in VERDICTS if word in words), "does not fit")
            status = word.replace(" ", "_")
        status = status if serves or status == "may_not_fit" else "does_not_fit"
        return Answer(
            status=status,
            verdict=last_line(status.replace("_", " "), _by_verdict(found, asked), serves=serves),
            exit_code=0 if serves else 1,
            lines=partial(lay_out, sections(found, heading, length, asked, fastest)),
            screen=partial(lay_out, [first_section(found, heading, length, asked)]),
            document=document(found, prepared, asked, fastest),
            pictures={"cards.svg": cards(found, f"{heading}, {length:,} tokens")},
            fields={f"users_{name}": copies * count for name, count in users.items()},
            complaints=() if serves else (_none(prepared, found),),
        )

    def _names(self, prepared: Prepared) -> list[str]:
        """Those that were asked for; where nobody said which, the run's own engine is one."""
        own, names = prepared.config.plugins["engine"].name, self.options.engines
        said = any(key.startswith("command.engines") for key in prepared.said)
        return names if said or own == _OURS else [own, *names]


def _by_verdict(found: Sequence[Compared], asked: int) -> str:
    """`vllm, sglang fit; llama_cpp may not fit`."""
    named = {word: [e.name for e in found if e.word(asked) == word] for word in VERDICTS}
    said = [f"{', '.join(names)} {_VERBS[word]}" for word, names in named.items() if names]
    return "; ".join(said) or "no engine plans it"


def _none(prepared: Prepared, found: Sequence[Compared]) -> str:
    resolved, asked = prepared.resolved, requests_asked(prepared.config.want)
    length, copies = resolved.limits.max_model_len, resolved.parallel.dp
    may = any(each.word(asked_of_a_copy(prepared)) == "may not fit" for each in found)
    best = " by the best value of the memory, an estimate" if may else ""
    if asked == 1:
        return not_one(length, f"runs under any engine here{best}")
    most = max((each.served.best.users for each in found if each.served), default=0)
    return fewer_users(asked, copies * most, length, f" at most, under any engine here{best}")


def _beside_weights(prepared: Prepared) -> tuple[str, str]:
    """What an engine that serves is, and what nobody counted, as `kvpipe run` says it."""
    if prepared.resolved.device.type != "cpu":
        return "fits", ""
    profile = profile_ranks(prepared)
    return status_beside_weights(prepared.resolved, profile), uncounted_words(
        prepared.resolved, profile
    )


def _fastest(prepared: Prepared, found: Sequence[Compared]) -> Fastest:
    """Each engine's users at the asked length, on the same bound."""
    speed, parallel = speed_of(prepared), prepared.resolved.parallel
    cards, limits = parallel.tp * parallel.pp, prepared.resolved.limits
    bound = speed.bound
    if bound is None:
        return Fastest(token_s={}, first_token_s=None, cards=cards, why=speed.why)
    return Fastest(
        token_s={
            each.name: bound.token_seconds(each.plan.users.steady, limits.max_model_len)
            for each in found
            if each.plan is not None and each.plan.users.steady
        },
        first_token_s=bound.first_token_seconds(
            limits.max_model_len, limits.max_num_batched_tokens
        ),
        cards=cards,
        why=speed.why,
    )


PLUGIN = Compare
