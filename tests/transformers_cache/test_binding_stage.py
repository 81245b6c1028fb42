"""`binding=transformers`: the whole pipeline on a tiny config, with random weights.

The report says that the generated tokens equalled the reference, and shows an injected fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from equality import SHORT as SHORT_TEXT
from equality import assert_equal, generate, reference, short_output
from tiny_models import build, config_of

import kvpipe
from kvpipe.errors import ConfigError
from kvpipe.integrations.transformers import bind

SHORT = [
    "binding.new_tokens=12",
    "binding.mode=gather",
    "scheduler.max_model_len=128",
    "backend=torch",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """family -> a folder with nothing but its config.json."""
    found = {}
    for family in ("llama", "jamba", "whisper"):
        folder = tmp_path_factory.mktemp(family)
        model = build(family)
        model.config.architectures = [type(model).__name__]
        (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
        found[family] = folder
    return found


def run(folder: Path, *overrides: str) -> Any:
    where = ["model=hf", f"model.path={folder}", "binding=transformers", "model.dtype=float32"]
    return kvpipe.run([*where, *SHORT, *overrides])


def test_tokens_equal_the_reference_through_the_planned_pages(folders: dict[str, Path]) -> None:
    (bound,) = run(folders["llama"], "binding.mode=auto").bound
    proof = bound.verify
    assert proof.passed and proof.tokens == 3 * 12
    assert proof.summary.startswith("36 generated tokens equal those of transformers' own cache")
    assert "mode direct" in proof.summary
    assert not any("plan of its own" in note for note in bound.notes)


def test_a_convolution_gets_its_columns_and_the_report_says_so(folders: dict[str, Path]) -> None:
    (bound,) = run(folders["jamba"]).bound
    assert bound.verify.passed
    (note,) = (note for note in bound.notes if "plan of its own" in note)
    assert "transformers stores conv [64, 4], ssm [64, 8], the plan conv [64, 3]" in note


@pytest.mark.full
def test_an_encoder_decoder_runs_too(folders: dict[str, Path]) -> None:
    assert run(folders["whisper"]).bound[0].verify.passed


@pytest.mark.parametrize(
    ("family", "fault"), [("llama", "swap"), pytest.param("jamba", "state", marks=pytest.mark.full)]
)
def test_an_injected_fault_shows(folders: dict[str, Path], family: str, fault: str) -> None:
    proof = run(folders[family], f"binding.inject={fault}").bound[0].verify
    assert proof.mismatches > 0
    assert "of 36 generated tokens differ from" in proof.summary
    assert proof.summary.endswith(f"with inject={fault}")


@pytest.mark.full
def test_an_fp8_cache_equals_rounded_keys_and_values(folders: dict[str, Path]) -> None:
    assert run(folders["llama"], "cache=fp8").bound[0].verify.passed


@pytest.mark.full
def test_in_16_bits_the_tokens_of_gathered_pages_are_equal(folders: dict[str, Path]) -> None:
    proof = run(folders["llama"], "model.dtype=bfloat16").bound[0].verify
    assert proof.passed and "mode gather" in proof.summary
    with pytest.raises(ConfigError, match="where rounding alone changes tokens"):
        run(folders["llama"], "model.dtype=bfloat16", "binding.mode=direct")


def test_wrong_requests_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="got a preset, which has geometry only"):
        kvpipe.run(["model=llama", "binding=transformers", *SHORT])
    with pytest.raises(ConfigError, match="one rank: transformers runs the whole model, got 2"):
        run(folders["llama"], "parallel=tp2")
    with pytest.raises(ConfigError, match="max_parameters: expected a model of at most 1,000"):
        run(folders["llama"], "binding.max_parameters=1000")
    with pytest.raises(ConfigError, match="can have 'state', got no states"):
        run(folders["llama"], "binding.inject=state")


def test_a_model_binds_to_the_memory_of_a_run(folders: dict[str, Path]) -> None:
    """The engine's own plan of the same config, made without transformers, holds its cache."""
    case = reference("llama")
    result = kvpipe.run(
        ["model=hf", f"model.path={folders['llama']}", "model.dtype=float32", "backend=torch",
         "scheduler.max_model_len=128", "cache.kv_cache_memory_bytes=1MiB"]
    )  # fmt: skip
    buffers = result.bound[0].buffers
    cache = bind(case.model, result.plan, buffers=buffers)
    assert_equal(short_output("llama"), generate(case.model, case.inputs, cache, **SHORT_TEXT))
    cache.bound.unbind()
    assert any(buffer.data.any() for buffer in buffers.buffers)


@pytest.mark.full
def test_the_example_generates_the_same_text(folders: dict[str, Path]) -> None:
    example = Path(__file__).parents[2] / "examples" / "generate.py"
    done = subprocess.run(
        [sys.executable, str(example), str(folders["jamba"]), "--new-tokens", "6"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert "the text is the same" in done.stdout
    assert done.stdout.count("bytes held") == 2


# What transformers cannot do with a file, with its own cache, is the file's: exit 2, named.
FILES: dict[str, tuple[str, dict[str, Any], str]] = {
    "start": (
        "bart",
        {"decoder_start_token_id": None, "bos_token_id": None},
        "model.path: .* got ValueError: `decoder_start_token_id` or `bos_token_id` has to be",
    ),
    "pad": ("llama", {"pad_token_id": 97}, r"\(pad_token_id\): expected a token below .* got 97"),
    "broken": ("llama", {"hidden_act": "nonsuch"}, r"model.path: expected a config.json that"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_transformers_cannot_use_is_the_users(name: str, tmp_path: Path) -> None:
    family, changes, expected = FILES[name]
    raw = {**config_of(family).to_dict(), **changes}
    raw["model_type"] = family
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=expected) as caught:
        run(tmp_path)
    assert caught.value.exit_code == 2
