"""What an engine would set itself, by release and device, and `auto` that asks for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvpipe.engines.defaults import DEFAULTS, defaults_of
from kvpipe.engines.versions import parse_version
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Prepared, Result, execute
from kvpipe.text.figures import GIB

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.live.models import MODELS  # noqa: E402


def prepared(*overrides: str) -> Prepared:
    return prepared_request(["model=llama", *overrides]).prepared


@pytest.mark.parametrize("minor", range(2, 36))
def test_every_release_has_one_row_of_each_default(minor: int) -> None:
    version = min(parse_version(f"0.{minor}.0"), (0, 33, 0))
    for rule in {row.rule for row in DEFAULTS}:
        assert sum(row.holds(version) for row in DEFAULTS if row.rule == rule) == 1, rule


# version, GiB, device, usage -> (tokens, requests), read off the table of five releases
CASES = [
    ("0.12.0", 24, "rtx_3090", "server", (2048, 256)),
    ("0.12.0", 24, "rtx_3090", "llm", (8192, 256)),
    ("0.17.0", 79, "h100_80gb", "server", (8192, 1024)),
    ("0.17.0", 79, "h100_80gb", "llm", (16384, 1024)),
    ("0.17.0", 79, "a100_80gb", "server", (2048, 256)),
    ("0.26.0", 191, "mi300x", "server", (8192, 1024)),
    ("0.33.0", 191, "mi300x", "server", (16384, 1024)),
    ("0.33.0", 121, "gb10", "server", (2048, 256)),
    ("0.26.0", 121, "gb10", "server", (8192, 1024)),
]


@pytest.mark.parametrize(("version", "gib", "name", "usage", "expected"), CASES)
def test_the_batch_budget_follows_device_and_release(
    version: str, gib: int, name: str, usage: str, expected: tuple[int, int]
) -> None:
    found = defaults_of(version, device_bytes=gib * GIB, device_name=name, usage=usage)  # type: ignore[arg-type]
    assert (found.max_num_batched_tokens, found.max_num_seqs) == expected


def test_before_0_8_a_prompt_is_one_batch_until_chunking_turns_on() -> None:
    budgets = [
        defaults_of("0.6.4", device_bytes=24 * GIB, max_model_len=n).max_num_batched_tokens
        for n in (1000, 20000, 29000, 35000, 45000)
    ]
    assert budgets == [2048, 20000, 29000, 2048, 2048]


def test_auto_asks_the_planned_engine_and_says_what_it_chose() -> None:
    resolved = prepared(
        "device=mi300x", "engine=vllm", "engine.version=0.33.0", "scheduler=engine"
    ).resolved
    assert resolved.limits.max_num_batched_tokens == 16384
    assert resolved.max_num_seqs == 1024
    assert resolved.limits.max_concurrent_batches == 2
    text = "scheduler.max_num_batched_tokens is 16,384, vLLM 0.33.0's default on mi300x"
    assert text in [note.text for note in resolved.notes]


@pytest.mark.parametrize(("version", "share"), [("0.17.0", 0.90), ("0.21.0", 0.92)])
def test_an_automatic_share_of_the_device_is_the_releases(version: str, share: float) -> None:
    asked = ["engine=vllm", f"engine.version={version}", "cache.gpu_memory_utilization=auto"]
    assert prepared("device=h100_80gb", *asked).resolved.gpu_memory_utilization == share


def test_a_set_value_is_not_overruled() -> None:
    asked = ["scheduler=engine", "scheduler.max_num_batched_tokens=4096", "device=h100_80gb"]
    assert prepared(*asked).resolved.limits.max_num_batched_tokens == 4096


def test_twenty_and_35_thousand_tokens_start_where_29_thousand_is_refused() -> None:
    """Llama-3.1-8B on a 24 GB card before 0.8: a prompt is one batch up to 32,768 tokens."""

    def start(length: int) -> None:
        execute(
            prepared(
                "device=rtx_3090",
                "profiling=estimate",
                "engine=vllm",
                "engine.version=0.6.4",
                "scheduler=engine",
                f"scheduler.max_model_len={length}",
            )
        )

    start(20000)
    with pytest.raises(DoesNotFit, match="one request of 29,000 tokens"):
        start(29000)
    start(35000)


def test_a_word_that_is_neither_a_number_nor_auto_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.max_num_seqs: expected .*'many'"):
        prepared("scheduler.max_num_seqs=many")


@pytest.mark.parametrize(
    ("version", "length", "asked", "expected"),
    [
        ("0.33.0", 8192, {"asked_tokens": 512}, (8192, 512)),  # no more requests than tokens
        ("0.33.0", 8192, {"asked_seqs": 2}, (8192, 1024)),
        ("0.33.0", 2048, {"asked_seqs": 2}, (4096, 1024)),  # what two requests hold
        ("0.17.0", 1024, {"asked_seqs": 1}, (1024, 1024)),
        ("0.12.0", 1024, {"asked_seqs": 1}, (8192, 1024)),  # not looked at
    ],
)
def test_what_was_set_of_a_step_bounds_the_default_of_the_rest(
    version: str, length: int, asked: dict[str, int], expected: tuple[int, int]
) -> None:
    found = defaults_of(version, device_bytes=80 * GIB, max_model_len=length, **asked)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == expected


def test_a_small_batch_is_no_refusal_where_nobody_set_the_requests() -> None:
    words = ["model=llama", "device=h100_80gb", "backend=meta", "engine=vllm_0_33"]
    words += ["scheduler.max_model_len=8192", "scheduler.max_num_batched_tokens=512"]
    assert prepared_request(words).prepared.resolved.max_num_seqs == 512


# Of running engines (docs/live.md): release, tokens asked, blocks, block of each group.
ON_A_CPU = [("0.28.0", 16, 4096, 16), ("0.30.0", 16, 2048, 32), ("0.32.0", 16, 2048, 32)]
ON_A_CPU += [("0.32.0", 32, 2048, 32), ("0.32.0", 64, 1024, 64), ("0.32.0", 256, 256, 256)]


def on_a_cpu(model: str, folder: Path, version: str, block: int | str) -> Result:
    words = [f"model.path={MODELS[model].write(folder)}", f"engine.version={version}"]
    words += ["model=hf", "device=cpu", "backend=meta", "engine=vllm", "scheduler=engine"]
    words += ["scheduler.max_model_len=1024"]
    words += ["cache.kv_cache_memory_bytes=64MiB", f"cache.block_size={block}"]
    return execute(prepared_request(words).prepared)


@pytest.mark.parametrize(("version", "asked", "blocks", "tokens"), ON_A_CPU)
def test_windows_on_a_cpu_take_the_blocks_that_its_kernel_runs(
    version: str, asked: int, blocks: int, tokens: int, tmp_path: Path
) -> None:
    made = on_a_cpu("gemma3-10-4", tmp_path, version, asked).plan
    assert made.num_blocks == blocks
    assert {group.spec.block_size for group in made.groups} == {tokens}


@pytest.mark.parametrize("version", ["0.26.0", "0.28.0", "0.32.0"])
def test_a_cpu_has_no_step_in_flight_beside_those_of_its_stages(version: str) -> None:
    for stages in (1, 2):
        at = {"device_bytes": GIB, "device_type": "cpu", "pp": stages}
        assert defaults_of(version, **at).max_concurrent_batches == stages  # type: ignore[arg-type]
        assert defaults_of(version, **at | {"device_type": "cuda"}).max_concurrent_batches > stages  # type: ignore[arg-type]


@pytest.mark.parametrize(("version", "own"), [("0.28.0", 16), ("0.30.0", 128)])
def test_windows_alone_on_a_cpu_take_the_release_s_block(
    version: str, own: int, tmp_path: Path
) -> None:
    # As vLLM 0.28.0 and 0.30.0 printed when started on a CPU with these 64 MiB.
    made = on_a_cpu("mistral-window", tmp_path, version, "auto").plan
    assert [group.spec.block_size for group in made.groups] == [own]
    assert made.num_blocks == 64 * 2**20 // (4 * 256 * own)


def test_full_attention_on_a_cpu_refuses_blocks_that_its_kernel_does_not_run(
    tmp_path: Path,
) -> None:
    assert on_a_cpu("llama", tmp_path, "0.28.0", 16).plan.num_blocks
    with pytest.raises(ConfigError, match="a multiple of 32 tokens, the kernel's block on a CPU"):
        on_a_cpu("llama", tmp_path, "0.32.0", 16)


@pytest.mark.parametrize(("asked", "tokens"), [(48, 64), (80, 96)])
def test_a_block_beside_states_is_made_a_multiple_of_the_cpu_s_kernel_from_0_32_on(
    asked: int, tokens: int, tmp_path: Path
) -> None:
    # As vLLM 0.32.0 planned when started on a CPU with these 64 MiB.
    made = on_a_cpu("granite4", tmp_path, "0.32.0", asked).plan
    assert {group.spec.block_size for group in made.groups if not group.spec.is_state} == {tokens}
    if asked % 32:
        with pytest.raises(ConfigError, match=f"a multiple of 32 tokens.*got {asked} tokens"):
            on_a_cpu("granite4", tmp_path, "0.30.0", asked)


def test_latent_rows_and_attention_beside_them_have_no_block_in_common_on_a_cpu(
    tmp_path: Path,
) -> None:
    """As a draft of full attention is for a latent model. The engine: "No common block size"."""
    draft = MODELS["deepseek-v3-eagle3"].write_draft(tmp_path)
    words = [f"model.path={MODELS['deepseek-v3-eagle3'].write(tmp_path)}", "model=hf"]
    words += [f"model.draft={draft}", "scheduler.num_speculative_tokens=2", "backend=meta"]
    words += ["engine=vllm", "engine.version=0.32.0", "cache.kv_cache_memory_bytes=64MiB"]
    with pytest.raises(ConfigError, match=r"latent rows \(16 tokens\)"):
        prepared_request([*words, "device=cpu"])
    assert prepared_request([*words, "device=h100_80gb"]).prepared.resolved.ranks


def test_blocks_that_grow_until_pages_are_alike_are_looked_at_then(tmp_path: Path) -> None:
    """Gemma 4's full layers have twice a window's bytes a token, so that theirs do not grow: the
    engine refuses them, and takes the same blocks of Gemma 3."""
    assert on_a_cpu("gemma3-10-4", tmp_path, "0.32.0", 16).plan.num_blocks
    with pytest.raises(ConfigError, match="nearest: 32"):
        on_a_cpu("gemma4-10-4", tmp_path, "0.32.0", 16)
    made = on_a_cpu("gemma4-10-4", tmp_path, "0.32.0", 128).plan
    assert {group.spec.block_size for group in made.groups} == {128, 256}
