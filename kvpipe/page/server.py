"""The page over HTTP, for this machine alone: an ASGI app (Starlette; the extra `page`).

Whoever is not this page on this machine is refused: the Host header must be this address (a name
that was rebound to it is another host), requests of other sites carry an Origin or Sec-Fetch-Site
that says so, and what changes anything must be JSON or carry our header, which no form can send.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.page.html import page_html
from kvpipe.page.live import Choice, Live
from kvpipe.page.shelf import LARGEST_BYTES, ShelfFile

LARGEST_JSON = 64 * 1024
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(kw_only=True)
class Rate:
    """At most `burst` at once and `per_second` in the long run."""

    per_second: float
    burst: float
    clock: Callable[[], float] = monotonic
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._at = self.burst, self.clock()

    def allows(self) -> bool:
        now = self.clock()
        self._left = min(self.burst, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(kw_only=True)
class Doors:
    """Who comes in. hosts: the values of the Host header that are this server."""

    hosts: frozenset[str]
    asks: Rate = field(default_factory=lambda: Rate(per_second=100, burst=200))
    drops: Rate = field(default_factory=lambda: Rate(per_second=1, burst=20))

    def refuse(self, request: Request) -> Response | None:
        """The answer to whoever stays outside."""
        headers = request.headers
        if headers.get("host") not in self.hosts:
            return _problem(421, "this server answers for 127.0.0.1 alone")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return _problem(403, "asked by another site")
        if site not in ("same-origin", "none"):
            return _problem(403, "asked by another site")
        if request.method == "POST" and headers.get("x-kvpipe") != "1":
            return _problem(403, "not asked by the page")
        if not self.asks.allows():
            return _problem(429, "too many requests; wait a second")
        return None


def make_app(live: Live, doors: Doors, read_log: Callable[[str], Iterable[str]]) -> Starlette:
    """read_log: the lines that tell of a log at a path."""

    def answer(value: dict[str, Any]) -> Response:
        return JSONResponse(_each_text(value, live.shelf.named))

    async def page(request: Request) -> Response:
        return HTMLResponse(page_html(live.document(), served=True))

    async def subject(request: Request) -> Response:
        asked = await _json(request)
        return answer(await run_in_threadpool(live.subject, _choice(asked)))

    async def plan(request: Request) -> Response:
        asked = await _json(request)
        changes = asked.get("changes")
        if not isinstance(changes, dict):
            raise ConfigError(Problem("changes", "settings", "none"))
        return answer(await run_in_threadpool(live.plan, _choice(asked), changes))

    async def drop(request: Request) -> Response:
        if not doors.drops.allows():
            return _problem(429, "too many files; wait a minute")
        content = await _body(request, max(LARGEST_BYTES.values()))
        number = live.shelf.drop(request.query_params.get("name", ""), content)
        file = live.shelf.file(number)
        told = await run_in_threadpool(_told, file, read_log)
        return answer({**live.files()[number], "told": told})

    async def log(request: Request) -> Response:
        number = (await _json(request)).get("file")
        file = live.shelf.file(number if isinstance(number, int) else -1)
        return answer({"told": await run_in_threadpool(_told, file, read_log)})

    routes = [
        Route("/", _guarded(page, doors, live.shelf.named)),
        Route("/subject", _guarded(subject, doors, live.shelf.named), methods=["POST"]),
        Route("/plan", _guarded(plan, doors, live.shelf.named), methods=["POST"]),
        Route("/drop", _guarded(drop, doors, live.shelf.named), methods=["POST"]),
        Route("/log", _guarded(log, doors, live.shelf.named), methods=["POST"]),
    ]
    return Starlette(routes=routes)


Handler = Callable[[Request], Awaitable[Response]]


def _guarded(handler: Handler, doors: Doors, named: Callable[[str], str]) -> Handler:
    async def answer(request: Request) -> Response:
        refused = doors.refuse(request)
        if refused is not None:
            return refused
        try:
            response = await handler(request)
        except KvpipeError as error:
            response = _problem(400, *map(named, error.lines()))
        except ClientDisconnect:  # who asked is gone: nobody reads this
            response = _problem(400, "the body ended before it was whole")
        response.headers.update(HEADERS)
        return response

    return answer


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The same JSON value, each text in it changed."""
    if isinstance(value, Mapping):
        return {key: _each_text(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


def _problem(code: int, *lines: str) -> Response:
    return JSONResponse({"problems": list(lines)}, status_code=code, headers=HEADERS)


async def _body(request: Request, largest: int) -> bytes:
    """ConfigError once it is longer than that: the rest is not waited for."""
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and int(said[:20]) > largest:  # it need not be sent
        raise ConfigError(Problem("body", f"at most {largest:,} bytes", said[:20]))
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > largest:
            raise ConfigError(Problem("body", f"at most {largest:,} bytes", "more"))
        parts.append(part)
    return b"".join(parts)


async def _json(request: Request) -> dict[str, Any]:
    try:
        value = json.loads(await _body(request, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise ConfigError(Problem("body", "JSON", "something else")) from error
    if not isinstance(value, dict):
        raise ConfigError(Problem("body", "a JSON object", type(value).__name__))
    return value


def _choice(asked: dict[str, Any]) -> Choice:
    model, device = asked.get("model"), asked.get("device")
    is_model = isinstance(model, str) or (isinstance(model, int) and not isinstance(model, bool))
    if not is_model or not isinstance(device, str):
        raise ConfigError(Problem("body", "a model and a device", "neither"))
    return Choice(model=model, device=device)  # type: ignore[arg-type]


def _told(file: ShelfFile, read_log: Callable[[str], Iterable[str]]) -> list[str]:
    """Nothing of a model's file."""
    return list(read_log(str(file.path))) if file.kind == "log" else []
