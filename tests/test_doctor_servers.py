"""`kvpipe doctor` of lines that start llama.cpp's and TensorRT-LLM's servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_doctor import doctor, prepared_case, text_of

from kvpipe.commands.base import Command
from kvpipe.engines.llama_cpp_pasted import read_llama_server
from kvpipe.engines.server_lines import read_server_line
from kvpipe.engines.tensorrt_llm_pasted import read_trtllm_serve
from kvpipe.errors import ConfigError

LLAMA = (
    "llama-server -m models/Meta-Llama-3.1-8B-Instruct-Q8_0.gguf -c 32768 -np 4 -ub 256 "
    "--cache-type-k q8_0 -ctv q8_0 -fa on -ngl 99 --port 80 --jinja"
)
OF_LLAMA = {
    "scheduler.max_model_len": 8192,
    "engine.n_parallel": 4,
    "engine.kv_unified": False,
    "engine.n_ubatch": 256,
    "engine.type_k": "q8_0",
    "engine.type_v": "q8_0",
    "engine.flash_attn": True,
    "weights": "q8_0",
}
TRT = (
    "trtllm-serve serve meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --tp_size 2 "
    "--max_seq_len 8192 --max_batch_size 64 --kv_cache_free_gpu_memory_fraction 0.8 "
    "--extra_llm_api_options x.yaml --trust_remote_code"
)
OF_TRT = {
    "parallel.tensor_parallel_size": 2,
    "scheduler.max_model_len": 8192,
    "scheduler.max_num_seqs": 64,
    "engine.free_gpu_memory_fraction": 0.8,
}
CARD = "device=h100_80gb"


@pytest.mark.parametrize("before", ["", "$ CUDA_VISIBLE_DEVICES=0 ", "nohup ./build/bin/"])
def test_flags_of_llama_server_are_read_in_every_form(before: str) -> None:
    for line in (LLAMA, LLAMA.replace(" -", " \\\n  -"), LLAMA.replace("-c ", "--ctx-size=")):
        found = read_llama_server(f"{before}{line} && echo done")
        assert found is not None and found.settings == OF_LLAMA
        assert found.unknown == ("--port", "--jinja")
        assert found.shape == "Meta-Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"engine.n_parallel": 4, "engine.kv_unified": True}),
        ("-c 8000", {"engine.n_parallel": 4, "scheduler.max_model_len": 2000}),
        ("-c 8000 -np 2 -kvu", {"engine.kv_unified": True, "scheduler.max_model_len": 4000}),
        ("-c 8000 -no-kvu", {"engine.kv_unified": True}),  # four without a word, and they share
        ("-b 128", {"engine.n_ubatch": 128}),  # a step is no larger than a batch
        ("-fa off --swa-full", {"engine.flash_attn": False, "engine.swa_full": True}),
        ("-fa --jinja", {"engine.flash_attn": True}),
    ],
)
def test_what_llama_server_takes_of_its_flags(flags: str, expected: dict[str, object]) -> None:
    found = read_llama_server(f"llama-server -m x.gguf {flags}")
    assert found is not None and found.settings.items() >= expected.items()


@pytest.mark.parametrize(
    ("model", "shape", "weights", "said"),
    [
        ("-m Qwen3-14B-Q4_K_M.gguf", "Qwen3-14B", "q4_k_m", ()),
        ("-m Qwen3-14B-F16-00001-of-00003.gguf", "Qwen3-14B", None, ()),
        ("-hf unsloth/Qwen3-14B-GGUF", "Qwen3-14B", "q4_k_m", ()),
        ("-hf unsloth/Qwen3-14B-GGUF:Q6_K", "Qwen3-14B", "q6_k", ()),
        ("-m Qwen3-14B-IQ3_M.gguf", "Qwen3-14B", "q4_0", ("IQ3_M weights (planned as q4_0)",)),
        ("-m Qwen3-14B.q4_1.gguf", "Qwen3-14B", "q5_0", ("q4_1 weights (planned as q5_0)",)),
    ],
)
def test_a_file_s_name_says_its_model_and_how_its_weights_are_stored(
    model: str, shape: str, weights: str | None, said: tuple[str, ...]
) -> None:
    found = read_llama_server(f"llama-server {model}")
    assert found is not None and (found.shape, found.unknown) == (shape, said)
    assert found.settings.get("weights") == weights


def test_what_changes_memory_and_is_not_planned_is_said() -> None:
    found = read_llama_server("llama-server -m x.gguf -ngl 20 -md d.gguf --no-kv-offload -c -1")
    assert found is not None and found.unknown == (
        "-md (the draft model's memory is not planned)",
        "--no-kv-offload (planned on the cards)",
        "-c -1",
        "-ngl 20 (planned with every layer on the cards)",
    )


def test_flags_of_trtllm_serve_are_read_and_its_file_is_said_not_to_be() -> None:
    for line in (TRT, TRT.replace("serve serve", "serve"), TRT.replace("_size ", "-size=")):
        found = read_trtllm_serve(line)
        assert found is not None and found.settings == OF_TRT
        assert found.model == "meta-llama/Llama-3.1-8B-Instruct"
        file = "--extra-llm-api-options (its kv_cache_config wins over what was planned)"
        assert found.unknown == ("--host", file, "--trust-remote-code")
    first = read_trtllm_serve("trtllm-serve --port 8000 org/m")
    assert first is not None and first.model == "org/m"


@pytest.mark.parametrize(
    "text", ["", "pip install llama-server", "vllm serve org/m", "ollama run x"]
)
def test_other_text_is_no_line_of_these(text: str) -> None:
    assert read_llama_server(text) is None or "pip" in text
    assert read_trtllm_serve(text) is None


@pytest.mark.parametrize(
    ("line", "settings", "engine"),
    [(LLAMA, OF_LLAMA, "llama_cpp"), (TRT, OF_TRT, "tensorrt_llm")],
    ids=["llama.cpp", "TensorRT-LLM"],
)
def test_a_line_is_planned_as_run_plans_it(
    line: str, settings: dict[str, object], engine: str
) -> None:
    answer = doctor(Path(line), CARD)
    said = [f"{key}={value}" for key, value in settings.items()]
    asked = prepared_case(["model=llama", CARD, f"engine={engine}", "backend=meta", *said])
    ran = asked.config.plugins["command"].make(Command).run(asked, None)
    assert (answer.status, answer.exit_code) == (ran.status, ran.exit_code) == ("fits", 0)
    again = read_server_line(answer.fields["paste"])
    in_its_file = {key for key in settings if key.endswith("memory_fraction")}
    assert again is not None
    assert {key: again.settings.get(key) for key in settings if key not in in_its_file} == {
        key: value for key, value in settings.items() if key not in in_its_file
    }
    start = json.dumps(ran.document, default=str)  # the same command but for the model's name
    assert (
        answer.fields["paste"].rpartition(" --parallel ")[2].rpartition(" --tp_size ")[2] in start
    )
    assert engine != "tensorrt_llm" or "free_gpu_memory_fraction: 0.8" in answer.fields["paste"]
    assert f"planned with engine={engine}; not read, and left out: " in text_of(answer)
    assert "vllm" not in text_of(answer).lower()


def test_a_line_of_llama_server_that_does_not_fit_is_refused_with_planned_ways() -> None:
    answer = doctor(Path(LLAMA.replace("-c 32768", "-c 400000")), "device=l4")
    assert answer.exit_code == 1 and answer.status == "does_not_fit"
    assert "planned, and fits" in text_of(answer) and not answer.fields["paste"]


def test_a_server_without_a_length_shares_the_model_s_context() -> None:
    answer = doctor(Path("llama-server -m Meta-Llama-3.1-8B-Q8_0.gguf -np 4"), CARD)
    assert "4 requests of 32,768 tokens at once" in text_of(answer)


def test_a_model_that_no_file_describes_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="a model whose shape kvpipe has"):
        doctor(Path("llama-server -m nobody-knows-7B-Q4_0.gguf"), CARD)
