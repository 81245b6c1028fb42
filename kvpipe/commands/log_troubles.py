"""What a log itself says went wrong: a refusal, figures that contradict each other, its error."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.log_answer import LogComparison, explain
from kvpipe.commands.trouble import Trouble
from kvpipe.logs.contradictions import contradictions
from kvpipe.logs.engine_log import EngineLog
from kvpipe.text.figures import GIB


def of_the_log(log: EngineLog | None, compared: LogComparison | None) -> Iterator[Trouble]:
    if log is None:
        return
    if log.refused:
        yield Trouble(text=_refusal(log), stops=True)
    if "kvpipe_left" in log.said:
        text = log.said["kvpipe_left"].text.rpartition("kvpipe: ")[2]
        yield Trouble(text=f"kvpipe's plug-in changed nothing: {text}")
    for text in contradictions(log):
        yield Trouble(text=f"the log contradicts itself: {text}")
    if (
        compared is not None
        and compared.by_rules
        and not compared.agreeing
        and any(n.terms for n in compared.nearest)
    ):
        nearest = compared.nearest[-1]
        figures = "; ".join(explain(nearest, compared.printed, len(log.ranks)))
        tried = f" ({compared.searched:,} readings tried)" if compared.searched else ""
        yield Trouble(text=f"unknown: these figures do not add up{tried}: {figures}")
    if log.error and not log.refused:
        yield Trouble(text=f"it ended with: {log.error}", stops=True)


def _refusal(log: EngineLog) -> str:
    parts = ["the engine refused to start: its cache is too small for --max-model-len"]
    length = log.counts.get("max_model_len")
    if length:
        parts.append(f" {length:,}")
    if log.needed is not None:
        parts.append(f"; {log.needed.num_bytes / GIB:.2f} GiB needed")
    if (have := log.least("available_kv")) is not None:
        parts.append(f", {have.num_bytes / GIB:.2f} GiB there")
    if longest := log.counts.get("estimated_max_len"):
        parts.append(f", {longest:,} tokens estimated to fit")
    return "".join(parts)
