"""The first screen: at most 16 lines of 80 columns, with the answer first and last."""

from __future__ import annotations

import io
import json
import re

import pytest
import yaml
from report_runs import report_of

import kvpipe
from kvpipe.commands.engine_answer import answer_of_engine, planned_engine
from kvpipe.commands.run import answer_of
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Result
from kvpipe.report.first_screen import MOST_LINES, first_screen
from kvpipe.report.of_run import report_input
from kvpipe.report.sweep_table import sweep_table
from kvpipe.report.text import TextReport
from kvpipe.report.verdict import verdict_of
from kvpipe.request.confdir import CONF_DIR
from kvpipe.text.lines import whole_words

NO_COUNT = {"hf", "lfm2", "deepseek_v3_2"}  # a reader; presets without a count of parameters
PRESETS = sorted({path.stem for path in (CONF_DIR / "model").glob("*.yaml")} - NO_COUNT)


def screen(overrides: list[str], width: int = 80) -> list[str]:
    result = kvpipe.run(["backend=meta", *overrides])
    last = whole_words(result.answer.verdict.text, width)
    return [line.text for line in result.answer.screen(width)] + ["files", *last]


def checked(lines: list[str], width: int) -> None:
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert max(map(len, lines)) <= width, "\n".join(lines)


@pytest.mark.parametrize("preset", PRESETS[:: len(PRESETS) // 12])
@pytest.mark.parametrize("where", ["device=b300", "device=cpu"])
def test_a_preset_answers_on_one_screen(preset: str, where: str) -> None:
    section = yaml.safe_load((CONF_DIR / "model" / f"{preset}.yaml").read_text())
    is_large = where == "device=b300" and section["parameter_count"] > 120e9  # for one card
    ranks = ["parallel.tensor_parallel_size=8"] if is_large else []
    checked(screen([f"model={preset}", where, *ranks]), 80)


@pytest.mark.full
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("where", ["h200", "cpu", "mi300x"])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_preset_answers_on_one_screen_of_any_width(
    preset: str, where: str, width: int
) -> None:
    ranks = [] if preset == "smollm2_360m" else ["parallel=tp2"]  # which has 15 heads
    try:
        checked(screen([f"model={preset}", f"device={where}", *ranks], width), width)
    except DoesNotFit:
        pytest.skip("does not fit")


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm", "llama_cpp", "transformers"])
@pytest.mark.parametrize("preset", ["llama", "gemma3_27b", "jamba", "deepseek_v2_lite"])
@pytest.mark.parametrize("width", [60, 80])
def test_a_planned_engine_answers_on_one_screen(engine: str, preset: str, width: int) -> None:
    asked = [f"model={preset}", "device=h200", "scheduler.max_model_len=8192", f"engine={engine}"]
    prepared = prepared_request(asked).prepared
    planned = planned_engine(prepared)
    assert planned is not None
    try:
        answer = answer_of_engine(prepared, planned)
    except (ConfigError, DoesNotFit) as error:
        pytest.skip(error.lines()[0])
    last = list(whole_words(answer.verdict.text, width))
    lines = [line.text for line in answer.screen(width)] + ["files", *last]
    checked(lines, width)
    assert lines[: len(last)] == last
    labels = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert set(labels) >= {"plan", "users", "limit", "serve", "files"}


def test_the_verdict_is_the_first_line_and_the_last() -> None:
    out = io.StringIO()
    result = kvpipe.run(["llama", "device=h100", "backend=meta"])
    TextReport(TextReport.Options(name="text")).render(result.answer, None, out)
    first, *_, last = out.getvalue().splitlines()
    cache = result.profile.ranks[0].available_kv
    ends = [round(end / 2**30, 2) for end in (cache.num_bytes, cache.low_bytes, cache.high_bytes)]
    told = "{:.2f} GiB of cache ({:.2f} to {:.2f})".format(*ends)
    assert first == last == f"IT FITS: 131,072 tokens on h100_80gb, {told}"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_full_screen_still_names_its_model(width: int) -> None:
    lines = screen(["gemma3_27b", "device=h100_80gb", "scheduler.max_model_len=32768"], width)
    checked(lines, width)
    assert "google/gemma-3-27b-it" in "\n".join(lines).partition("serve")[0]


def test_the_last_lines_of_a_narrow_screen_are_its_first(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    asked = ["llama3_70b", "device=h100_80gb", "parallel=tp2", "cache=fp8", "backend=meta"]
    result, out = kvpipe.run([*asked, "scheduler.max_model_len=32768"]), io.StringIO()
    TextReport(TextReport.Options(name="text")).render(result.answer, None, out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60 and lines[:2] == lines[-2:]
    assert " ".join(lines[:2]) == result.answer.verdict.text


def test_a_range_that_straddles_the_need_may_not_fit() -> None:
    asked = ["llama3_70b", "device=h100_80gb", "parallel=tp2", "cache=fp8", "backend=meta"]
    asked += ["profiling=estimate", "scheduler.max_model_len=32768"]
    result = kvpipe.run(asked)
    assert result.answer.verdict.text.startswith(
        "MAY NOT FIT: 32,768 tokens on h100_80gb, 2.70 GiB"
    )
    assert "at worst 2.5" in verdict_of(report_input(result)).figures
    roomy = kvpipe.run([*asked, "device=h200"])
    assert roomy.answer.verdict.text.startswith("IT FITS")


def test_a_laptop_does_not_fit_deepseek_v3_and_gets_no_line_to_serve_it() -> None:
    lines = "\n".join(screen(["model=deepseek_v3", "device=cpu"]))
    assert re.match(r"ONLY THE CACHE FITS, not the weights: [\s\S]*626\.9 GiB\s+of weights", lines)
    assert "vllm serve" not in lines
    small = "\n".join(screen(["model=llama3_2_1b", "device=cpu"]))
    assert small.startswith("THE CACHE FITS, weights not counted") and "vllm serve" in small


def test_more_requests_than_the_scheduler_runs_are_said_in_the_same_line() -> None:
    asked = ["gpt_oss_20b", "device=h100", "parallel=tp2", "scheduler.max_model_len=4096"]
    lines = "\n".join(screen(asked))
    assert re.search(r"users +256 of 4,096 tokens each: [\d,]+ by memory, 256 by max", lines)


def test_the_bar_is_to_scale() -> None:
    (bar,) = [line for line in screen(["llama", "device=h100"]) if line.startswith("card")]
    cells = bar.partition("[")[2].rstrip("]")
    result = kvpipe.run(["llama", "device=h100", "backend=meta"])
    total = result.profile.ranks[0].total.num_bytes
    share = result.plan.ranks[0].config.size_bytes / total
    assert abs(cells.count("K") / len(cells) - share) <= 1 / len(cells)


def test_the_made_up_reports_have_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    from report_runs import GIB, full, layers_of, plan_of

    report = report_of(plan_of(layers_of((full(), 32)), (GIB,), length=8176))
    assert verdict_of(report).word == "fits"
    assert len(first_screen(report, 80)) <= MOST_LINES - 2
    assert answer_of(report).screen is not None


@pytest.mark.parametrize(
    ("users", "word"), [(1, "IT FITS"), (23, "IT FITS"), (24, "DOES NOT FIT: ")]
)
def test_the_users_that_were_asked_for_decide(users: int, word: str) -> None:
    asked = ["llama3_70b", "device=h200", "parallel=tp2", "cache=fp8", "backend=meta"]
    asked += ["cache.kv_cache_memory_bytes=60GiB", "scheduler.max_model_len=32768"]
    answer = kvpipe.run([*asked, f"want.requests={users}"]).answer
    assert answer.verdict.text.startswith(word)
    assert answer.exit_code == (0 if word == "IT FITS" else 1)


def test_the_long_report_the_document_and_a_sweep_give_the_verdict_of_the_first_screen() -> None:
    asked = ["llama3_70b", "device=h100_80gb", "parallel=tp2", "cache=fp8", "backend=meta"]
    answer = kvpipe.run([*asked, "scheduler.max_model_len=32768"]).answer
    short = answer.verdict.text
    assert short.startswith("MAY NOT FIT") and answer.status == "may_not_fit"
    assert short in "\n".join(line.text for line in answer.lines(200))
    assert answer.document["status"] == answer.status and answer.exit_code == 0
    rows = [{"job": n, "status": s} for n, s in enumerate(["fits", answer.status, "does_not_fit"])]
    assert "3 jobs, 1 fit, 1 may not" in sweep_table(rows, ())


@pytest.mark.parametrize(
    "line",
    [
        "llama --on h100 --users 40",
        "llama-3.1-70b --on 2xh100 --users 8",
        "llama --on h100 --users 300 --context 1k",  # more than the scheduler runs at once
        "llama --on h100 --users 65 --context 8k cache.kv_cache_memory_bytes=65GiB",  # of 64 there
    ],
)
def test_what_is_planned_to_fit_serves_the_users_that_were_asked_for(line: str, capsys) -> None:
    from kvpipe.front.main import run

    words = line.split()
    assert run([*words, "report=json"]) == 1
    changes = json.loads(capsys.readouterr().out)["advice"]
    assert changes
    for change in changes:
        again = [f"{key}={value}" for key, value in change.items()]
        card = "h100" if "tensor_parallel_size" in again[0] else words[2]  # ranks are told anew
        told = [*words[:2], card, *words[3:], *again, "report=none"]
        assert run(told) == 0, change


def test_a_refusal_has_its_verdict_on_stdout_and_why_on_stderr(capsys) -> None:
    from kvpipe.front.main import run

    said = ["llama-3.1-70b", "--on", "2xh100", "--context", "32k"]
    for report in ("text", "full"):
        assert run([*said, f"report={report}"]) == 1
        told = capsys.readouterr()
        assert told.out == "MAY NOT FIT (not at the best value): 32,768 tokens on h100_80gb\n"
        assert "needs 2,049 blocks" in told.err
    assert run(["llama-3.1-70b", "--on", "l4", "--context", "32k", "--users", "4"]) == 1
    assert capsys.readouterr().out == "DOES NOT FIT: 4 users of 32,768 tokens on l4\n"


def sentences(result: Result, width: int) -> list[str]:
    """The screen's blocks, each on one line, those of the bar and of the command left out."""
    lines = [line.text for line in result.answer.screen(width)]
    checked([*lines, "files", *whole_words(result.answer.verdict.text, width)], width)
    blocks = re.sub(r"\n {9}(?!.*report=full)", " ", "\n".join(lines))
    return [line for line in blocks.split("\n") if not line.startswith(("card", "serve", "  v"))]


def told_whole(result: Result, width: int) -> None:
    """A narrow screen has the warning of the widest, or says where it is."""
    told, report = sentences(result, width), sentences(result, 10_000)
    assert not [line for line in told if line.endswith("...")]
    warned = [line for line in told if line.startswith("warning")]
    assert set(warned) <= set(report)
    if any(line.startswith("warning") for line in report) and not warned:
        assert re.search(r"\d warnings?(, \d notes?)?: report=full", "\n".join(told))


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    "asked",
    [
        ["gemma3_12b", "device=a100_80gb", "cache=fp8", "engine=vllm"],  # room for its warning
        ["mamba_130m", "device=h100_80gb", "cache=fp8", "weights=fp8"],  # none at 60 columns
    ],
)
def test_a_narrow_screen_tells_a_warning_whole_or_says_where_it_is(asked, width) -> None:
    told_whole(kvpipe.run(["backend=meta", *asked]), width)


@pytest.mark.full
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "rest",
    [
        ["device=b200", "scheduler.max_model_len=8192", "want.requests=7", "engine=vllm"],
        ["device=h200", "cache=fp8", "weights=fp8", "scheduler.max_model_len=17632"],
        ["device=cpu", "want.requests=64"],
    ],
)
def test_no_screen_cuts_a_sentence(preset: str, rest: list[str]) -> None:
    try:
        result = kvpipe.run(["backend=meta", preset, *rest])
    except (kvpipe.ConfigError, DoesNotFit) as error:
        pytest.skip(str(error))
    for width in (60, 80, 100, 120, 200):
        told_whole(result, width)


def test_no_sentence_of_a_screen_with_room_is_cut_and_every_mark_of_the_bar_is_named() -> None:
    asked = ["llama-3.1-70b", "device=h100_80gb", "parallel=tp2", "cache=fp8"]
    lines = screen([*asked, "scheduler.max_model_len=2192", "want.requests=16"])
    text = "\n".join(lines)
    assert not re.search(r"\w,? \.\.\.", text)
    assert re.search("K.KV cache", text) and re.search(r"\..free", text)
    warned = ["gemma3_27b", "device=h200", "cache=fp8", "scheduler.max_model_len=32768"]
    text = " ".join(" ".join(screen([*warned, "want.requests=48"])).split())
    assert "runs 47 such requests, not 48: it takes these flags, and groups the layers" in text
    assert "change engine.name" not in text  # no change without a value
