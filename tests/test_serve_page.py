"""`kvpipe serve-page`: fresh plans for its own page, and nothing for anybody else."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gguf_files import gguf
from page_requests import told

from kvpipe.commands.serve_page import listening, live_of, told_of_log
from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.page.shelf import LARGEST_BYTES, MOST_DROPPED, MOST_FILES, Shelf

pytest.importorskip("starlette", reason="starlette is not installed: pip install -e '.[page]'")

from kvpipe.page.server import LARGEST_JSON, Doors, Rate, make_app  # noqa: E402

HOST = "127.0.0.1:8765"
LLAMA = {"model": "llama", "device": "h100_80gb"}
SAMPLE = Path(__file__).parents[1] / "kvpipe" / "logs" / "sample.log"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, kw_only=True)
class Answered:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls the app as a server does: by ASGI, without a socket."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def ask(
        self, path: str, body: Any = None, *, method: str = "POST", **headers: str | None
    ) -> Answered:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {"host": HOST, "x-kvpipe": "1"}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        # In a thread of its own: a browser's driver may have a loop in this one.
        with ThreadPoolExecutor(1) as apart:
            return apart.submit(asyncio.run, self._ask(path, content, method, said)).result()

    async def _ask(
        self, path: str, content: bytes, method: str, headers: Mapping[str, str | None]
    ) -> Answered:
        path, _, query = path.partition("?")
        parts = [content[i : i + 2**16] for i in range(0, len(content), 2**16)] or [b""]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not parts:  # whoever asked hung up
                return {"type": "http.disconnect"}
            part = parts.pop(0)
            more = bool(parts) or "cut" in headers
            return {"type": "http.request", "body": part, "more_body": more}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        pairs = [(k.encode(), v.encode()) for k, v in headers.items() if v is not None]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": pairs,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8765),
        }
        await self.app(scope, receive, send)
        answer = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Answered(code=sent[0]["status"], headers=answer, body=body)


def client_of(shelf: Shelf, doors: Doors | None = None) -> Client:
    prepared = prepared_request(["command=serve_page", "device=h100_80gb"]).prepared
    live = live_of(prepared, shelf)
    doors = doors or Doors(hosts=frozenset({HOST}))
    return Client(make_app(live, doors, lambda path: told_of_log(prepared, path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A chosen folder with a model and a log, and secrets beside it that links lead to."""
    inside, secret = tmp_path / "inside", tmp_path / "secret"
    for path in (inside / "good", inside / "linked", inside / "beside", secret):
        path.mkdir(parents=True)
    for path in (inside / "good", inside / "beside", secret):
        (path / "config.json").write_text(json.dumps(CONFIG))
    (inside / "start.log").write_bytes(SAMPLE.read_bytes())
    (secret / "start.log").write_text("a secret")
    (inside / "linked" / "config.json").symlink_to(secret / "config.json")
    (inside / "beside" / "model.safetensors").symlink_to(secret / "config.json")
    (inside / "secret.log").symlink_to(secret / "start.log")
    os.mkfifo(inside / "pipe.log")
    return inside


@pytest.fixture
def client() -> Iterator[Client]:
    shelf = Shelf(folder=None)
    yield client_of(shelf)
    shelf.close()


def test_a_change_is_planned_anew_and_is_what_its_command_answers(client: Client) -> None:
    subject = client.ask("/subject", LLAMA).value
    for length, cards in ((8192, 1), (8193, 2), (131072, 4)):
        changes = {"scheduler.max_model_len": length, "parallel.tensor_parallel_size": cards}
        got = client.ask("/plan", {**LLAMA, "changes": changes}).value
        words = [*subject["words"], *(f"{k}={v}" for k, v in changes.items()), "want.requests=3"]
        expected = told(" ".join(["kvpipe", "run", *words]))
        assert (got["says"], got["card_bytes"]) == (expected.says, expected.card_bytes)
        names = list(expected.causes)
        shares = {names[n]: fixed + 3 * each for n, fixed, each in got["shares"]}
        assert shares == {cause: n for cause, n in expected.causes.items() if n or cause in shares}


def test_the_page_is_served_with_a_policy(client: Client) -> None:
    answer = client.ask("/", method="GET")
    html = answer.body.decode()
    assert answer.code == 200 and "connect-src 'self'" in html and 'id="pick-file"' in html
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, 421),  # a name that was rebound to this address
        ({"host": "evil.example:8765"}, 421),
        ({"host": "127.0.0.1"}, 421),  # another port
        ({"host": None}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"https://{HOST}"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"x_kvpipe": None}, 403),  # a form of another page
    ],
)
def test_whoever_is_not_the_page_is_refused(client: Client, headers, code: int) -> None:
    for path in ("/plan", "/subject", "/drop?name=config.json", "/log"):
        assert client.ask(path, {**LLAMA, "changes": {}}, **headers).code == code
    if "x_kvpipe" not in headers:
        assert client.ask("/", method="GET", **headers).code == code
    assert client.ask("/plan", {**LLAMA, "changes": {}}, origin=f"http://{HOST}").code == 200


def test_a_dropped_config_is_planned_and_a_dropped_log_is_read(client: Client) -> None:
    kept = client.ask("/drop?name=config.json", json.dumps(CONFIG).encode()).value
    assert kept["kind"] == "model"
    asked = {"model": kept["number"], "device": "l4"}
    assert client.ask("/subject", asked).value["axes"][-1]["stops"][-1] == 4096
    planned = client.ask("/plan", {**asked, "changes": {"scheduler.max_model_len": 4096}}).value
    assert planned["status"] == "fits" and planned["users"] > 0
    kept = client.ask("/drop?name=vllm.log", SAMPLE.read_bytes()).value
    assert kept["kind"] == "log" and any("left for the cache" in line for line in kept["told"])


WRONG = {
    "junk.log": b"hello\n",
    "nothing.txt": b"",
    "figures.log": b"gpu_worker.py: Available KV cache memory: 99999999999999999999999 GiB\n",
    "cut.gguf": b"GGUF",
    "list.json": b"[]",
    "half.json": b"{",
    "other.json": json.dumps({**CONFIG, "model_type": "unheard_of"}).encode(),
}


@pytest.mark.parametrize("name", [*WRONG, "good.log", "good.json"])
def test_what_is_told_of_a_dropped_file_names_it_and_no_place_of_ours(client, name: str) -> None:
    good = SAMPLE.read_bytes() if name == "good.log" else json.dumps(CONFIG).encode()
    answers = [client.ask(f"/drop?name={name}", WRONG.get(name, good))]
    choice = {"model": 0, "device": "l4"}
    answers += [client.ask(path, {**choice, "changes": {}}) for path in ("/subject", "/plan")]
    answers += [client.ask("/log", {"file": 0})]
    told = b"".join(answer.body for answer in answers).decode()
    assert "kvpipe-page-" not in told and "/start.log" not in told and name in told


def test_the_header_of_a_gguf_file_is_enough(client: Client) -> None:
    kept = client.ask("/drop?name=any.bin", gguf()).value
    assert kept["kind"] == "model"
    answer = client.ask("/subject", {"model": kept["number"], "device": "l4"})
    assert answer.code == 200, answer.body


def test_no_file_outside_the_chosen_folder_is_read(folder: Path) -> None:
    shelf = Shelf(folder=folder)
    names = {file.name for file in shelf.files}
    assert names == {"good/config.json", "start.log"}
    client = client_of(shelf)
    for model in ("../secret/config.json", str(folder / "good"), "hf", "/etc/passwd", "..", 99, -1):
        for path in ("/subject", "/plan"):
            answer = client.ask(path, {"model": model, "device": "l4", "changes": {}})
            assert answer.code == 400, model
            wanted = "one that was chosen or dropped" if isinstance(model, int) else "a listed name"
            assert f"expected {wanted}" in answer.value["problems"][0], model
    number = [file.name for file in shelf.files].index("good/config.json")
    asked = {"model": number, "device": "l4", "changes": {"scheduler.max_model_len": 1024}}
    assert client.ask("/plan", asked).code == 200
    (folder / "good" / "config.json").unlink()
    (folder / "good" / "config.json").symlink_to(folder.parent / "secret" / "config.json")
    assert client.ask("/plan", asked).code == 400, "a link that took the place of a file"
    for device in ("../model/llama", "/etc/passwd", ""):
        answer = client.ask("/subject", {"model": "llama", "device": device})
        assert answer.code == 400 and "expected a listed name" in answer.value["problems"][0]
    odd = [("scheduler.max_model_len", value) for value in (None, True, 1.5, [8192], {"a": 1})]
    for key, value in (
        *(("model.path", "/etc/passwd"), ("profiling.path", "x"), ("device", "l4")),
        *odd,
    ):
        answer = client.ask("/plan", {**LLAMA, "changes": {key: value}})
        assert answer.code == 400 and "the page's four settings" in answer.value["problems"][0]
    shelf.close()


def test_a_name_of_a_dropped_file_decides_no_path(client: Client, tmp_path: Path) -> None:
    for name in ("../../evil.json", "/etc/evil.json", "a%00.json", "%2e%2e%2fevil.json"):
        kept = client.ask(f"/drop?name={name}", json.dumps(CONFIG).encode()).value
        assert "/" not in kept["name"]
    assert not list(tmp_path.parent.glob("evil.json")) and not Path("/etc/evil.json").exists()


def test_no_upload_is_executed(client: Client) -> None:
    evil = {**CONFIG, "auto_map": {"AutoConfig": "evil.Evil"}, "trust_remote_code": True}
    before = set(sys.modules)
    kept = client.ask("/drop?name=config.json", json.dumps(evil).encode()).value
    client.ask("/subject", {"model": kept["number"], "device": "l4"})
    new = set(sys.modules) - before
    assert not [
        name for name in new if "evil" in name or name.startswith(("transformers", "torch"))
    ]


def test_what_is_too_large_or_no_json_is_refused(client: Client) -> None:
    whole = json.dumps({**LLAMA, "changes": {}}).encode()
    assert client.ask("/plan", whole + b" " * LARGEST_JSON).code == 400
    for body in (b"", b"[]", b"\xff", b"[" * 10_000, b'{"model": 1.5, "device": "l4"}'):
        assert client.ask("/plan", body).code == 400, body[:20]
    large = json.dumps({"a": "x" * LARGEST_BYTES["config"]}).encode()
    answer = client.ask("/drop?name=config.json", large)
    assert answer.code == 400 and "at most" in answer.value["problems"][0]
    for content in (b"GGUF", b"GGUF" + b"\xff" * 100, b"{", b"\x00"):
        kept = client.ask("/drop?name=config.json", content).value
        assert client.ask("/subject", {"model": kept["number"], "device": "l4"}).code == 400


def test_a_length_that_is_too_large_is_refused_before_the_body_comes(client: Client) -> None:
    said = str(LARGEST_JSON + 1)
    answer = client.ask("/plan", {}, content_length=said)
    assert answer.code == 400 and said in answer.value["problems"][0]
    said = str(max(LARGEST_BYTES.values()) + 1)
    answer = client.ask("/drop?name=any.gguf", {}, content_length=said)
    assert answer.code == 400 and said in answer.value["problems"][0]


def test_whoever_hangs_up_is_no_failure_of_the_server(client: Client) -> None:
    """As when a tab is closed during an upload: more of the body was to come."""
    answer = client.ask("/plan", b'{"model": ', cut="yes")
    assert answer.code == 400 and "ended" in answer.value["problems"][0]


def test_more_than_the_rate_is_refused() -> None:
    now = [0.0]
    rate = Rate(per_second=2, burst=3, clock=lambda: now[0])
    assert [rate.allows() for _ in range(5)] == [True, True, True, False, False]
    now[0] = 0.5
    assert [rate.allows() for _ in range(2)] == [True, False]
    now[0] = 100.0  # however long nobody asked
    assert [rate.allows() for _ in range(5)] == [True, True, True, False, False]
    shelf = Shelf(folder=None)
    few = Rate(per_second=0, burst=2)
    client = client_of(shelf, Doors(hosts=frozenset({HOST}), asks=few))
    codes = [client.ask("/plan", {**LLAMA, "changes": {}}).code for _ in range(3)]
    assert codes == [200, 200, 429]
    few = Rate(per_second=0, burst=2)
    client = client_of(shelf, Doors(hosts=frozenset({HOST}), drops=few))
    assert [client.ask("/drop?name=x.json", {}).code for _ in range(3)] == [200, 200, 429]
    assert client.ask("/plan", {**LLAMA, "changes": {}}).code == 200
    shelf.close()


def test_no_more_files_are_kept_than_the_limits(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 1):
        (tmp_path / f"{number}.log").touch()
    shelf = Shelf(folder=tmp_path)
    assert len(shelf.files) == MOST_FILES
    for _ in range(MOST_DROPPED):
        shelf.drop("config.json", b"{}")
    with pytest.raises(ConfigError, match=f"at most {MOST_DROPPED} dropped files"):
        shelf.drop("config.json", b"{}")
    assert len(shelf.files) == MOST_FILES + MOST_DROPPED
    shelf.close()


def test_what_was_dropped_is_gone_when_the_server_ends(client: Client) -> None:
    shelf = Shelf(folder=None)
    number = shelf.drop("config.json", b"{}")
    path = shelf.file(number).path
    assert path.is_file()
    shelf.close()
    assert not path.exists() and not path.parent.parent.exists()


def test_wrong_starts_are_one_line(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve-page", "device=l4", f"command.port={port}"]) == 2
    assert "command.port: expected a free port" in capsys.readouterr().err
    assert run(["serve-page", "device=l4", "command.folder=nowhere"]) == 2
    assert "command.folder: expected a folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["serve-page", "device=l4"]) == 2
    assert "pip install 'kvpipe[page]'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="plain"):
        asked = ["model=llama", "device=l4", "cache.cache_dtype='fp8'"]
        live_of(prepared_request(asked).prepared, Shelf(folder=None))


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """Its head and its body are two writes: without the option the second one waits 40 ms."""
    with listening(0) as listener, socket.create_connection(listener.getsockname()) as caller:
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert caller.getpeername()[0] == "127.0.0.1"
