"""The tool that serves with real engines, without one: its servers are scripts here."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.live import environments, serving  # noqa: E402
from tools.live.model_files import with_tokenizer  # noqa: E402
from tools.live.models import MODELS  # noqa: E402
from tools.live.served_page import served_lines  # noqa: E402
from tools.live.server import serving as served_by  # noqa: E402

# Answers /health, and has a child that outlives a server that is killed.
SERVER = """\
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"fine": 1}')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Answer).serve_forever()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> environments.Environment:
    monkeypatch.setenv("KVPIPE_LIVE_DIR", str(tmp_path / "live"))
    made = environments.Environment(name="here", requirements=(), module="json")
    made.python.parent.mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    return made


def command(here: environments.Environment, code: str) -> None:
    """The environment's `vllm`."""
    path = here.python.with_name("vllm")
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_is_asked_while_it_runs_and_leaves_no_process(
    here: environments.Environment, tmp_path: Path
) -> None:
    command(here, SERVER)
    with served_by(here, ["folder"], tmp_path, {}) as server:
        assert server.asked("/health") == {"fine": 1}
        child = int(server.log.read_text().split()[1])
        assert is_running(child) and server.cpu_seconds() >= 0
    for _ in range(100):
        if not is_running(child):
            break
        time.sleep(0.05)
    assert not is_running(child) and not is_running(server.pid)


def test_a_server_that_ends_as_it_starts_is_said_in_its_own_words(
    here: environments.Environment, tmp_path: Path
) -> None:
    command(here, "import sys; sys.exit('RuntimeError: no gloo here')")
    with pytest.raises(RuntimeError, match="no gloo here"), served_by(here, [], tmp_path, {}):
        pass


def test_a_server_that_is_killed_as_it_starts_is_no_answer(
    here: environments.Environment, tmp_path: Path
) -> None:
    command(here, "import os; print('so far', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(RuntimeError, match="so far"), served_by(here, [], tmp_path, {}):
        pass


def test_unknown_ways_are_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert serving.main(["vllm-0.32.0", "by post"]) == 2
    assert "one process, tensor parallel 2, got by post" in capsys.readouterr().out


def test_without_the_environment_its_command_is_said(
    here: environments.Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serving.main(["vllm-0.32.0"]) == 2
    assert "python tools/live/setup.py vllm-0.32.0" in capsys.readouterr().out


def test_each_worker_of_a_way_has_its_share_of_the_memory(tmp_path: Path) -> None:
    folder = MODELS["gemma3-4-3"].write(tmp_path)
    one, two = (serving.words_of(way, folder, {}) for way in serving.WAYS)
    at = one.index("--kv-cache-memory-bytes") + 1
    assert int(one[at]) == 2 * int(two[at]) and "--tensor-parallel-size" in two
    assert json.loads(one[-1]) == {}


def test_every_token_of_a_model_is_a_word(tmp_path: Path) -> None:
    folder = with_tokenizer(MODELS["llama"].write(tmp_path))
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == list(range(512))


def found(equal: int = 40) -> dict[str, object]:
    bench = dict.fromkeys(
        ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "engine_cpu_seconds"), 1.0
    )
    one = {"printed": 100, "line": "2 groups -> 7 groups", "processes": ["EngineCore"], "hits": 3}
    one |= {"preemptions": 2, "bench": {**bench, "completed": 80}}
    ours = {**one, "printed": 123}
    return {"kind": "a model", "own": one, "ours": ours, "equal": equal, "asked": 40}


def test_the_page_says_what_was_served_and_what_does_not_start() -> None:
    ways = {"one process": found(39), "tensor parallel 2": {"error": "a\nRuntimeError: no gloo"}}
    text = "\n".join(served_lines("vllm-0.32.0", ways))
    assert "| one process | a model | EngineCore | 100 -> 123 (+23.0%) | 2 -> 2 |" in text
    assert "39 of 40" in text and "tensor parallel 2: does not start here: RuntimeError" in text
    assert "`kvpipe: 2 groups -> 7 groups`" in text and "| tokens a second | 1.0 | 1.0 |" in text
