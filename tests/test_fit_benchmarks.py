"""`kvpipe fit-speed` of what benchmarks write: JSON, tables, printed; each figure by hand."""

from __future__ import annotations

import json

import pytest

from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.logs.benchmarks import benchmark_samples, may_be_benchmark, printed_samples
from kvpipe.logs.throughput import Throughput

# 1,000 tokens a second at 8 ms each: eight decode at once; 300 read and half of 200 written each.
SERVED = {
    "completed": 50,
    "total_input_tokens": 50 * 300,
    "total_output_tokens": 50 * 200,
    "output_throughput": 1000.0,
    "mean_ttft_ms": 80.0,
    "mean_tpot_ms": 8.0,
}
EIGHT = Throughput(line=1, engine="benchmark", users=8, tokens_per_s=1000.0, tokens=8 * 400)
PRINTED = """============ Serving Benchmark Result ============
Successful requests:                     50
Benchmark duration (s):                  10.00
Total input tokens:                      15000
Total generated tokens:                  10000
Output token throughput (tok/s):         1000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          80.00
Mean TPOT (ms):                          8.00
Median TPOT (ms):                        7.00"""
LLAMA = """build_commit,n_prompt,n_gen,n_depth,avg_ts
abc,512,0,0,5000.5
abc,0,128,0,98.5
abc,0,128,4096,"80.25"
abc,512,128,0,300.0
"""
OWN = "users,tokens_each,tokens_per_second\n1,2048,30.5\n4,,100\n\n"


def placed(sample: Throughput, line: int) -> Throughput:
    return Throughput(**{**vars(sample), "line": line})


def test_a_result_file_is_read_alone_as_a_list_and_a_line_each() -> None:
    failed = {**SERVED, "output_throughput": 0, "mean_tpot_ms": 0.0}
    three = [SERVED, failed, SERVED]
    assert benchmark_samples(json.dumps(SERVED, indent=1)) == [EIGHT]
    both = [EIGHT, placed(EIGHT, 3)]
    assert benchmark_samples(json.dumps(three)) == both
    assert benchmark_samples("\n".join(map(json.dumps, three))) == both


def test_a_table_of_a_sweep_is_a_sample_a_row() -> None:
    header = ",".join(["model", *SERVED])
    row = ",".join(["llama", *map(str, SERVED.values())])
    assert benchmark_samples(f"{header}\n{row}\n{row}\n") == [placed(EIGHT, 2), placed(EIGHT, 3)]


def test_what_is_printed_at_the_end_is_read_where_it_stands() -> None:
    lines = ["INFO starting", *PRINTED.split("\n"), "done"] * 2
    found = list(printed_samples(enumerate(lines, 1)))
    assert found == [placed(EIGHT, 10), placed(EIGHT, 10 + len(lines) // 2)]


def test_of_llama_bench_only_answers_count_at_their_depth() -> None:
    told = {"engine": "llama-bench", "users": 1}
    expected = [
        Throughput(line=3, tokens_per_s=98.5, tokens=64, **told),
        Throughput(line=4, tokens_per_s=80.25, tokens=4096 + 64, **told),
    ]
    assert benchmark_samples(LLAMA) == expected
    rows = [line.split(",") for line in LLAMA.replace('"', "").strip().split("\n")]
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert benchmark_samples(json.dumps(records)) == [
        placed(each, each.line - 1) for each in expected
    ]


def test_a_table_of_ones_own_needs_users_and_speed() -> None:
    assert benchmark_samples(OWN) == [
        Throughput(line=2, engine="a table", users=1, tokens_per_s=30.5, tokens=2048),
        Throughput(line=3, engine="a table", users=4, tokens_per_s=100.0),
    ]
    assert not may_be_benchmark("a,b\n1,2\n") and benchmark_samples("a,b\n1,2\n") == []
    assert benchmark_samples('{"log": "Avg generation throughput: 3"}') == []


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "", "fast", "1e13"])
def test_a_figure_that_is_none_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="tokens_per_second of record 2, got"):
        benchmark_samples(f"users,tokens_per_second\n4,{wrong}\n")
    with pytest.raises(ConfigError, match="mean_tpot_ms of record 1"):
        benchmark_samples(json.dumps({**SERVED, "mean_tpot_ms": [1]}))


def test_the_share_is_what_the_bound_says_by_hand(tmp_path, capsys, monkeypatch) -> None:
    """Weights and eight caches of 400 tokens, once a step; beside the log of the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_text(
        json.dumps({**SERVED, "mean_tpot_ms": 40.0, "output_throughput": 200.0})
    )
    (tmp_path / "out.txt").write_text(
        PRINTED.replace(" 8.00", " 40.00").replace("1000.00", "200.00")
    )
    best = (864e9) / ((8030261248 - 128256 * 4096) * 2 + 8 * 400 * 131072)
    for name in ("result.json", "out.txt"):
        words = ["fit-speed", name, "model=llama", "device=l40s", f"hydra.run.dir=out/{name}"]
        assert run(words) == 0
        document = json.loads((tmp_path / "out" / name / "speed.json").read_text())
        [sample] = document["samples"]
        assert (sample["users"], sample["tokens_each"]) == (8, 400)
        assert sample["share"] == pytest.approx(25 / best, rel=1e-3)
        assert "prompts were computed meanwhile" in capsys.readouterr().out
    assert run(["fit-speed", "out.txt", "model=llama", "device=cpu"]) == 2
