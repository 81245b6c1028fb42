"""`kvpipe kvx_layers`: every layer that keeps a cache, with the bytes of one of its pages."""

from pydantic import Field

from kvpipe.commands.base import Command, CommandOptions
from kvpipe.report.base import Answer
from kvpipe.text.lines import Line


class Layers(Command):
    summary = "Every layer that keeps a cache, with the bytes of one of its pages"
    example = "kvpipe kvx_layers model=tinyllama device=h100_80gb command.first=2"
    files = ("layers.json",)

    class Options(CommandOptions):
        first: int = Field(ge=1)

    def run(self, prepared, job):
        layers = prepared.resolved.ranks[0].layers[: self.options.first]
        pages = {layer.name: layer.spec.page_size_bytes for layer in layers}
        return Answer(
            status="fits",
            exit_code=0,
            lines=lambda width: [Line(f"{name} {size}") for name, size in pages.items()],
            document={"pages": pages},
            fields={"layers": len(pages)},
        )
