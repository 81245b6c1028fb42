"""profiling=estimate: ranges against what engines printed, and what follows from them."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from accuracy_records import PEAKS, peak_of
from engine_records import cases

from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.job import run_job
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.pipeline import execute
from kvpipe.stages.profiling.estimates import (
    GIB,
    WIDEST,
    Estimate,
    activations,
    capture_sizes,
    context,
    graphs,
)

LLAMA = ModelGeometry(
    name="llama",
    file_dtype="bfloat16",
    context_length=131072,
    num_layers=32,
    caches=(),
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
    num_attention_heads=32,
    parameter_count=8030261248,
)


def document(*overrides: str) -> dict[str, Any]:
    out = io.StringIO()
    asked = ["model=llama", "profiling=estimate", "report=json", *overrides]
    folder = Path(tempfile.mkdtemp(prefix="kvpipe-"))
    outcome = run_job(prepared_request(asked).prepared, lambda: folder, out, None)
    assert outcome.exit_code == 0, outcome.lines
    read: dict[str, Any] = json.loads(out.getvalue())
    return read


def charged(read: dict[str, Any], rank: int = 0) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in read["memory"]["ranks"][rank]["charged"]}


# --- ranges ---
@pytest.mark.parametrize("tokens", [1, 512, 2048, 8192, 131072])
@pytest.mark.parametrize("seqs", [1, 256, 1024])
@pytest.mark.parametrize("tp", [1, 8])
def test_no_range_of_counted_arrays_is_wider_than_a_factor_of_three(
    tokens: int, seqs: int, tp: int
) -> None:
    estimates = [
        activations(LLAMA, batched_tokens=tokens, max_num_seqs=seqs, tp=tp),
        graphs(LLAMA, num_layers=32, max_num_seqs=seqs),
        context(tp),
    ]
    for estimate in estimates:
        assert 0 < estimate.low <= estimate.best <= estimate.high
        assert estimate.formula and estimate.source
    assert estimates[0].high <= WIDEST * estimates[0].low


def test_a_wider_range_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Estimate(name="x", low=1, best=2, high=4, formula="", source="")


def test_the_widest_layer_is_counted_by_hand_for_llama() -> None:
    """20,000 tokens of gate, up and their product, and the residual stream twice, 2 bytes each."""
    estimate = activations(LLAMA, batched_tokens=20000, max_num_seqs=1)
    assert estimate.best == 20000 * (3 * 14336 + 2 * 4096) * 2


def test_the_sampler_decides_where_the_vocabulary_is_large() -> None:
    estimate = activations(LLAMA, batched_tokens=2048, max_num_seqs=1024)
    assert estimate.best == 1024 * 128256 * 40
    first_stage = activations(LLAMA, batched_tokens=2048, max_num_seqs=1024, has_head=False)
    assert first_stage.best == 2048 * (3 * 14336 + 2 * 4096) * 2


def test_capture_sizes_are_counted_one_by_one() -> None:
    assert capture_sizes(1) == 2  # 1, 2
    assert capture_sizes(4) == 4  # 1, 2, 4, 8
    assert capture_sizes(256) == capture_sizes(4096) == 3 + 31 + 17


@pytest.mark.parametrize("name", PEAKS)
def test_a_printed_activation_figure_lies_where_the_accuracy_page_says(name: str) -> None:
    record = PEAKS[name]
    if record.shape is None:
        return
    estimate = peak_of(name)
    printed = cases()[name]["activation_gib"] * GIB
    assert (estimate.low - GIB / 200 <= printed <= estimate.high + GIB / 200) == record.inside


# --- runs ---
def test_the_account_adds_up_and_ranges_stand_beside_it() -> None:
    read = document("device=h100_80gb", "scheduler.max_num_batched_tokens=8192")
    memory = read["memory"]["ranks"][0]
    best = sum(item["num_bytes"] for item in memory["charged"])
    assert memory["requested"]["num_bytes"] - best == memory["available_kv"]["num_bytes"]
    for item in (*memory["charged"], memory["available_kv"]):
        if item["how"] == "estimated":
            assert item["low_bytes"] <= item["num_bytes"] <= item["high_bytes"]
    assert charged(read)["weights"]["num_bytes"] == 8030261248 * 2
    account = read["bytes"]["ranks"][0]
    assert sum(account["peak"].values()) == account["total_bytes"]


def test_a_larger_batch_budget_costs_activations_and_cache() -> None:
    small = document("device=h100_80gb", "scheduler.max_num_batched_tokens=8192")
    large = document("device=h100_80gb", "scheduler.max_num_batched_tokens=65536")
    assert charged(small)["activations"]["num_bytes"] < charged(large)["activations"]["num_bytes"]
    assert small["plan"]["num_blocks"] > large["plan"]["num_blocks"]


def test_graphs_are_taken_off_only_by_releases_that_reserve_them() -> None:
    old = document("device=h100_80gb", "engine=vllm", "engine.version=0.12.0")
    new = document("device=h100_80gb", "engine=vllm", "engine.version=0.21.0")
    eager = document("device=h100_80gb", "profiling.enforce_eager=true")
    assert "graphs" not in charged(old) and "graphs" not in charged(eager)
    assert "graphs" in charged(new)


def test_a_second_instance_pays_for_the_first_out_of_its_own_share() -> None:
    """Two 0.3 shares of one card: the second needs 0.6, since the first's memory counts."""
    share = "cache.gpu_memory_utilization=0.3"
    first = document("device=gh200_96gb", share)
    held = first["memory"]["ranks"][0]["requested"]["num_bytes"]
    beside = f"profiling.other_instances_bytes={held}"
    asked = ["model=llama", "profiling=estimate", "device=gh200_96gb", share, beside]
    with pytest.raises(DoesNotFit, match="of the whole card"):
        execute(prepared_request(asked).prepared)
    second = document(
        "device=gh200_96gb",
        "cache.gpu_memory_utilization=0.6",
        beside,
    )
    one, other = (x["memory"]["ranks"][0]["available_kv"]["num_bytes"] for x in (first, second))
    assert abs(one - other) <= 2


def test_pipeline_stages_hold_their_own_layers_and_the_ends_the_embeddings() -> None:
    read = document("device=l40s", "parallel=pp2", "parallel.pipeline_partition=[20,12]")
    first, last = charged(read, 0)["weights"], charged(read, 1)["weights"]
    assert first["num_bytes"] > last["num_bytes"]
    embeddings = 2 * 128256 * 4096 * 2
    layers = 8030261248 * 2 - embeddings // 2
    assert first["num_bytes"] + last["num_bytes"] == pytest.approx(layers + embeddings, rel=1e-6)


def test_a_cpu_is_refused() -> None:
    prepared = prepared_request(["model=llama", "profiling=estimate", "device=cpu"]).prepared
    with pytest.raises(ConfigError, match="device: expected an accelerator"):
        run_job(prepared, Path, None, None)
