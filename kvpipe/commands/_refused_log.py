"""`kvpipe run profiling=log` of a log that ends in a refusal: what the engine said, and whether its
own rules say so, too. Agreeing is an answer, exit 0; a log is not wrong because its start failed.
"""

from __future__ import annotations

from functools import partial

from kvpipe.answers.log_answer import LogComparison, compare_with_log
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.logs.engine_log import EngineLog
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.document import SCHEMA, SCHEMA_VERSION, plain
from kvpipe.report.log_section import log_section
from kvpipe.stages.profiling.base import Profiling
from kvpipe.text.lines import Line, Section, lay_out


def answer_of_refusal(prepared: Prepared, error: KvpipeError, job: str | None) -> Answer | None:
    """None where there is no such log, or its figures are not reproduced: then the error stands."""
    plugin = prepared.config.plugins["profiling"].make(Profiling)
    read = getattr(plugin, "log", None)
    if read is None or not isinstance(error, DoesNotFit):
        return None
    log: EngineLog = read()
    if not log.refused:
        return None
    length = prepared.resolved.limits.max_model_len
    compared = compare_with_log(prepared, log, length)
    if not compared.agreeing:
        return None
    return Answer(
        status="does_not_fit",
        exit_code=0,
        lines=partial(lay_out, _sections(compared, error, prepared)),
        document=_document(compared, error, job),
        fields={},
    )


def _sections(compared: LogComparison, error: KvpipeError, prepared: Prepared) -> list[Section]:
    ranks = len(prepared.resolved.ranks)
    told = [Line("the engine refused to start, and by its own rules it had to", "good")]
    told += [Line(line, "warning") for line in error.lines()]
    head = Section(title=f"A start that failed: {prepared.resolved.model.name}", paragraphs=told)
    return [head, log_section(compared, ranks)]


def _document(compared: LogComparison, error: KvpipeError, job: str | None) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "status": "does_not_fit",
        "job": job,
        "errors": error.lines(),
        "log": plain(compared),
    }
