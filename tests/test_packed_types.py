"""Cache types whose numbers share scales: counted where an engine stores them, else refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from kvpipe.front.main import run
from kvpipe.plugins import REGISTRIES
from kvpipe.specs.packed_types import PACKED, WORDS, packed_bytes
from kvpipe.specs.scaled_rows import SCALED_ROWS

ASKED = ["llama", "--on", "b200", "--context", "8k", "report=json"]
NUMBERS = 32 * 2 * 8 * 128  # of a token of Llama-3.1-8B


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ggml's blocks as C lays them out: scales of 16 bits, fifth bits, then 4 or 8 bits a number.
BLOCKS = {
    "q8_0": "<e32b",
    "q5_1": "<eeI16B",
    "q5_0": "<eI16B",
    "q4_1": "<ee16B",
    "q4_0": "<e16B",
    "iq4_nl": "<e16B",
    "nvfp4": "<B8B",
}


@pytest.mark.parametrize("name", list(PACKED))
def test_a_block_is_what_its_fields_take(name: str) -> None:
    numbers, num_bytes = PACKED[name]
    assert struct.calcsize(BLOCKS[name]) == num_bytes
    assert packed_bytes(4 * numbers, name) == 4 * num_bytes
    assert packed_bytes(4 * numbers + 1, name) == 5 * num_bytes


def stored_by(engine: str) -> set[str]:
    return set(WORDS) & set(getattr(REGISTRIES["engine"].get(engine), "cache_types", ()))


@pytest.mark.parametrize(
    ("engine", "word"),
    [("tensorrt_llm", "nvfp4"), ("llama_cpp", "q8_0"), ("llama_cpp", "q4_0")],
)
def test_an_engine_that_stores_a_type_counts_its_bytes(engine: str, word: str, capsys) -> None:
    assert run([*ASKED, "--kv", word, f"engine={engine}"]) == 0
    told = json.loads(capsys.readouterr().out)
    numbers, num_bytes = PACKED[word]
    block = 32 if engine == "tensorrt_llm" else 1  # tokens
    (pool,) = told["pools"]
    assert pool["unit_bytes"] == block * NUMBERS * num_bytes // numbers
    assert word in told["command"] + str(told["files"])
    assert told["cache_dtype"] == word


def test_one_word_is_both_types_of_llama_cpp(capsys) -> None:
    assert run([*ASKED, "--kv", "q5_1", "engine=llama_cpp"]) == 0
    one = json.loads(capsys.readouterr().out)
    both = ["engine.type_k=q5_1", "engine.type_v=q5_1"]
    assert run([*ASKED, "engine=llama_cpp", *both]) == 0
    two = json.loads(capsys.readouterr().out)
    assert (one["pools"], one["command"]) == (two["pools"], two["command"])


@pytest.mark.parametrize(("card", "knob"), [("h100", "fp8"), ("l4", "fp8"), ("a100-40gb", "auto")])
def test_four_bits_are_refused_on_a_card_that_does_not_compute_with_them(
    card: str, knob: str, capsys
) -> None:
    asked = ["llama", "--on", card, "--context", "8k", "engine=tensorrt_llm", "--kv"]
    assert run([*asked, "nvfp4"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "compute capability 10.0 (inferred)" in told
    assert told.endswith(f"; cache.cache_dtype={knob}")


def rows_of(engine: str) -> set[str]:
    """Rows with scales, of the releases that were read for them."""
    return set(SCALED_ROWS) if engine in ("vllm", "vllm_0_33") else set()


ALL = [
    (engine, word)
    for engine in REGISTRIES["engine"].names()
    for word in WORDS
    if word not in stored_by(engine) | rows_of(engine)
]
FEW = [("kvpipe", "q8_0"), ("vllm_0_17", "nvfp4"), ("sglang", "int8"), ("transformers", "q4_0")]


@pytest.mark.parametrize(
    ("engine", "word"),
    [*FEW, *(pytest.param(*pair, marks=pytest.mark.full) for pair in ALL if pair not in FEW)],
)
def test_every_other_engine_refuses_it_by_name(engine: str, word: str, capsys) -> None:
    assert run([*ASKED, "--kv", word, f"engine={engine}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvpipe: cache.cache_dtype: expected") and f"got '{word}'" in line
    assert "auto, float16, bfloat16" in line, "the valid ones"


def test_no_time_is_bounded_by_a_read_that_is_not_known(capsys) -> None:
    words = ["compare", *ASKED, "--kv", "q8_0", "engine=llama_cpp", "engines=[llama_cpp,vllm]"]
    assert run(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert "q8_0" in told["bounds"] and told["engines"][0]["token_bound_s"] is None
    assert "cache.cache_dtype" in told["engines"][1]["refused"][0]
