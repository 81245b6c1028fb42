"""What an engine printed of its speed -> the share of the card's that it reached; and no public
figure is beyond the bound."""

from __future__ import annotations

import json
from statistics import median

import pytest
from throughput_records import records

from kvpipe.front.main import run
from kvpipe.logs.throughput import Throughput, throughputs

VLLM = (
    "Avg prompt throughput: {} tokens/s, Avg generation throughput: {} tokens/s, Running: {} reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: {}%"
)
SGLANG = (
    "[TP0] Decode batch. #running-req: 2, #token: 27373, token usage: 0.09, "
    "gen throughput (token/s): 33.38, #queue-req: 0"
)
LLAMA = (
    "llama_perf_context_print:        eval time =    1234.56 ms /   127 runs   "
    "(    9.72 ms per token,   102.87 tokens per second)"
)
PROMPT = LLAMA.replace("       eval time", "prompt eval time").replace("127 runs", "1024 tokens")


def read(*lines: str) -> list[Throughput]:
    return list(throughputs(enumerate(lines, 1)))


def test_each_engine_is_read_in_its_own_words() -> None:
    vllm = [VLLM.format(0.0, 99.0, 4, 1.5), VLLM.format(0.0, 101.5, 4, 2.5)]
    assert read(*vllm, SGLANG, PROMPT, LLAMA) == [
        Throughput(line=2, engine="vLLM", users=4, tokens_per_s=101.5, usage=0.025),
        Throughput(line=3, engine="SGLang", users=2, tokens_per_s=33.38, tokens=27373, usage=0.09),
        Throughput(line=5, engine="llama.cpp", users=1, tokens_per_s=102.87, tokens=1024 + 63),
    ]


@pytest.mark.parametrize(
    "last",
    [
        VLLM.format(12.5, 99.0, 4, 1.5),  # prompts were read, too
        VLLM.format(0.0, 99.0, 3, 1.5),  # somebody finished since the line before
        VLLM.format(0.0, 0.0, 4, 1.5),
        VLLM.format(0.0, 99.0, 0, 0.0),
        "Avg generation throughput: fast, Running: 4 reqs",
        "gen throughput (token/s): 33.38",
    ],
)
def test_a_line_of_anything_but_decoding_alone_is_no_sample(last: str) -> None:
    assert read(VLLM.format(0.0, 99.0, 4, 1.5), last) == []


def test_no_public_figure_is_beyond_the_bound() -> None:
    found = {record: record.share for record in records()}
    assert len(found) >= 12
    assert {record: share for record, share in found.items() if not 0 < share <= 1} == {}
    assert 0.5 < median(found.values()) < 0.75  # and the bound is no idle one


def test_the_share_is_what_the_bound_says_by_hand(tmp_path, capsys, monkeypatch) -> None:
    """Two requests of 13,686 tokens each: weights and both caches once a step."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text(SGLANG + "\n")
    words = ["fit-speed", "server.log", "model=llama", "device=l40s", "hydra.run.dir=out"]
    assert run(words) == 0
    document = json.loads((tmp_path / "out/speed.json").read_text())
    [sample] = document["samples"]
    assert (sample["users"], sample["tokens_each"]) == (2, 13686)
    assert sample["best_tokens_per_second"] == pytest.approx(
        2 / (((8030261248 - 128256 * 4096) * 2 + 2 * 13686 * 131072) / 864e9), rel=1e-3
    )
    assert document["efficiency"] == pytest.approx(33.38 / sample["best_tokens_per_second"])
    assert "trace.efficiency=0.36" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["llama_cpp", "sglang"])
def test_lines_that_print_lengths_need_no_plan(engine: str, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text({"llama_cpp": LLAMA, "sglang": SGLANG}[engine] + "\n")
    told = []
    for more in ([], [f"engine={engine}"]):
        words = ["fit-speed", "server.log", "model=llama", "device=l40s", "report=json", *more]
        assert run(words) in (0, 1)
        told.append(json.loads(capsys.readouterr().out))
    assert told[0]["samples"] == told[1]["samples"] != []


def test_a_share_of_a_pool_that_is_not_planned_names_what_to_leave_out(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [VLLM.format(0.0, 99.0, 4, 1.5), VLLM.format(0.0, 101.5, 4, 2.5)]
    (tmp_path / "server.log").write_text("\n".join(lines))
    words = ["fit-speed", "server.log", "model=llama", "device=l40s", "engine=llama_cpp"]
    assert run(words) == 2
    assert capsys.readouterr().err.endswith("got 'llama_cpp'; leave engine=llama_cpp out\n")


def test_what_has_no_bound_is_not_the_devices_fault(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text(LLAMA)
    words = ["fit-speed", "server.log", "model=llama", "device=l40s", "engine=llama_cpp"]
    assert run([*words, "--kv", "q8_0"]) == 2
    error = capsys.readouterr().err
    assert "what a step reads of a q8_0 cache is not known" in error and "bandwidth" not in error


def test_a_line_beyond_the_bound_is_left_out_of_the_median_and_the_range(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = [SGLANG, SGLANG.replace("33.38", "40.00"), SGLANG.replace("33.38", "20.00")]
    words = ["fit-speed", "server.log", "model=llama", "device=l40s", "hydra.run.dir=out"]
    told, found = [], []
    for lines in (good, [*good, SGLANG.replace("33.38", "41000000")]):
        (tmp_path / "server.log").write_text("\n".join(lines))
        code = run(words)
        folder = "out" if len(lines) == 3 else "out-1"
        found.append(json.loads((tmp_path / folder / "speed.json").read_text()))
        told.append((code, capsys.readouterr()))
    assert [code for code, _ in told] == [0, 1]
    assert found[0]["efficiency"] == found[1]["efficiency"] < 1
    assert len(found[1]["samples"]) == 4
    share = told[0][1].out.split("share reached: ")[1].split(")")[0]
    assert f"share reached: {share})" in told[1][1].out
    assert "left out of what follows: 1 line beyond the bound (line 4: " in told[1][1].out
    assert "1 line faster than this model can be" in told[1][1].err


def test_what_cannot_be_is_said(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fast.log").write_text(SGLANG.replace("33.38", "33380") + "\n")
    (tmp_path / "none.log").write_text("hello\n")
    for words, code, said in (
        (["fast.log", "device=l40s"], 1, "1 line faster than this model can be on this device"),
        (["none.log", "device=l40s"], 2, "got none in 'none.log'"),
        (["gone.log", "device=l40s"], 2, "command.path: expected an engine's log"),
        (["fast.log", "device=cpu"], 2, "device: expected one whose bandwidth is known"),
        ([], 2, "command.path: expected an engine's log, got nothing"),
    ):
        assert run(["fit-speed", *words, "model=llama"]) == code
        assert said in capsys.readouterr().err
