"""What a running engine printed, given to `kvpipe doctor` as it is: no setting beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kvpipe.commands.base import Command  # noqa: E402
from kvpipe.engines.pasted import read_pasted  # noqa: E402
from kvpipe.front.prepared import prepared_request  # noqa: E402
from kvpipe.front.words import words_to_overrides  # noqa: E402
from kvpipe.logs.figures import Figure  # noqa: E402
from kvpipe.logs.reading import read_file  # noqa: E402
from tools.live.logs import explained  # noqa: E402
from tools.live.models import MODELS  # noqa: E402

pytestmark = pytest.mark.full


RELEASE, LENGTH = "0.32.0", 1024


def printed(folder: Path, name: str, capacity: str, warned: str = "", drafts: str = "None") -> Path:
    """A log with the lines of a running vLLM on a CPU. 23.54 GiB are an A30's, too: another block,
    other blocks. The model is written beside it."""
    model = MODELS[name].write(folder)
    lines = (
        f"[core.py:133] Initializing a V1 LLM engine (v{RELEASE}) with config: model='{model}', "
        f"speculative_config={drafts}, dtype=torch.bfloat16, max_seq_len={LENGTH}, "
        "device_config=cpu, enable_prefix_caching=True",
        "[cpu_worker.py:260] Explicitly set (0.06/23.54) GiB for KV cache on node 0.",
        f"[kv_cache_utils.py:1816] {warned}",
        f"[kv_cache_utils.py:2327] CPU KV cache size: {capacity}",
    )
    prefix = "(MainProcess pid=25139) INFO 11-30 08:55:47 "
    path = folder / "engine.log"
    path.write_text("".join(f"{prefix}{line}\n" for line in lines))
    return path


def of(tokens: str, concurrency: str) -> str:
    return f"{tokens} tokens, Maximum concurrency for {LENGTH:,} tokens per request: {concurrency}x"


@pytest.mark.parametrize(
    ("warned", "tokens", "concurrency"),
    [
        ("", "14,979", "14.63"),
        ("Overriding num_gpu_blocks=512 with num_gpu_blocks_override=40", "1,170", "1.14"),
        ("Hybrid KV cache manager is disabled for this hybrid model", "18,688", "18.25"),
    ],
)
def test_a_server_on_a_cpu_is_explained_by_what_it_printed_alone(
    tmp_path: Path, warned: str, tokens: str, concurrency: str
) -> None:
    path = printed(tmp_path, "gemma3-10-4", of(tokens, concurrency), warned)
    assert explained(path, "gemma3-10-4 on cpu") == ""


# Of a server on a CPU, word for word: an example in a warning, a hint, a cache printed as nothing.
SERVED = """\
(APIServer pid=1) INFO 11-30 21:17:45 [api_utils.py:286] non-default args: {{'model_tag': \
'{model}', 'port': 50279, 'model': '{model}', 'dtype': 'float32', 'max_model_len': 1024, \
'kv_cache_memory_bytes': 8808038, 'max_num_batched_tokens': 256, 'max_num_seqs': 64}}
(APIServer pid=1) WARNING 11-30 21:17:45 [system_utils.py:255] Found ulimit of 20000 and failed to \
automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many open \
files`. Consider increasing with ulimit -n
(EngineCore pid=2) INFO 11-30 21:20:30 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with \
config: model='{model}', dtype=torch.float32, max_seq_len=1024, device_config=cpu
(Worker pid=3) INFO 11-30 21:20:42 [cpu_worker.py:260] Explicitly set (0.01/23.54) GiB for KV \
cache on node 0.
(EngineCore pid=2) INFO 11-30 21:20:42 [kv_cache_utils.py:2327] CPU KV cache size: 2,816 tokens, \
Maximum concurrency for 1,024 tokens per request: 2.75x
(APIServer pid=1) INFO 11-30 21:20:48 [factories.py:89] Scale-out endpoints are disabled. Restart \
vllm serve with --enable-scale-out to enable them.
"""


def test_a_served_engine_is_explained_whatever_it_says_beside_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(SERVED.format(model=MODELS["gemma3-4-3"].write(tmp_path)))
    assert explained(path, "gemma3-4-3 on cpu") == ""
    log = read_file(str(path))
    assert not log.error and log.least("available_kv") == Figure.exact(8808038)
    command = read_pasted(path.read_text())
    assert command is not None and "--enable-scale-out" not in command.flags


def drafting(folder: Path) -> str:
    return f"SpeculativeConfig(method='eagle', model='{folder}', num_spec_tokens=2)"


def test_layers_of_a_draft_that_the_log_names_are_planned(tmp_path: Path) -> None:
    draft = MODELS["llama-eagle"].write_draft(tmp_path)
    assert draft is not None
    path = printed(tmp_path, "llama-eagle", of("52,352", "51.12"), drafts=drafting(draft))
    assert explained(path, "llama-eagle on cpu") == ""


def test_a_log_read_away_from_its_draft_is_read_as_without_one(tmp_path: Path) -> None:
    path = printed(
        tmp_path, "llama-eagle", of("65,536", "64.00"), drafts=drafting(Path("/not/here"))
    )
    assert explained(path) == ""


def test_a_folder_that_is_there_is_not_taken_for_a_shipped_model_of_that_name(
    tmp_path: Path,
) -> None:
    """`llama` is a preset, too, of 32 layers."""
    path = printed(tmp_path, "llama", of("65,536", "64.00"))
    assert explained(path, "llama on cpu") == ""


def test_a_log_whose_figures_are_of_other_settings_is_not_called_explained(tmp_path: Path) -> None:
    path = printed(tmp_path, "gemma3-10-4", "26,214 tokens")
    assert explained(path).startswith("not reproduced")


def plugged(folder: Path, name: str, tail: str = "") -> Path:
    """The start of an engine with kvpipe's plug-in in it, as it was printed (0.32.0, on a CPU)."""
    text = (ROOT / "tests" / "cases" / "logs" / f"plugin_{name}.log").read_text()
    path = folder / "engine.log"
    path.write_text(text.replace("MODEL", str(MODELS["gemma3-4-3"].write(folder))) + tail)
    return path


def told(path: Path) -> str:
    prepared = prepared_request(words_to_overrides(["doctor", str(path)])).prepared
    answer = prepared.config.plugins["command"].make(Command).run(prepared, None)
    return " ".join(line.text.strip() for line in answer.lines(10_000))


def test_groups_that_the_plug_in_made_are_explained_and_called_no_mistake(tmp_path: Path) -> None:
    path = plugged(tmp_path, "optimal")
    mine = "its groups are those of kvpipe's plug-in, of 1 layer at most"
    assert explained(path, mine) == ""
    text = told(path)
    assert "tokens 34952" in text and "do not add up" not in text
    assert "padding" not in text and "places" not in text
    assert """--additional-config '{"kvpipe": {"grouping": "optimal"}}'""" in text


def test_a_report_of_the_plug_in_leaves_the_engine_s_own_groups(tmp_path: Path) -> None:
    path = plugged(tmp_path, "report")
    assert explained(path, "kvpipe's plug-in reported in it") == ""
    text = told(path)
    assert "tokens 30840" in text and "padding [(1, 33.33)]" in text
    assert "engine.layers_per_group" not in read_file(str(path)).settings


def test_why_the_plug_in_changed_nothing_is_told(tmp_path: Path) -> None:
    left = "(EngineCore pid=2) WARNING 11-30 21:20:42 [planning.py:55] kvpipe: the engine's own "
    left += "plan stays: vLLM 0.33.0 was not tested, 0.28 to 0.32 were\n"
    path = plugged(tmp_path, "report", left)
    assert "changed nothing: the engine's own plan stays: vLLM 0.33.0 was not tested" in told(path)
