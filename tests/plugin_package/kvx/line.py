"""report=kvx_line: the verdict, and nothing else."""

from pydantic import BaseModel, ConfigDict

from kvpipe.report.base import Report


class LineReport(Report):
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        name: str

    def __init__(self, options):
        self.options = options

    def render(self, answer, job, stream, folder=None):
        stream.write(f"{answer.document['plan']['num_blocks']} blocks, {answer.status}\n")
