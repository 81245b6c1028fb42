"""`kvpipe doctor`: what is pasted -> at most twenty lines; the field reports are its cases."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from case_requests import prepared_case
from test_field_reports import ROWS, RUNS

from kvpipe.commands.base import Command
from kvpipe.commands.diagnosis import MOST_LINES
from kvpipe.engines.pasted import Pasted, read_pasted
from kvpipe.engines.pasted_line import changed_line, in_flags, words_of
from kvpipe.engines.serve import read_serve_line
from kvpipe.engines.serve_flags import refused_flag
from kvpipe.errors import ConfigError, KvpipeError
from kvpipe.front.flags import flags_to_words
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.pipeline import execute
from kvpipe.report.base import Answer

CASES = Path(__file__).parent / "cases"
LLAMA = ["model=llama", "device=h100_80gb"]


def doctor(path: Path, *said: str) -> Answer:
    words = [word.replace("@conf", str(CASES / "conf")) for word in said]
    asked = ["command=doctor", f"command.path='{path}'", *words]
    prepared = prepared_case(asked)
    answer: Answer = prepared.config.plugins["command"].make(Command).run(prepared, None)
    return answer


def text_of(answer: Answer) -> str:
    """Unwrapped, so that a sentence can be looked for."""
    return "\n".join(line.text for line in answer.lines(10_000))


def pasted(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pasted.txt"
    path.write_text(text, encoding="utf-8")
    return path


# --- command lines ---
@pytest.mark.parametrize(
    "text",
    [
        "$ vllm serve org/m --max-model-len 8192 -tp 2 --kv-cache-dtype fp8 --port 80",
        "python3 -m vllm.entrypoints.openai.api_server --model org/m --max-model-len=8192 \\\n"
        "  --tensor-parallel-size=2 --kv-cache-dtype=fp8 --port=80",
        'FROM vllm/vllm-openai:v0.17.0\nCMD ["vllm", "serve", "org/m", "--max-model-len", "8192", '
        '"-tp", "2", "--kv-cache-dtype", "fp8", "--port", "80"]\n',
        "      args:\n        - --model=org/m\n        - --max-model-len=8192\n"
        "        - --tensor-parallel-size=2\n        - --kv-cache-dtype=fp8\n        - --port=80\n",
        'args: ["--model", "org/m", "--max_model_len", "8192", "-tp", "2", "--kv-cache-dtype", '
        '"fp8", "--port", "80"]',
        "docker run --gpus all vllm/vllm-openai --model org/m --max-model-len 8192 -tp 2 "
        "--kv-cache-dtype fp8 --port 80",
    ],
)
def test_a_command_is_read_in_every_form_that_people_paste(text: str) -> None:
    assert read_pasted(text) == Pasted(
        model="org/m",
        settings={
            "scheduler.max_model_len": 8192,
            "parallel.tensor_parallel_size": 2,
            "cache.cache_dtype": "fp8",
        },
        unknown=("--port",),
    )


@pytest.mark.parametrize(("written", "value"), [("32k", 32000), ("32K", 32768), ("1m", 10**6)])
def test_multiples_are_the_servers_own(written: str, value: int) -> None:
    found = read_pasted(f"vllm serve m --max-model-len {written}")
    assert found is not None and found.settings == {"scheduler.max_model_len": value}


@pytest.mark.parametrize("written", [".5", "5e-1", "5E-1", "0.5", "0.50000000", "50e-2"])
def test_a_number_is_read_as_the_server_reads_it(written: str) -> None:
    found = read_pasted(f"vllm serve m --gpu-memory-utilization {written}")
    assert found is not None
    assert found.settings == {"cache.gpu_memory_utilization": float(written)}


@pytest.mark.parametrize("written", ["auto", "-1"])
def test_both_words_for_the_length_that_fits_are_known(written: str) -> None:
    for line in (f"--max-model-len {written}", f"--max-model-len={written}"):
        found = read_pasted(f"vllm serve m {line} --port 80")
        assert found is not None and found.settings == {"scheduler.max_model_len": "auto"}


@pytest.mark.parametrize("text", ["", "ls -la --color", "nginx: [emerg] --with bind()", "\0" * 99])
def test_other_text_is_no_command(text: str) -> None:
    assert read_pasted(text) is None


def test_a_command_that_does_not_fit_is_answered_with_a_line_that_does(tmp_path: Path) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072 # on an RTX 3090"
    answer = doctor(pasted(tmp_path, line))
    text = text_of(answer)
    assert answer.exit_code == 1 and "one request of 131,072 tokens needs" in text
    model, settings = read_serve_line(text.split("\n")[-1])
    assert model == "meta-llama/Llama-3.1-8B-Instruct"
    asked = ["model=llama", "device=rtx_3090", "backend=meta", "engine=vllm_0_33", *settings]
    plan = execute(prepared_request(asked).prepared).plan
    assert plan.capacity is not None and plan.capacity.requests_at_peak >= 1


def test_a_line_without_a_length_is_refused_where_the_models_context_does_not_fit(
    tmp_path: Path,
) -> None:
    """The server takes the model's context and does not lower it, unless it is told to."""
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
    silent = doctor(pasted(tmp_path, line), "device=rtx_4090")
    stated = doctor(pasted(tmp_path, f"{line} --max-model-len 131072"), "device=rtx_4090")
    assert silent.exit_code == stated.exit_code == 1
    trouble = [text for text in text_of(silent).split("\n") if text.startswith("!")]
    assert trouble == [text for text in text_of(stated).split("\n") if text.startswith("!")]
    assert trouble[0].startswith("! --max-model-len: one request of 131,072 tokens needs 8,193")
    paste = str(silent.fields["paste"])
    assert doctor(pasted(tmp_path, paste), "device=rtx_4090").exit_code == 0
    for fits in (f"{line} --max-model-len auto", f"{line} --max-model-len=-1"):
        assert doctor(pasted(tmp_path, fits), "device=rtx_4090").exit_code == 0
    told = doctor(pasted(tmp_path, line), "device=rtx_4090", "scheduler.max_model_len=8192")
    assert told.exit_code == 0 and " --max-model-len 8192" in str(told.fields["paste"])


LINE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072"


def test_the_pasted_line_comes_back_with_only_what_must_change(tmp_path: Path) -> None:
    line = f"{LINE} --gpu-memory-utilization 0.85 --enforce-eager --port 9000"
    answer = doctor(pasted(tmp_path, line), "device=l4")
    longest = re.search(r"Planned, and fits: --max-model-len (\d+)", text_of(answer))
    assert longest is not None
    assert answer.fields["paste"] == line.replace("131072", longest[1])
    assert "graphs" not in text_of(answer)  # an eager engine captures none


def test_what_kvpipe_was_told_beside_the_line_stands_in_it(tmp_path: Path) -> None:
    answer = doctor(pasted(tmp_path, f"{LINE} --port 9000"), "device=l4", "parallel=tp2")
    assert answer.exit_code == 0
    assert answer.fields["paste"] == f"{LINE} --port 9000 --tensor-parallel-size 2"


@pytest.mark.parametrize(
    ("line", "changes", "expected"),
    [
        (
            "$ HF_HOME=$CACHE vllm serve org/m -tp 1 --max_model_len=9k --port $PORT # on an L4",
            {"scheduler.max_model_len": 4096, "parallel.tensor_parallel_size": 2},
            "HF_HOME=$CACHE vllm serve org/m -tp 2 --max_model_len=4096 --port $PORT",
        ),
        (
            "docker run --gpus all vllm/vllm-openai --model org/m --num-gpu-blocks-override 9",
            {"cache.num_gpu_blocks_override": None, "cache.cache_dtype": "fp8"},
            "docker run --gpus all vllm/vllm-openai --model org/m --kv-cache-dtype fp8",
        ),
        (
            'args: ["--model", "org/m", "--hf-overrides", "{\\"a\\": 1}"]',
            {"profiling.enforce_eager": True, "profiling.other_instances_bytes": 0},
            "vllm serve org/m --hf-overrides '{\"a\": 1}' --enforce-eager",
        ),
        (
            "vllm serve org/m --no-enable-prefix-caching",
            {"cache.enable_prefix_caching": True, "weights.load_as": "fp8", "weights.name": "x"},
            "vllm serve org/m --enable-prefix-caching --quantization fp8",
        ),
        ("vllm serve org/m", {"cache.may_exceed_device": True}, ""),
    ],
)
def test_a_change_is_made_where_its_flag_stands(
    line: str, changes: dict[str, object], expected: str
) -> None:
    found = read_pasted(line)
    assert found is not None and changed_line(found, changes) == expected


def test_a_server_prints_the_line_that_started_it() -> None:
    found = read_pasted((FAILED / "free_memory.log").read_text())
    assert found is not None and found.unknown == ("--port",)
    assert found.settings["profiling.enforce_eager"] is True
    assert shlex.join([*found.program, *found.arguments]) == (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --port 9000 --max-model-len 32768 "
        "--gpu-memory-utilization 0.85 --enforce-eager"
    )


@pytest.mark.full
def test_a_checkpoints_name_says_how_its_weights_are_stored() -> None:
    """32.8 billion parameters: 61 GiB in 16 bits, 18 in AWQ."""
    said = "device=l40s"
    answer = doctor(Path("vllm serve Qwen/Qwen3-32B-AWQ --max-model-len 8192"), said)
    assert answer.exit_code == 0 and "weights 18.00 GiB (exact)" in text_of(answer)
    eight = doctor(Path("vllm serve Qwen/Qwen3-32B -q fp8 --max-model-len 8192"), said)
    assert eight.exit_code == 0 and "weights 31.96 GiB (exact)" in text_of(eight)
    wide = doctor(Path("vllm serve Qwen/Qwen3-32B --max-model-len 8192"), said)
    assert wide.exit_code == 1 and "weights 61.02 GiB" in text_of(wide)
    # 8 bits leave between 0.91 and 7.61 GiB for 2 of cache: the line has what surely fits
    told, _, maybe = text_of(wide).partition("may fit, since the memory is an estimate: ")
    assert "--quantization fp8" in maybe and "--tensor-parallel-size 2" in told
    assert "--tensor-parallel-size 2" in wide.fields["paste"]


def test_weights_that_need_another_checkpoint_are_no_flag_of_the_line() -> None:
    line = read_pasted("vllm serve org/m")
    assert line is not None and changed_line(line, {"weights": "awq"}) == ""
    assert changed_line(line, {"weights": "fp8"}) == "vllm serve org/m --quantization fp8"
    assert words_of({"weights": "awq"}) == "weights=awq"


@pytest.mark.parametrize("word", ["awq", "gptq_marlin", "compressed-tensors", "modelopt_fp4"])
def test_a_checkpoint_that_a_flag_cannot_read_is_told_and_the_flag_left_out(word: str) -> None:
    line = f"vllm serve meta-llama/Llama-3.1-8B-Instruct --quantization {word} --max-model-len 8192"
    answer = doctor(Path(line), "device=l4")
    told = text_of(answer)
    assert answer.exit_code == 1
    assert f"! --quantization {word} reads a checkpoint in " in told
    assert "no engine converts to it as it loads" in told and "not read" not in told
    assert answer.fields["paste"] == line.replace(f" --quantization {word}", "")
    assert "weights 14.96 GiB" in told  # as published, which the line to run loads


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve meta-llama/Llama-3.1-8B-Instruct -q fp8",
        "vllm serve meta-llama/Llama-3.1-8B-Instruct -q bitsandbytes",
        "vllm serve Qwen/Qwen3-8B-AWQ -q awq_marlin",
        "vllm serve org/Qwen3-8B-quantized -q gptq",
        "vllm serve openai/gpt-oss-20b -q mxfp4",
    ],
)
def test_what_an_engine_converts_or_the_checkpoint_is_stays(line: str) -> None:
    answer = doctor(Path(f"{line} --max-model-len 8192"), "device=h100_80gb")
    assert "reads a checkpoint" not in text_of(answer)
    assert line in str(answer.fields["paste"])


@pytest.mark.parametrize(("method", "reads"), [("awq", True), ("gptq", False), ("", False)])
def test_a_checkpoint_in_a_folder_is_of_the_kind_that_its_config_says(
    method: str, reads: bool, tmp_path: Path
) -> None:
    config: dict[str, object] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
    }
    if method:
        config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = doctor(Path(f"vllm serve {tmp_path} -q awq"), "device=l4")
    assert ("reads a checkpoint" not in text_of(answer)) == reads
    assert ("-q awq" in str(answer.fields["paste"])) == reads


def test_flags_that_stand_for_nothing_here_are_named() -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --enable-lora --port 9 --quantization bitsandbytes"
    text = text_of(doctor(Path(line), "device=l4"))
    assert "not read, and left as they are: --enable-lora, --port, --quantization bitsandbytes" in (
        text
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("flag", "said", "told"),
    [
        ("--foo 3", [], "no vLLM that was read has --foo (0.17.0, 0.28.0, 0.32.0, 0.33.0)"),
        ("--max-modle-len 8192", [], "did you mean --max-model-len?"),
        ("--swap-space 3", [], "vLLM 0.33.0 has no --swap-space: it is gone in 0.28.0"),
        ("--swap-space 3", ["engine=vllm", "engine.version=0.17.0"], ""),
        (
            "--max-num-active-seqs 3",
            ["engine=vllm", "engine.version=0.17.0"],
            "has no --max-num-ac",
        ),
        ("--kv-cache-memory-bytes 9", ["engine=vllm", "engine.version=0.8.5"], "from 0.11.0 on"),
        ("--foo 3", ["engine=vllm", "engine.version=0.8.5"], ""),  # of which no parser was read
        ("--no-enable-log-requests -O3 --compilation-config.mode 3", [], ""),
    ],
)
def test_a_flag_that_the_release_does_not_have_is_named_and_left_out(
    flag: str, said: list[str], told: str
) -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --max-model-len 4096"
    answer = doctor(Path(f"{line} {flag}"), "device=l4", *said)
    text = text_of(answer)
    if not told:
        assert answer.exit_code == 0 and "has no --" not in text
        return
    assert told in text and answer.exit_code == 1
    assert ("is supposed: say engine=vllm" in text) is not said
    if "memory" not in flag:  # a flag of a setting is planned as it is
        assert answer.fields["paste"].startswith(line) and "--foo" not in answer.fields["paste"]


@pytest.mark.full
def test_a_batch_below_a_prompt_that_is_not_cut_is_told() -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --max-model-len 8192 --max-num-batched-tokens 2048"
    answer = doctor(Path(f"{line} --no-enable-chunked-prefill"), "device=l4")
    assert answer.exit_code == 1 and "--max-num-batched-tokens: expected at least" in text_of(
        answer
    )
    assert answer.fields["paste"] == (f"{line.replace('2048', '8192')} --no-enable-chunked-prefill")
    assert doctor(Path(line), "device=l4").exit_code == 0


def test_a_mistyped_flag_is_named_with_its_neighbour() -> None:
    told = refused_flag("--max-modle-len", "0.33.0")
    assert told.startswith("no vLLM that was read has") and "did you mean --max-model-len" in told
    assert refused_flag("--max-model-len", "0.33.0") == ""


def test_every_problem_is_told_beside_the_missing_device() -> None:
    line = "vllm serve Qwen/Qwen3-32B --max-model-len 9999999 --kv-cache-dtype foo"
    with pytest.raises(ConfigError) as caught:
        doctor(Path(line))
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["device", "cache.cache_dtype", "scheduler.max_model_len"]


@pytest.mark.parametrize("word", ["", " "])
def test_an_empty_word_is_called_so(word: str) -> None:
    prepared = prepared_case(["command=doctor", f"command.path='{word}'"])
    with pytest.raises(ConfigError, match="got an empty word") as caught:
        prepared.config.plugins["command"].make(Command).run(prepared, None)
    assert "kvpipe doctor FILE" in str(caught.value)


@pytest.mark.full
def test_bytes_that_hold_one_request_are_told_as_such() -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --kv-cache-memory-bytes 100000000 --max-model-len 4096"
    text = text_of(doctor(Path(line), "device=l4"))
    assert re.search(r"--kv-cache-memory-bytes \d+ \(one request of the full length\)", text)


# --- logs ---
FAILED = CASES / "failed_starts"


@pytest.mark.parametrize("path", sorted((CASES / "logs").glob("*.log")), ids=lambda p: p.stem)
def test_every_log_is_answered_in_at_most_twenty_lines(path: Path) -> None:
    answer = doctor(path, *LLAMA)
    lines = list(answer.lines(80))
    assert 2 <= len(lines) <= MOST_LINES
    assert lines[0].text.startswith("the log of a start: ")
    assert "GiB" in text_of(answer)


def test_a_start_that_was_refused_is_explained_with_its_own_figures(tmp_path: Path) -> None:
    log = (
        "INFO Initializing a V1 LLM engine (v0.10.0) with config: model='/m', max_seq_len=29000\n"
        "INFO Available KV cache memory: 2.89 GiB\n"
        "ERROR ValueError: To serve at least one request with the models's max seq len (29000), "
        "(3.54 GiB KV cache is needed, which is larger than the available KV cache memory (2.89 "
        "GiB). Based on the available memory, the estimated maximum model length is 23664.\n"
    )
    answer = doctor(pasted(tmp_path, log), "model=llama", "device=rtx_3090")
    text = text_of(answer)
    assert answer.exit_code == 1
    assert "3.54 GiB needed, 2.89 GiB there, 23,664 tokens estimated to fit" in text
    assert "reproduced by the rules of vllm 0.10.0: needed 3.54 GiB, longest 23664" in text


def test_a_trouble_that_is_not_known_is_called_unknown_with_its_figures(tmp_path: Path) -> None:
    log = (
        "INFO Available KV cache memory: 4.00 GiB\nINFO GPU KV cache size: 77,777 tokens\n"
        "INFO Maximum concurrency for 8,192 tokens per request: 9.49x\n"
    )
    text = text_of(doctor(pasted(tmp_path, log), *LLAMA))
    assert "unknown: these figures do not add up" in text and "77777" in text


def test_a_healthy_log_has_no_trouble(tmp_path: Path) -> None:
    log = "INFO Available KV cache memory: 4.00 GiB\nINFO GPU KV cache size: 32,768 tokens\n"
    said = [*LLAMA, "scheduler.max_model_len=8192", "scheduler.max_num_seqs=2"]
    answer = doctor(pasted(tmp_path, log), *said)
    assert answer.exit_code == 0 and "nothing is wrong that kvpipe knows of" in text_of(answer)


def test_twice_the_cards_hold_half_the_weights_each() -> None:
    """What the log leaves for the cache is of one card with all the weights."""
    answer = doctor(FAILED / "too_long.log", "device=l4")
    text = text_of(answer)
    assert "1,597 fit (3.1 GiB). Planned" in text  # "Lower it to 25,536" is the middle's
    surely = (
        "--max-model-len 25488 (the longest that surely runs), or --tensor-parallel-size 2, or "
    )
    assert f"Planned, and fits: {surely}" in text
    assert "--gpu-memory-utilization 0.95 --max-model-len" in text
    assert "--kv-cache-dtype fp8 --max-model-len 51" in text  # twice 25,488
    assert "--quantization fp8 --max-model-len" in text
    asked = ["model=llama", "device=l4", "backend=meta", "engine=vllm", "engine.version=0.10.2"]
    asked += ["parallel.tensor_parallel_size=2", "scheduler.max_model_len=131072"]
    asked += ["cache.gpu_memory_utilization=0.85", "profiling=estimate"]
    plan = execute(prepared_request(asked).prepared).plan
    assert plan.capacity is not None and plan.capacity.requests_at_peak >= 1


def test_a_higher_share_of_the_card_is_all_cache(tmp_path: Path) -> None:
    log = (FAILED / "too_long.log").read_text().replace("131072", "32768")
    log = log.replace("16.00 GiB", "4.00 GiB")
    text = text_of(doctor(pasted(tmp_path, log), "device=l4"))
    # 0.88 GiB more are needed than the log's 3.12, and a hundredth of the card is 0.22.
    assert "--gpu-memory-utilization 0.9" in text or "--gpu-memory-utilization 0.89" in text


@pytest.mark.parametrize("path", sorted(FAILED.glob("*.log")), ids=lambda p: p.stem)
@pytest.mark.parametrize("width", [72, 80])
def test_lines_are_wrapped_and_the_line_to_run_is_one_for_a_shell(path: Path, width: int) -> None:
    answer = doctor(path, "device=l4")
    lines = [line.text for line in answer.lines(width)]
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > width] == []
    starts = [at for at, line in enumerate(lines) if line.startswith("to run")]
    assert len(starts) == bool(answer.fields["paste"])
    if not starts:  # on this card nothing that was planned starts
        return
    pasted_text = "\n".join(lines[starts[0] + 1 :])
    assert shlex.split(pasted_text.replace("\\\n", " ")) == shlex.split(answer.fields["paste"])


@pytest.mark.parametrize(("name", "told"), [("nosuch.log", "no such file"), ("", "a folder")])
def test_a_word_that_is_no_file_is_called_so(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        doctor(tmp_path / name)
    (problem,) = caught.value.problems
    assert problem.key == "command.path" and told in problem.got
    assert "profiling" not in str(problem)


def test_a_refusal_is_explained_before_the_card_is_asked_for() -> None:
    answer = doctor(FAILED / "too_long.log")
    assert "16.00 GiB needed, 3.12 GiB there, 25,552 tokens estimated to fit" in text_of(answer)
    assert answer.exit_code == 2 and answer.status == "wrong_request"
    assert [line.split(":")[0] for line in answer.complaints] == ["device"]
    assert "say --on CARD, such as --on h100: with it, what makes it fit" in answer.complaints[0]
    whole = doctor(FAILED / "too_long.log", "device=h100_80gb")
    assert "Planned, and fits" in text_of(whole) and whole.fields["paste"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("free_memory.log", "other processes hold 12.18 GiB"),
        ("out_of_memory.log", "other processes hold 7.30 GiB"),
    ],
)
def test_a_card_that_others_hold_is_told_whatever_else_is_missing(
    tmp_path: Path, name: str, told: str
) -> None:
    text = (FAILED / name).read_text().replace("meta-llama/Llama-3.1-8B", "nobody/knows-this")
    answer = doctor(pasted(tmp_path, text))
    assert told in text_of(answer) and answer.exit_code == 2
    assert [line.split(":")[0] for line in answer.complaints] == ["model"]


def test_too_little_free_memory_is_told_with_the_share_that_is_left() -> None:
    answer = doctor(FAILED / "free_memory.log")
    text = text_of(answer)
    assert answer.exit_code == 1
    assert "9.87 of 22.05 GiB free" in text and "--gpu-memory-utilization 0.85 asks for" in text
    assert "other processes hold 12.18 GiB" in text and "nvidia-smi" in text
    # 9.87 / 22.05 = 0.4476; 8,030,261,248 parameters of 2 bytes are 14.96 GiB.
    assert "at most 0.44, 9.68 GiB, and the weights alone take 14.96" in text
    paste = answer.fields["paste"]
    assert "to run once the card is free (planned):" in text
    assert "--gpu-memory-utilization 0.85 --enforce-eager" in paste and "--port 9000" in paste


def test_a_small_model_is_told_the_share_that_fits_beside_the_others(tmp_path: Path) -> None:
    log = (FAILED / "free_memory.log").read_text()
    log = log.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-0.6B")
    answer = doctor(pasted(tmp_path, log))
    assert "Beside them --gpu-memory-utilization 0.44 fits" in text_of(answer)
    assert "--gpu-memory-utilization 0.44" in answer.fields["paste"]
    assert "to run (planned):" in text_of(answer)


def test_a_model_that_is_larger_than_what_is_free_is_not_advised(tmp_path: Path) -> None:
    log = (FAILED / "free_memory.log").read_text()
    log = log.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B")
    log = log.replace("9.87/22.05", "20.10/79.19").replace("18.74", "67.31")
    answer = doctor(pasted(tmp_path, log), "device=h100_80gb")
    text = text_of(answer)
    assert "other processes hold 59.09 GiB" in text
    assert "can be at most 0.25" in text and "the weights alone take 61.0" in text
    assert "alone on the card" in text


def test_a_card_that_ran_out_is_told_with_what_others_hold_and_the_weights() -> None:
    answer = doctor(FAILED / "out_of_memory.log")
    text = text_of(answer)
    assert answer.exit_code == 1 and "torch.OutOfMemoryError: CUDA out of memory" in text
    assert "0.88 GiB more were asked for with 0.06 of 22.05 GiB free" in text
    assert "the engine itself held 14.68 GiB" in text
    assert "other processes hold 7.30 GiB" in text and "the weights alone take 14.96" in text


def test_a_card_that_the_engine_filled_alone_is_told_so(tmp_path: Path) -> None:
    log = (FAILED / "out_of_memory.log").read_text()
    log = log.replace("Process 3911 has 7.30 GiB memory in use. ", "").replace("14.68", "21.98")
    answer = doctor(pasted(tmp_path, log))
    text = text_of(answer)
    assert "other processes" not in text and "so no share of the card mends it" in text
    assert "this line" not in text and "--gpu-memory-utilization" not in answer.fields["paste"]
    # 0.82 GiB were lacking: so much less is planned beside the cache.
    freed = [float(gib) for gib in re.findall(r"\(([0-9.]+) GiB less beside it\)", text)]
    assert len(freed) == 3 and min(freed) >= 0.82 and "--max-num-seqs 64" in answer.fields["paste"]
    large = log.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B")
    answer = doctor(pasted(tmp_path, large), "device=l4")
    assert "the weights take 61.0" in text_of(answer)
    assert "--tensor-parallel-size" in answer.fields["paste"]


@pytest.mark.full
def test_a_start_that_filled_its_cards_is_told_what_surely_fits_before_what_may(
    tmp_path: Path,
) -> None:
    """70 billion parameters on two cards of 79 GiB: the estimate leaves 0.3 GiB, and the log says
    that even those were not there. No line was pasted, and none is spoken of."""
    log = (
        "INFO 11-30 20:01:02 [api_server.py:1289] vLLM API server version 0.11.0\n"
        "INFO 11-30 20:01:30 [gpu_model_runner.py:2392] Model loading took 65.7388 GiB and 30 s\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.11 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this "
        "process has 77.90 GiB memory in use.\n"
    )
    two = ["device=h100_80gb", "parallel.tensor_parallel_size=2"]
    answer = doctor(pasted(tmp_path, log), "model=llama_3_3_70b_instruct", *two)
    text = text_of(answer)
    surely = text.partition("Planned, and fits: ")[2].partition("Planned, and may fit")[0]
    assert "--quantization fp8" in surely and "--tensor-parallel-size 4" in surely
    assert "this line" not in text and "blocks hold" not in text
    assert doctor(pasted(tmp_path, answer.fields["paste"]), *two).status == "fits"


SIZED = (CASES / "other_starts" / "out_of_memory_beside_the_cache.log").read_text()
OTHERS = "Process 12 has 2.1 GiB memory in use. "


@pytest.mark.parametrize("log", [SIZED, SIZED.replace(OTHERS, "")])
def test_a_card_that_ran_out_beside_the_cache_is_never_told_to_hold_a_larger_one(
    tmp_path: Path, log: str
) -> None:
    answer = doctor(pasted(tmp_path, log), "device=h100_80gb")
    text = text_of(answer)
    # 1.16 asked for, 900.06 MiB free: 0.28 GiB; a hundredth of 79.19 GiB is 0.79, which is enough.
    assert "--gpu-memory-utilization 0.89 makes the cache 0.79 GiB smaller (planned)" in text
    held = int(re.search(r"--kv-cache-memory-bytes (\d+)", answer.fields["paste"])[1])
    assert 37.10 - 0.80 < held / 2**30 <= 37.10 - 0.79 + 0.005
    assert ("that frees more than the 0.28 GiB lacking" in text) == (OTHERS in log)
    assert "alone on the card" not in text and "0.97" not in text


def test_what_sizes_the_cache_is_what_is_lowered(tmp_path: Path) -> None:
    path = pasted(tmp_path, SIZED)
    answer = doctor(path, "device=h100_80gb", "cache.kv_cache_memory_bytes=39836000000")
    # 37.10 GiB less 1.16 GiB - 900.06 MiB, down to whole MiB.
    fewer = (round(37.10 * 2**30) - round(1.16 * 2**30) + round(900.06 * 2**20)) // 2**20 * 2**20
    assert f"--kv-cache-memory-bytes {fewer} makes the cache 0.28 GiB smaller" in text_of(answer)


def test_an_error_that_nothing_is_known_of_gives_no_line_to_run(tmp_path: Path) -> None:
    log = (FAILED / "out_of_memory.log").read_text().split("torch.OutOfMemoryError")[0]
    log += "ValueError: There is no module or parameter named 'lm_head' in this model.\n"
    answer = doctor(pasted(tmp_path, log), "device=l4")
    assert answer.exit_code == 1 and not answer.fields["paste"]
    assert "! it ended with: ValueError: There is no module" in text_of(answer)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "neither in"),
        (bytes(range(256)) * 64, "neither in"),
        (b"2026-01-01 nginx started\n" * 100, "neither in"),
        (b"INFO Available KV cache memory: 5.0.0.0 GiB\n", "figures of less than"),
        (b"vllm serve nobody/knows-this --max-model-len 8192", "a model whose shape kvpipe has"),
    ],
)
def test_what_is_neither_log_nor_command_is_refused(
    tmp_path: Path, content: bytes, match: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=match):
        doctor(path)


def test_the_word_after_doctor_is_its_file_and_settings_follow() -> None:
    assert words_to_overrides(["doctor", "my log.txt", "model=llama"]) == [
        "command=doctor",
        "command.path='my log.txt'",
        "model=llama",
    ]


@pytest.mark.parametrize(
    "said",
    [
        ["vllm serve org/m --max-model-len 8192 --port 80", "--on", "h100", "tp=2"],
        [
            "vllm",
            "serve",
            "org/m",
            "--max-model-len",
            "8192",
            "--port",
            "80",
            "--on",
            "h100",
            "tp=2",
        ],
        ["vllm", "--on=h100", "serve", "org/m", "tp=2", "--max-model-len", "8192", "--port", "80"],
    ],
)
def test_a_line_that_is_pasted_as_it_is_is_one_word(said: list[str]) -> None:
    assert words_to_overrides(flags_to_words(["doctor", *said])) == [
        "command=doctor",
        "command.path='vllm serve org/m --max-model-len 8192 --port 80'",
        "device=h100_80gb",
        "parallel.tensor_parallel_size=2",
    ]


@pytest.mark.parametrize(
    "before", ["CUDA_VISIBLE_DEVICES=0,1", "env A_B=x https_proxy=y", "$ A=1 B='2 3'", "nohup"]
)
def test_the_environment_before_a_pasted_line_is_part_of_it(before: str) -> None:
    line = f"{before} vllm serve org/m --max-model-len=8192"
    one = words_to_overrides(flags_to_words(["doctor", line, "--on", "h100", "tp=2"]))
    path = line.replace("'", "\\'")
    device = ["device=h100_80gb", "parallel.tensor_parallel_size=2"]
    assert one == ["command=doctor", f"command.path='{path}'", *device]
    many = words_to_overrides(flags_to_words(["doctor", *shlex.split(line), "--on", "h100"]))
    said = shlex.join(shlex.split(line)).replace("'", "\\'")
    assert many == ["command=doctor", f"command.path='{said}'", "device=h100_80gb"]
    found = read_pasted(line)
    assert found is not None and found.settings == {"scheduler.max_model_len": 8192}


def test_a_setting_before_a_pasted_line_stays_a_setting() -> None:
    words = ["doctor", "device=l4", "tp=2"]
    assert words_to_overrides(flags_to_words(words))[1:] == [
        "device=l4",
        "parallel.tensor_parallel_size=2",
    ]


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("llama-cli -m model.gguf -c 8192", "llama.cpp"),
        ("HF_X=1 ./bin/text-generation-launcher --model-id=org/m", "TGI"),
        ("lmdeploy serve api_server org/m", "LMDeploy"),
        ("ollama run llama3", "Ollama"),
    ],
)
def test_a_line_of_another_server_is_called_that(
    line: str, engine: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    told = []
    for words in ([line], shlex.split(line), [str(pasted(tmp_path, line))]):
        assert run(["doctor", *words, "--on", "l4"]) == 2
        told.append(capsys.readouterr().err)
    assert len(set(told)) == 1 and "no such file" not in told[0]
    assert f"server: the flags of others are not read, got one of {engine}" in told[0]


def test_a_pasted_line_is_answered_as_a_file_with_it_is(tmp_path: Path) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
    said = "device=h100_80gb"
    assert text_of(doctor(Path(line), said)) == text_of(doctor(pasted(tmp_path, line), said))


# --- the field reports ---
FLAGS = {
    "scheduler.max_model_len": "--max-model-len",
    "cache.gpu_memory_utilization": "--gpu-memory-utilization",
    "parallel.tensor_parallel_size": "--tensor-parallel-size",
}


def as_pasted(words: list[str]) -> tuple[str, list[str]]:
    """A report's settings as a command line, and those that no flag carries."""
    line, rest = ["vllm", "serve", "their/model"], []
    if not any(word.startswith("engine=") for word in words):
        rest.append("engine=kvpipe")  # as the report's own run
    for word in words:
        key, _, value = word.partition("=")
        if key in FLAGS and value != "auto":
            line += [FLAGS[key], value]
        else:
            rest.append(word)
    if FLAGS["scheduler.max_model_len"] not in line:  # a report's run takes what fits
        line += [FLAGS["scheduler.max_model_len"], "auto"]
    return shlex.join(line), rest


def is_said(pattern: str, text: str) -> bool:
    """The reports have kvpipe's words for settings, the doctor those of the pasted line."""
    flagged = pattern
    for name in ("max_num_seqs", "max_model_len"):
        flag = "--" + name.replace("_", "-")
        flagged = re.sub(rf"(?:scheduler\\*\.)?{name}=?", f"{flag}[= ]?", flagged)
    settings = in_flags(pattern.replace("\\.", "."))
    return any(re.search(each, text) for each in (pattern, flagged, settings))


NOTES = ("captures CUDA graphs after",)  # of the long report, where they are no trouble


# One report of each kind and its twin on every commit, all of them in the full tier.
SAMPLE = [run for run in RUNS if run[0] in ("B10", "B35")]
REST = [pytest.param(*run, marks=pytest.mark.full) for run in RUNS if run not in SAMPLE]


@pytest.mark.parametrize(("name", "number"), [*SAMPLE, *REST])
def test_a_field_report_is_diagnosed_and_its_twin_is_not(
    tmp_path: Path, name: str, number: int
) -> None:
    row, run = ROWS[name], ROWS[name]["runs"][number]
    line, said = as_pasted([*run["args"], *run.get("with", [])])
    try:
        answer = doctor(pasted(tmp_path, line), *said)
        code, text, lines = answer.exit_code, text_of(answer), len(list(answer.lines(80)))
    except KvpipeError as error:
        code, text, lines = error.exit_code, " ".join(error.lines()), len(error.lines())
    # Said of starts that the report allows: for no request, or beside weights that were smaller
    # than the model's published ones.
    is_beyond = re.search(r"[GM]iB more than \w+ has\.", text)
    is_refused = "not one request of" in text or is_beyond
    assert code == (1 if is_refused else run["exit"]), text
    assert lines <= MOST_LINES
    if row["outcome"] in ("warning", "error") and not is_beyond:
        for pattern in run.get("says", []):
            assert pattern.startswith(NOTES) or is_said(pattern, text), (pattern, text)
    for pattern in run.get("never", []):
        assert not is_said(pattern, text), (pattern, text)


@pytest.mark.parametrize(("users", "code"), [(1, 0), (2, 1)])
def test_the_users_that_were_asked_for_are_what_a_line_must_serve(tmp_path, users, code) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384"
    answer = doctor(pasted(tmp_path, line), "device=l4", f"want.requests={users}")
    assert answer.exit_code == code
    few, text = "of 2 users of 16,384 tokens, 1 run at once. May not fit: ", text_of(answer)
    assert (few.lower() in text.lower()) == ("would hold it. Planned, and fits: --" in text)
    assert (few.lower() in text.lower()) == (code == 1)


def test_a_flag_that_changes_the_memory_and_is_not_planned_is_told(tmp_path: Path) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096"
    told = "--cpu-offload-gb is not planned: it keeps so many GiB of each card's weights"
    assert told in text_of(doctor(pasted(tmp_path, f"{line} --cpu-offload-gb 20"), "device=l4"))
    assert "is not planned" not in text_of(doctor(pasted(tmp_path, line), "device=l4"))


def test_what_asks_for_more_to_be_said_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    log = CASES / "failed_starts" / "too_long.log"
    assert run(["doctor", str(log), "report=text"]) == 2
    assert "16.00" in capsys.readouterr().out and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.11.0", "mirror.io/vllm-openai:0.11.0"])
def test_the_release_of_a_pasted_image_is_the_one_that_is_planned(
    image, capsys, tmp_path, monkeypatch
) -> None:
    """Its share of the card is 0.90, not the 0.92 of newer ones."""
    monkeypatch.chdir(tmp_path)
    line = f"docker run --gpus all {image} --model meta-llama/Llama-3.1-8B --max-model-len 8192"
    assert run(["doctor", line, "device=h100"]) == 0
    out = capsys.readouterr().out
    assert "71.32 GiB" in out and "0.11.0" in out


def test_a_pasted_line_may_be_longer_than_a_file_name(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "vllm serve llama --max-model-len 8192 --served-model-name " + "a" * 600
    assert run(["doctor", line, "device=h100"]) == 0
    assert "Llama-3.1-8B" in capsys.readouterr().out
