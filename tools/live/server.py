"""A server of an engine's environment, as its users start it: `vllm serve FOLDER ...`.

Nothing is turned off for the test: the API server, the engine's core and the workers are processes
of their own, and the plug-in is found by its entry point in each.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.live.environments import Environment

Json = dict[str, Any]
START_S = 900.0  # on a machine that many share
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Server:
    """pid: of the API server, which leads a session of its own. log: what all of it printed."""

    pid: int
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str, body: Json | None = None) -> Any:
        """The answer of the HTTP API: JSON, or text as it is."""
        data = None if body is None else json.dumps(body).encode()
        words = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=words)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def cpu_seconds(self) -> float:
        """Spent so far by the engine: its core and its workers, without the API server."""
        own = {pid for pid in _session(self.pid) if pid != self.pid}
        return sum(_cpu_s(pid) for pid in own)


@contextmanager
def serving(
    environment: Environment,
    words: Sequence[str],
    scratch: Path,
    variables: Mapping[str, str],
) -> Iterator[Server]:
    """`vllm serve WORDS` until the block is left; RuntimeError, with its last lines, where it does
    not come up. variables: beside the environment's own."""
    port, log = _free_port(), scratch / "server.log"
    command = [str(environment.python.with_name("vllm")), "serve", *words, "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            env={**environment.environ(), **variables},
            cwd=scratch,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(pid=process.pid, port=port, log=log)
    try:
        _wait(server, process)
        yield server
    finally:
        _stop(process)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            server.asked("/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(server.log.read_text(errors="replace")[-3000:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole session: workers of a server that was killed would stay."""
    for number, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _session(leader: int) -> list[int]:
    """Processes of the leader's session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name))[3:4] == [str(leader)]:
            found.append(int(entry.name))
    return found


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) * _TICK_S if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Of /proc/PID/stat, what follows the name: state, parent, group, session, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []  # it has ended
    return text.rpartition(")")[2].split()
