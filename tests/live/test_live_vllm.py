"""Running vLLM engines against kvpipe: `pytest -m live`, after `python tools/live/setup.py ...`.

Each test is skipped, with the command that makes its environment, where that does not stand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tools.live import matrix, proof, serving  # noqa: E402
from tools.live.cases import cases  # noqa: E402
from tools.live.environments import missing  # noqa: E402

pytestmark = pytest.mark.live
ENGINES = ("vllm-0.32.0", "vllm-0.28.0")
# Of each kind of cache one, and each setting once: a few minutes. The whole matrix is the tool's.
FEW = (
    *("llama", "mistral-window", "gemma3-10-4", "llama4", "deepseek-v2", "mamba", "granite4"),
    *("gemma3n", "gemma3-10-4 block 16", "gemma3-10-4 batch of 300", "llama longest length"),
    *("gpt-oss hybrid manager off", "gemma3-10-4 from the serve line"),
)


def needs(engine: str) -> None:
    if command := missing([engine]):
        pytest.skip(f"no {engine}: {command}")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_kvpipe_says_is_what_the_engine_plans(engine: str, tmp_path: Path) -> None:
    needs(engine)
    chosen = [case for case in cases() if case.name in FEW]
    assert len(chosen) == len(FEW)
    folders = {case.model.name: case.model.write(tmp_path) for case in chosen}
    kept = {"answers": matrix.answers_of(engine, chosen, folders, tmp_path)}
    wrong = {r["case"]: r["differences"] for r in matrix.compared(engine, kept) if r["differences"]}
    assert wrong == {}


def test_the_plug_in_gives_more_tokens_and_the_same_text(tmp_path: Path) -> None:
    needs("vllm-0.32.0")
    found = proof.compare("vllm-0.32.0", "gemma3-10-4", tmp_path)
    own, ours = found["own"], found["ours"]
    assert found["equal"] == len(proof.LENGTHS)
    assert ours["printed"] > own["printed"] and ours["at_once"] > own["at_once"]
    assert own["preemptions"] and own["hit_tokens"] and ours["hit_tokens"]


@pytest.mark.parametrize("way", serving.WAYS, ids=lambda way: way.name)
def test_a_server_with_the_plug_in_says_so_and_answers_the_same(
    way: serving.Way, tmp_path: Path
) -> None:
    needs("vllm-0.32.0")
    found = serving.compare("vllm-0.32.0", way, tmp_path)
    own, ours = found["own"], found["ours"]
    assert found["equal"] == found["asked"] == len(proof.LENGTHS)
    assert ours["printed"] > own["printed"] and f"{ours['printed']:,} tokens" in ours["line"]
    assert not own["line"] and "EngineCore" in ours["processes"]
