"""Validation: what is decided where the user said auto, and what is refused before it runs."""

from __future__ import annotations

from math import lcm

import pytest
from golden_plans import spec_of

from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.stages.validation.base import ResolvedRun
from kvpipe.stages.validation.state_blocks import share_pool


def resolve(*overrides: str) -> ResolvedRun:
    return prepared_request(["backend=meta", *overrides]).prepared.resolved


def refused(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(*overrides)
    return caught.value.lines()


def notes(run: ResolvedRun) -> str:
    return "\n".join(note.text for note in run.notes)


# --- block sizes ---
def test_the_block_size_is_16_unless_set():
    assert {layer.spec.block_size for layer in resolve().ranks[0].layers} == {16}
    assert {s.spec.block_size for s in resolve("cache.block_size=3").ranks[0].layers} == {3}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_vllm_0_17_takes_powers_of_two_up_to_32_on_cuda(size):
    resolve("device=h100_80gb", "engine=vllm_0_17", f"cache.block_size={size}")


@pytest.mark.parametrize("size", [3, 24, 64, 128])
def test_vllm_0_17_refuses_other_sizes_on_cuda(size):
    (line,) = refused("device=h100_80gb", "engine=vllm_0_17", f"cache.block_size={size}")
    assert line.startswith("cache.block_size: expected one of 1, 2, 4, 8, 16, 32 tokens on CUDA")
    assert line.endswith(f"got {size} tokens")


def test_elsewhere_the_kernel_block_of_the_layout_decides():
    resolve("device=h100_80gb", "cache.block_size=64")
    (line,) = refused("device=h100_80gb", "cache.block_size=24")
    assert "a multiple of 16 tokens" in line and "nearest: 32" in line
    resolve("cache.block_size=24")  # CPU kernels take any size


def test_sizes_of_states_are_exempt_from_the_rule_for_attention():
    run = resolve("example=mamba", "device=h100_80gb", "engine=vllm_0_17")
    assert {layer.spec.block_size for layer in run.ranks[0].layers} == {64}


@pytest.mark.parametrize("model", ["jamba", "qwen3_next", "bamba", "zamba2", "falcon_h1"])
@pytest.mark.parametrize("mode", ["none", "align"])
def test_attention_and_states_share_pages_of_one_size(model, mode):
    run = resolve(f"model={model}", f"cache.mamba_cache_mode={mode}")
    specs = [layer.spec for layer in run.ranks[0].layers]
    attention = [s for s in specs if not s.is_state]
    states = [s for s in specs if s.is_state]
    assert len({s.page_size_bytes for s in specs}) == 1
    page = attention[0]
    token = page.page_size_bytes // page.block_size
    real = max(s.real_page_size_bytes for s in states)
    # The smallest multiple of 16 tokens whose page holds the state, walked one by one.
    wanted = next(n for n in range(16, 1 << 20, 16) if n * token >= real)
    assert page.block_size == wanted
    blocks = {s.block_size for s in states}
    assert blocks == ({wanted} if mode == "align" else {run.limits.max_model_len})


def test_a_larger_block_size_of_the_user_stays():
    run = resolve("model=jamba", "cache.block_size=512")
    assert {s.spec.block_size for s in run.ranks[0].layers if not s.spec.is_state} == {512}


def test_mode_all_saves_states_at_multiples_of_the_chunk():
    run = resolve("model=bamba", "cache.mamba_cache_mode=all", "cache.mamba_block_size=48")
    sizes = {layer.spec.block_size for layer in run.ranks[0].layers}
    (size,) = sizes
    assert size % lcm(48, 16) == 0


def test_a_padded_page_below_the_real_one_is_refused_with_both_numbers():
    (line,) = refused("example=mamba", "cache.mamba_page_size_padded=8192")
    assert line.startswith("cache.mamba_page_size_padded: ")
    assert "194,560" in line and "8,192" in line
    resolve("example=mamba", "cache.mamba_page_size_padded=194560")


# --- dtypes ---
def test_a_float32_file_is_served_in_16_bits_and_the_report_says_so():
    run = resolve("model=mamba_2_8b")
    assert run.served_dtype == "bfloat16" and "float32 checkpoint" in notes(run)
    assert resolve("model=mamba_2_8b", "model.dtype=float32").served_dtype == "float32"
    old = ["device=h100_80gb", "device.compute_capability='7.5'"]
    assert resolve("model=mamba_2_8b", *old).served_dtype == "float16"


def test_fp8_stores_k_and_v_in_one_byte_and_leaves_states_alone():
    run = resolve("model=jamba", "cache=fp8")
    dtypes = {a.dtype for s in run.ranks[0].layers for a in s.spec.page_arrays() if a.per_token}
    states = {a.dtype for s in run.ranks[0].layers for a in s.spec.page_arrays() if not a.per_token}
    assert (dtypes, states) == ({"fp8_e4m3"}, {"bfloat16"})


def test_state_dtypes_follow_the_configuration_then_the_file_then_the_model():
    def state_dtypes(*overrides: str) -> set[tuple[str, str]]:
        layers = resolve("model=qwen3_next", *overrides).ranks[0].layers
        states = [layer.spec for layer in layers if layer.spec.is_state]
        return {(a.name, a.dtype) for s in states for a in s.page_arrays()}

    conv, ssm = sorted(dict(state_dtypes()))
    assert dict(state_dtypes("cache.mamba_ssm_cache_dtype=float32"))[ssm] == "float32"
    both = dict(state_dtypes("cache.mamba_cache_dtype=float32"))
    assert both[conv] == "float32"


def test_fp8_ds_mla_is_for_latent_rows():
    (line,) = refused("cache.cache_dtype=fp8_ds_mla")
    assert "latent rows" in line and "32 layers" in line
    run = resolve("model=deepseek_v3", "cache.cache_dtype=fp8_ds_mla")
    assert {s.spec.real_page_size_bytes for s in run.ranks[0].layers} == {16 * 656}


# --- parallel ---
@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_heads_are_split_and_then_replicated(tp, heads):
    run = resolve(f"parallel.tensor_parallel_size={tp}")
    assert len(run.ranks) == tp
    assert {s.spec.num_kv_heads for rank in run.ranks for s in rank.layers} == {heads}


def test_other_tensor_parallel_sizes_name_the_legal_ones():
    (line,) = refused("parallel.tensor_parallel_size=3")
    assert line.startswith("parallel.tensor_parallel_size: ")
    assert "one of 1, 2, 4, 8, 16, 32 (32 attention heads are split" in line
    # 24 ranks could replicate 8 KV heads, but not share 32 attention heads.
    (line,) = refused("parallel.tensor_parallel_size=24")
    assert "attention heads" in line


def test_stages_split_layers_and_the_last_gets_the_smaller_part():
    run = resolve("parallel.pipeline_parallel_size=3")
    sizes = [len(rank.layers) for rank in run.ranks]
    assert sum(sizes) == 32 and max(sizes) - min(sizes) == 1 and sizes[-1] == min(sizes)
    cut = resolve("parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[20,12]")
    assert [len(rank.layers) for rank in cut.ranks] == [20, 12]


def test_a_partition_must_cover_the_layers():
    (line,) = refused("parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[20,20]")
    assert "2 numbers that add up to 32 layers" in line


def test_layers_that_share_a_cache_stay_in_one_stage():
    (line,) = refused("model=gemma3n_e4b", "parallel.pipeline_parallel_size=3")
    assert "whose cache it reads" in line and "pipeline_partition" in line


# --- lengths and what-ifs ---
def test_auto_is_the_context_of_the_model_and_may_be_fitted():
    run = resolve()
    assert (run.limits.max_model_len, run.fit) == (131072, True)
    run = resolve("scheduler.max_model_len=4096")
    assert (run.limits.max_model_len, run.fit) == (4096, False)


def test_setting_a_window_is_enough_and_never_widens_a_native_one():
    windows = {s.spec.sliding_window for s in resolve("cache.sliding_window=512").ranks[0].layers}
    assert windows == {512}
    run = resolve("model=gemma3_27b", "cache.sliding_window=4096")
    assert {s.spec.sliding_window for s in run.ranks[0].layers} == {1024, 4096}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["attention=sliding"], "since attention=sliding"),
        (["attention=full", "cache.sliding_window=64"], "since attention=full"),
        (["attention=chunked", "cache.sliding_window=64"], "since attention=chunked"),
    ],
)
def test_a_window_and_an_attention_choice_must_agree(overrides, said):
    (line,) = refused(*overrides)
    assert line.startswith("cache.sliding_window: ") and said in line


def test_encoder_only_layers_become_windows_as_a_what_if():
    kinds = {s.spec.kind for s in resolve("model=longformer").ranks[0].layers}
    assert kinds == {"encoder_only"}
    run = resolve("model=longformer", "cache=sliding")
    assert {s.spec.kind for s in run.ranks[0].layers} == {"sliding"}
    assert "what-if" in notes(run)


def test_advice_is_given_only_where_it_applies():
    assert "utilization 1.0" in notes(resolve("cache.gpu_memory_utilization=1.0"))
    assert "utilization 1.0" not in notes(resolve())
    assert "covers the whole context" in notes(resolve("model=tinyllama", "cache=sliding"))
    assert "covers the whole context" not in notes(resolve("cache=sliding"))


# --- device and backend ---
def test_a_gpu_that_is_not_here_is_planned_on_meta():
    run = prepared_request(["device=h100_80gb"]).prepared.resolved
    assert run.backend == "meta" and "not in this machine" in run.backend_reason
    assert run.device.total_bytes == 85093277696


def test_a_gpu_without_a_memory_must_be_here():
    lines = refused("device=h100_80gb", "device.memory_bytes=null")
    assert any(line.startswith("device.memory_bytes: ") for line in lines)


# --- the reference's own block sizes ---
@pytest.mark.parametrize("name", ["plan_vllm017", "plan_vllm033"])
def test_blocks_next_to_states_are_those_of_the_reference(golden, name):
    """Block sizes are an input of the reference's planner: the rule under test made them."""
    checked = 0
    for case in golden(name):
        ranks = case["input"].get("workers") or [case["input"].get("layers", [])]
        hybrid = {layer["kind"] for rank in ranks for layer in rank} > {"mamba"}
        specs = [spec_of(layer) for rank in ranks for layer in rank] if hybrid else []
        states = [spec for spec in specs if spec.is_state]
        attention = [spec for spec in specs if not spec.is_state]
        if not attention or not any(spec.page_size_padded for spec in states):
            continue
        mode = case["input"]["mamba_cache_mode"]
        pool = share_pool(attention, states, asked=None, alignment=16, mode=mode, chunk_size=256)
        assert {spec.block_size for spec in attention} == {pool.block_size}, case["id"]
        assert {spec.page_size_bytes for spec in states} == {pool.page_size_bytes}, case["id"]
        if pool.state_block_size:
            assert {spec.block_size for spec in states} == {pool.state_block_size}, case["id"]
        checked += 1
    assert checked == {"plan_vllm017": 26, "plan_vllm033": 21}[name]


LATENT = ["model=deepseek_v3", "device=h100_80gb", "scheduler.max_model_len=8192"]


def block_sizes(*overrides: str) -> set[int]:
    return {layer.spec.block_size for layer in resolve(*LATENT, *overrides).ranks[0].layers}


def test_latent_layers_take_vllms_block_of_64_unless_another_is_set() -> None:
    assert block_sizes("engine=vllm_0_33") == {64}
    assert block_sizes("engine=vllm_0_33", "cache.block_size=128") == {128}
    assert block_sizes() == {16}


def test_vllm_reserves_the_batch_budget_for_cross_attention() -> None:
    asked = ["model=whisper_large_v3", "device=h100_80gb", "scheduler.max_num_batched_tokens=4096"]
    assert resolve(*asked).limits.max_encoder_tokens == 1500
    assert resolve(*asked, "engine=vllm_0_17").limits.max_encoder_tokens == 4096
