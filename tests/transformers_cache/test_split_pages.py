"""Bound models over pages in slots that kernels read as several blocks of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers and torch")

from tiny_models import build

import kvpipe


def run(folder: Path, *overrides: str) -> Any:
    model = build("gemma3")
    described = model.config.to_dict() | {"architectures": [type(model).__name__]}
    described |= {"num_hidden_layers": 7}
    described["layer_types"] = ["sliding_attention"] * 5 + ["full_attention"] * 2
    (folder / "config.json").write_text(json.dumps(described))
    words = ["model=hf", f"model.path={folder}", "binding=transformers", "model.dtype=float32"]
    words += ["binding.new_tokens=8", "binding.prompt_tokens=[90,31]", "backend=torch"]
    words += ["scheduler.max_model_len=128", "scheduler.max_num_batched_tokens=64"]
    words += ["cache.block_size=4", "layout.kernel_block_size=4", "grouping.table_price=0.5"]
    words += ["grouping.objective=fewest_tables"]
    return kvpipe.run([*words, *overrides])


@pytest.mark.full
@pytest.mark.parametrize("mode", ["gather", "direct"])
def test_tokens_equal_the_reference_through_split_pages(tmp_path: Path, mode: str) -> None:
    made = run(tmp_path, f"binding.mode={mode}")
    apart = [v for a in made.addresses for layer in a.layers for v in layer.views if v.ids_apart]
    assert apart and all(view.shape[1] == 4 for view in apart)
    proof = made.bound[0].verify
    assert proof.passed and f"mode {mode}" in proof.summary


@pytest.mark.full
def test_a_swapped_block_shows_in_split_pages(tmp_path: Path) -> None:
    assert run(tmp_path, "binding.inject=swap", "binding.mode=gather").bound[0].verify.mismatches
