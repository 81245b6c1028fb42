"""`kvpipe serve-page --on h100`: the page on this machine, any model, each change planned anew.

File: served.json (where, until when).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from kvpipe.commands.base import Command, CommandOptions
from kvpipe.errors import ConfigError, Problem
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.request.want import requests_asked
from kvpipe.text.lines import Section, lay_out

if TYPE_CHECKING:  # no other command needs them
    from kvpipe.page.live import Live
    from kvpipe.page.shelf import Shelf

HOST = "127.0.0.1"
USUAL_DEVICE = "h100_80gb"


class ServePage(Command):
    class Options(CommandOptions):
        """port: of 127.0.0.1. folder: whose model files and logs the page offers (null: none)."""

        port: Annotated[int, Field(ge=1, le=65535)]
        folder: str | None

    summary = "The page on 127.0.0.1 with any model: choose or drop a file, each change planned"
    wants = ("requests",)
    example = "kvpipe serve-page --on h100"
    files = ("served.json",)
    stays: ClassVar[bool] = True

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        folder = raw["command"].get("folder")
        if not isinstance(folder, str) or isdir(folder):
            return ()
        from kvpipe.page.shelf import no_folder

        return [no_folder(folder)]

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        """Returns once it is stopped. ConfigError where the extra is missing."""
        if job is not None:
            raise ConfigError(Problem("command", "one page at a time", "a sweep"))
        from kvpipe.page.shelf import Shelf

        shelf = Shelf(folder=None if self.options.folder is None else Path(self.options.folder))
        try:
            live = live_of(prepared, shelf)
            url = f"http://{HOST}:{self.options.port}/"
            _serve(live, self.options.port, url, prepared)
        finally:
            shelf.close()
        return Answer(
            status="fits",
            exit_code=0,
            lines=partial(lay_out, [Section(title=f"serve-page: {url} is closed")]),
            document=served_document(url),
        )


def served_document(url: str) -> dict[str, Any]:
    return {"schema": "kvpipe.served", "schema_version": 1, "url": url}


def live_of(prepared: Prepared, shelf: Shelf) -> Live:
    """ConfigError where the command line says more than a page can change."""
    from kvpipe.page.live import Choice, Live, presets

    said = {word.partition("=")[0]: word.partition("=")[2] for word in prepared.words}
    device = said.get("device", USUAL_DEVICE)
    model = said.get("model", "llama")
    ours = ("command", "report", "want.", "hydra.")
    words = [word for word in prepared.words if not word.startswith(ours)]
    known = presets()
    live = Live(
        words=words,
        shelf=shelf,
        start=Choice(model=model if model in known else known[0], device=device),
        users=requests_asked(prepared.config.want),
    )
    live.subject(live.start)
    return live


def _serve(live: Live, port: int, url: str, prepared: Prepared) -> None:
    try:
        import uvicorn

        from kvpipe.page.server import Doors, make_app
    except ImportError as error:
        knob = "pip install 'kvpipe[page]'"
        wanted = "starlette and uvicorn for serve-page"
        raise ConfigError(Problem("command", wanted, "none", knob)) from error
    doors = Doors(hosts=frozenset({f"{HOST}:{port}", f"localhost:{port}"}))
    app = make_app(live, doors, partial(told_of_log, prepared))
    config = uvicorn.Config(
        app, host=HOST, port=port, log_level="warning", access_log=False, server_header=False
    )
    with listening(port) as listener:
        print(f"kvpipe: {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def listening(port: int) -> socket.socket:
    """A socket of this machine alone; ConfigError where somebody else has the port."""
    try:
        listener = socket.create_server((HOST, port))
        # asyncio sets it on sockets that it made itself; without it an answer, whose head and body
        # are two writes, waits 40 ms for the browser's acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        got = f"{port} ({error.strerror})"
        knob = "set command.port=8766"
        raise ConfigError(Problem("command.port", f"a free port of {HOST}", got, knob)) from error


def told_of_log(prepared: Prepared, path: str) -> Iterator[str]:
    """What `kvpipe doctor` says of it."""
    from kvpipe.commands.doctor import Doctor

    answer = Doctor(Doctor.Options(name="doctor", path=path)).run(prepared, None)
    yield from (line.text for line in answer.lines(100))


PLUGIN = ServePage
