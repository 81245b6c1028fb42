"""Reports: what a person reads, what a program reads, and that all bytes are accounted for."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from report_runs import (
    GIB,
    full,
    layers_of,
    mamba,
    plan_of,
    profile_of,
    report_of,
    sliding,
)

from kvpipe.answers.plan_hints import plan_hints
from kvpipe.cache.plan import EngineCapacity, Plan, SlotFacts
from kvpipe.cache.scratch import GroupScratch
from kvpipe.commands.base import Command
from kvpipe.commands.run import Run, answer_of
from kvpipe.errors import ConfigError, DoesNotFit, KvpipeError, Problem
from kvpipe.files.atomic import write_atomic
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.notes import Note
from kvpipe.plugins import REGISTRIES, SPECS
from kvpipe.report.accounts import CAUSES, KV_CAUSES, split_bytes
from kvpipe.report.base import Report
from kvpipe.report.derived_notes import advice
from kvpipe.report.document import plan_document
from kvpipe.report.engine_lines import difference
from kvpipe.report.folded import unfolded
from kvpipe.report.full import FullReport
from kvpipe.report.json_ import JsonReport, failure_document
from kvpipe.report.none import NoReport
from kvpipe.report.run_input import ReportInput
from kvpipe.report.summary import FIELDS, summary
from kvpipe.report.sweep_table import sweep_csv, sweep_table
from kvpipe.report.text import TextReport, write_lines
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.grouping.planning import plan
from kvpipe.stages.grouping.slots.options import SlotOptions
from kvpipe.text.figures import count, percent, size
from kvpipe.text.lines import Line, Section, lay_out
from kvpipe.text.strict_json import strict_json

ROOT = Path(__file__).parents[1]
LLAMA = plan_of(layers_of((full(), 32)), (GIB,), length=8176)
GEMMA = plan_of(
    layers_of((sliding(1024), 52), (full(), 10)), (50 * GIB,), length=32768, in_flight=8192
)
SLOTS = SlotFacts(
    rule="equal slots",
    never_worse_than=("vllm_0_17", "vllm_0_33"),
    prefix_grain=80,
    bound_bytes=3 * GIB,
    compared=(("vllm_0_33", 7, 4 * GIB),),
)
WINDOW = plan_of(layers_of((sliding(4096), 32)), (GIB,), length=131072)
HYBRID = plan_of(layers_of((full(64), 5), (mamba(), 23)), (50 * GIB, 60 * GIB), length=32001)


def shown(report: Report, what: ReportInput) -> str:
    stream = io.StringIO()
    report.render(answer_of(what), what.job, stream)
    return stream.getvalue()


def text_of(what: ReportInput) -> str:
    return shown(FullReport(FullReport.Options(name="full")), what)


def words_of(what: ReportInput) -> str:
    """The text with line breaks undone: wrapping is another test's subject."""
    return " ".join(text_of(what).split())


# --- where the bytes go ---------------------------------------------------------------------------
specs = st.one_of(
    st.builds(
        full,
        block_size=st.sampled_from([1, 3, 16, 17]),
        heads=st.integers(1, 9),
        head_size=st.sampled_from([80, 96, 128]),
    ),
    st.builds(
        sliding,
        window=st.integers(1, 200),
        block_size=st.sampled_from([1, 3, 16, 17]),
        heads=st.integers(1, 9),
    ),
    st.builds(mamba, block_size=st.sampled_from([16, 400]), rows=st.integers(1, 4000)),
)


RULES = [REGISTRIES["engine"].get(name) for name in ("kvpipe", "vllm_0_17", "vllm_0_33")]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan of the real planner: any mix of layers, one to three ranks of different memory, or
    pipeline stages; whatever an engine refuses to plan is not drawn."""
    kinds = draw(st.lists(st.tuples(specs, st.integers(1, 7)), min_size=1, max_size=3))
    memory = draw(st.lists(st.integers(2**24, 2**30), min_size=1, max_size=3))
    layers = layers_of(*kinds)
    stages = draw(st.booleans()) and len(layers) >= len(memory)
    ranks = [layers[i :: len(memory)] if stages else layers for i in range(len(memory))]
    length = draw(st.integers(1, 300))
    limits = RequestLimits(max_model_len=length, max_num_batched_tokens=draw(st.integers(1, 300)))
    try:
        return plan(
            ranks,
            limits,
            memory,
            rules=draw(st.sampled_from(RULES)),
            fit=draw(st.booleans()),
            num_gpu_blocks_override=draw(st.sampled_from([None, None, 9, 5000])),
        )
    except KvpipeError:
        reject()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(plan=plans(), most=st.sampled_from([None, 0, 3]), copies=st.integers(1, 4))
def test_the_causes_add_up_to_the_device_exactly(plan, most, copies) -> None:
    memory = tuple(rank.available_bytes for rank in plan.ranks)
    profile = profile_of(memory, total=80 * GIB + 12345)
    replicas = {name: copies for group in plan.groups for name in group.layer_names}
    for account in split_bytes(plan, profile, most, replicas):
        assert account.total_bytes == 80 * GIB + 12345
        assert account.overcommitted_bytes == 0
        for split in (account.peak, account.steady):
            assert list(split) == list(CAUSES)
            assert sum(split.values()) == account.total_bytes
            assert all(isinstance(b, int) and b >= 0 for b in split.values()), split
            given_to_cache = max(memory[account.rank], plan.ranks[account.rank].config.size_bytes)
            assert sum(split[cause] for cause in KV_CAUSES) == given_to_cache
        assert account.steady["prefill_in_flight"] == 0


@pytest.mark.parametrize(("in_flight", "times"), [(2048, "1.35"), (8192, "2.31"), (16384, "3.60")])
def test_gemma_3_27b_holds_as_many_times_its_payload_as_was_measured(in_flight, times) -> None:
    """62 layers, every sixth full, window 1,024, 16 KV heads of 128, bfloat16, 32,768 tokens."""
    kinds = [full(heads=16) if i % 6 == 5 else sliding(1024, heads=16) for i in range(62)]
    layers = [
        CacheLayer(name=f"language_model.model.layers.{i}.self_attn.attn", spec=spec)
        for i, spec in enumerate(kinds)
    ]
    limits = RequestLimits(max_model_len=32768, max_num_batched_tokens=in_flight)
    words = words_of(report_of(plan(layers, limits, 30 * GIB, rules=RULES[1])))
    assert f"over its payload {times} x 1.02 x" in words


def test_payload_tails_and_window_equal_a_count_token_by_token() -> None:
    """One place at a time: is it a token that a query at the end still sees?"""
    window, length, block = 50, 203, 16
    plan = plan_of(
        layers_of((sliding(window), 3), (full(), 3)), (GIB,), length=length, in_flight=32
    )
    (account,) = split_bytes(plan, profile_of((GIB,)))
    counted: Counter[str] = Counter()
    row = 2 * 8 * 128 * 2  # K and V, 8 heads of 128 numbers of 2 bytes
    for first_seen in (length - window, 0):
        for index in range(first_seen // block, -(-length // block)):
            for place in range(index * block, (index + 1) * block):
                if place >= length:
                    counted["block_tails"] += 3 * row
                elif place < first_seen:
                    counted["window_alignment"] += 3 * row
                else:
                    counted["payload"] += 3 * row
    requests = account.requests_steady
    assert requests > 1
    for cause in ("payload", "block_tails", "window_alignment"):
        assert account.steady[cause] == requests * counted[cause] > 0, cause


def test_padding_layers_and_page_padding_are_told_apart() -> None:
    """5 full layers of 64 tokens, 23 states in groups of at most 5: two places stay empty."""
    (rich, poor) = split_bytes(HYBRID, profile_of((60 * GIB, 50 * GIB)))
    page, state = 64 * 2 * 8 * 128 * 2, 3000 * 4 * 4
    requests = poor.requests_steady
    assert poor.steady["padding_layers"] == requests * 2 * page
    assert poor.steady["page_padding"] == requests * 23 * (page - state)
    assert poor.steady["null_block"] == 5 * page
    assert rich.steady["payload"] == poor.steady["payload"]


def test_a_richer_rank_says_what_it_cannot_use() -> None:
    poor, rich = split_bytes(HYBRID, profile_of((50 * GIB, 60 * GIB)))
    assert poor.steady["unused_richer_rank"] == 0
    assert rich.steady["unused_richer_rank"] == 10 * GIB


def test_replicated_heads_are_copies_not_payload() -> None:
    names = {name: 4 for group in LLAMA.groups for name in group.layer_names}
    (one,) = split_bytes(LLAMA, profile_of((GIB,)))
    (four,) = split_bytes(LLAMA, profile_of((GIB,)), replicas=names)
    assert one.steady["head_replication"] == 0
    assert four.steady["head_replication"] * 4 == one.steady["payload"] * 3
    assert four.steady["payload"] * 4 == one.steady["payload"]


def test_max_num_seqs_limits_the_load() -> None:
    (account,) = split_bytes(GEMMA, profile_of((50 * GIB,)), max_num_seqs=2)
    assert (account.requests_peak, account.requests_steady) == (2, 2)
    assert account.peak["free_blocks"] > 30 * GIB


def test_a_cache_larger_than_the_device_is_overcommitted_not_negative() -> None:
    (account,) = split_bytes(LLAMA, profile_of((GIB,), total=8 * GIB, weights=7 * GIB))
    assert account.overcommitted_bytes == GIB + 7 + GIB // 2
    assert account.total_bytes == 8 * GIB + account.overcommitted_bytes
    assert min(account.peak.values()) >= 0


# --- advice, with its negative twins --------------------------------------------------------------
def advice_of(plan, **changes) -> list[Note]:  # type: ignore[no-untyped-def]
    memory = tuple(rank.available_bytes for rank in plan.ranks)
    profile = profile_of(memory, **changes)
    derived = advice(plan, split_bytes(plan, profile))
    return [*derived, *plan_hints(plan, profile, max_num_seqs=1)]


def test_a_plan_without_trouble_has_no_advice() -> None:
    assert advice_of(LLAMA) == []


def test_a_lowered_length_says_what_the_wanted_one_needs() -> None:
    (note,) = advice_of(replace(LLAMA, requested_len=131072))
    assert note.is_warning and not note.knob  # what helps is planned: answers/advice.py
    assert "needs 8,192 blocks (16.00 GiB)" in note.text and "511 can be given" in note.text


def test_a_window_that_holds_more_than_full_attention_is_made_plain() -> None:
    """8,192 tokens in flight, 1 GiB: a window of 4,096 fits 8,160 tokens, full attention 8,176."""
    window = layers_of((sliding(4096), 32))
    worse = replace(plan_of(window, (GIB,), length=8160, in_flight=8192), requested_len=131072)
    # The spec reserves one block for a window that starts inside one.
    demand = replace(worse.capacity.demands[0], peak_blocks=511)
    worse = replace(worse, capacity=replace(worse.capacity, demands=(demand,)))
    notes = advice_of(worse)
    assert any(
        "less than full attention would" in note.text
        and note.proposals[0].changes == {"scheduler.max_num_batched_tokens": 4096}
        for note in notes
    )
    asked_for = replace(worse, requested_len=8160)
    assert not any("less than full attention" in note.text for note in advice_of(asked_for))
    better = plan_of(window, (GIB,), length=131072, in_flight=2048)
    assert not any("less than full attention" in note.text for note in advice_of(better))


def test_a_peak_far_above_the_steady_state_is_a_warning() -> None:
    (note,) = advice_of(GEMMA)
    assert re.search(r"holds 2\.\d\d times its steady bytes", note.text)
    calm = plan_of(
        layers_of((sliding(1024), 52), (full(), 10)), (50 * GIB,), length=32768, in_flight=2048
    )
    assert advice_of(calm) == []


def test_a_plan_that_holds_no_request_is_said_to_in_the_first_lines() -> None:
    tight = plan_of(layers_of((full(), 32)), (GIB // 2,), length=8176)
    assert "DOES NOT FIT: no request of 8,176" in words_of(report_of(tight))[:300]


def test_much_padding_is_a_warning_and_little_is_not() -> None:
    draft = plan_of(layers_of((full(), 32), (sliding(64), 1)), (GIB,), length=400, size=32)
    assert any("padding layers" in note.text for note in advice_of(draft))
    assert not any("padding layers" in note.text for note in advice_of(HYBRID))


def test_overcommitment_is_a_warning() -> None:
    notes = advice_of(LLAMA, total=8 * GIB, weights=7 * GIB)
    assert any("more than the device has" in note.text for note in notes)


# --- what engines print ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("plan", "tokens", "concurrency", "words"),
    [
        (LLAMA, 8192, 512 / 511, r"counts the null block.*\+16 tokens against"),
        (GEMMA, 187232, 14.9, r"^counts the null.*all blocks evenly between 7 groups; 0\.17 x"),
        (GEMMA, int(14.9 * 32768), 14.9, r"concurrency x max_model_len, every request at peak"),
        (LLAMA, 8176, 1.0, r"^the same as the steady state$"),
        (
            WINDOW,
            8192,
            512 / 385,
            r"^counts the null.*x block_size, as if every token stayed; 0\.03 x",
        ),
        (LLAMA, None, None, r"prints no such line"),
    ],
)
def test_one_line_says_why_an_engine_prints_another_number(
    plan, tokens, concurrency, words
) -> None:
    line = EngineCapacity(engine="x", num_tokens=tokens, max_concurrency=concurrency)
    assert re.search(words, difference(line, plan, plan.capacity))


def test_an_engine_that_prints_the_truth_is_not_repeated() -> None:
    same = EngineCapacity(engine="honest", num_tokens=8176, max_concurrency=1.0)
    text = text_of(report_of(replace(LLAMA, printed=(same, *LLAMA.printed))))
    assert "honest" not in text and "vllm_0_17 prints" in text


def test_an_engine_that_would_not_start_says_why() -> None:
    line = EngineCapacity(engine="x", num_tokens=None, max_concurrency=None, refused="pages differ")
    assert difference(line, LLAMA, LLAMA.capacity) == "would not start: pages differ"


# --- the report for a person ----------------------------------------------------------------------
def test_the_text_answers_in_the_order_of_need() -> None:
    lowered = replace(LLAMA, requested_len=131072)
    lines = text_of(report_of(lowered))
    wanted = [
        "IT FITS: 8,176 tokens",
        "512 blocks, 1.00 GiB; max_model_len lowered from 131,072",
        "requests that fit",
        "longest request: 8,176 tokens",
        "a request costs 0 B + 128.0 KiB a token",
        "vllm_0_17 prints",
        "counts the null block",
        "group  kind  layers  block       page",
        "weights       15.00 GiB  exact",
        "Where the bytes go",
        "! max_model_len was lowered",
        "32 layers, 321 tokens written through the block manager, read back by gather",
        "0 mismatches, digest",
        "measured: profiling 1.2 ms, grouping 0.4 ms, allocation 1.25 s",
    ]
    places = [lines.find(words) for words in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places == sorted(places)


@pytest.mark.parametrize("plan", [LLAMA, GEMMA, HYBRID], ids=["llama", "gemma", "hybrid"])
@pytest.mark.parametrize("columns", ["80", "72", "60", "40", "500"])
def test_a_pipe_gets_ascii_that_fits_its_columns(plan, columns, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    note = Note(text="a long story " * 20, knob="some.key", is_warning=True)
    lines = text_of(report_of(plan, notes=(note,))).splitlines()
    assert max(map(len, lines)) <= min(100, max(60, int(columns)))
    assert all(line.isascii() and "\x1b" not in line for line in lines)


def test_every_memory_figure_says_how_it_was_obtained_and_where_from() -> None:
    words = words_of(report_of(LLAMA))
    for item in profile_of((GIB,)).ranks[0].charged:
        assert f"{item.name} {size(item.num_bytes)} {item.how} {item.source}" in words


def test_a_range_stands_beside_its_best_value() -> None:
    profile = profile_of((GIB,))
    (rank,) = profile.ranks
    item = replace(rank.charged[1], low_bytes=GIB // 2, high_bytes=2 * GIB)
    ranged = replace(profile, ranks=(replace(rank, charged=(rank.charged[0], item)),))
    words = words_of(report_of(LLAMA, ranged))
    assert "activations 1.00 GiB estimated 512.0 MiB to 2.00 GiB: formula" in words


def test_a_failed_self_proof_and_one_not_run_are_plain() -> None:
    broken = VerifyReport(layers=2, tokens=5, mismatches=7, digest="d" * 64, inject="swap")
    assert "with inject=swap: 7 mismatches" in words_of(report_of(LLAMA, verify=broken))
    both = VerifyReport(layers=1, tokens=5, state_pages=1, digest="d" * 64)
    assert (
        "1 layer, 5 tokens and 1 state page written through the block manager, read back by gather "
        "and by flat offsets: 0 mismatches, digest dddd"
    ) in words_of(report_of(LLAMA, verify=both))
    states = replace(both, tokens=0, state_pages=3)
    assert (
        "1 layer, 3 state pages written through the block manager, read back by pack and by flat "
    ) in words_of(report_of(LLAMA, verify=states))
    missing = VerifyReport(reason="no memory")
    assert "not run: no memory" in words_of(report_of(LLAMA, verify=missing))


def test_a_model_without_a_cache_is_said_to_need_none() -> None:
    config = replace(LLAMA.ranks[0].config, num_blocks=1, tensors=(), groups=(), bytes_per_block=0)
    nothing = replace(
        LLAMA, capacity=None, printed=(), ranks=(replace(LLAMA.ranks[0], config=config),)
    )
    assert "Nothing to store" in words_of(report_of(nothing))


def test_equal_ranks_share_a_table_and_the_poorest_comes_first() -> None:
    assert "Memory of rank 0, the poorest of 2" in words_of(report_of(HYBRID))
    equal = plan_of(layers_of((full(), 4)), (GIB, GIB), length=64)
    words = words_of(report_of(equal))
    assert "Memory of each of 2 ranks" in words
    assert "0 full 4 16 64.00 KiB 4 4" in words  # 4 layers, though 2 ranks hold each
    assert "bytes of each, a rank 1.00 MiB" in words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    FullReport(FullReport.Options(name="full")).render(answer_of(report_of(LLAMA)), None, terminal)
    return terminal.getvalue()


def test_a_terminal_gets_colour_and_no_color_is_honoured(monkeypatch) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[1-7]m")
    coloured = on_a_terminal(monkeypatch)
    assert colour.search(coloured)
    plain = on_a_terminal(monkeypatch, NO_COLOR="1")
    assert not colour.search(plain)
    strip = re.compile(r"\x1b\[[0-9;]*m")
    assert strip.sub("", plain) == strip.sub("", coloured) == text_of(report_of(LLAMA))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_colour_is_forced_in_a_pipe_and_no_color_wins(encoding, monkeypatch) -> None:
    line = Line("not \u2581\u2588 fit", "bad")
    written = {}
    for name in ("", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        for each in {name, "FORCE_COLOR"} if name else ():
            monkeypatch.setenv(each, "1")
        pipe = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        write_lines([line], pipe)
        pipe.flush()
        written[name] = pipe.buffer.getvalue().decode(encoding)
    assert "\x1b[" in written["FORCE_COLOR"]
    assert written["NO_COLOR"] == written[""] and "\x1b" not in written[""]


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "report=full"],
        ["run", "engine=sglang"],
        ["find", "want.requests=4"],
        ["find", "want.requests=4", "want.device=[h100,l40s]"],
        ["compare", "engines=[kvpipe,sglang]"],
        ["replay", "trace=synthetic", "trace.max_requests=20"],
    ],
    ids=" ".join,
)
def test_every_answer_fits_its_columns(words, columns) -> None:
    command, *more = words
    card = [] if any(word.startswith("want.device=") for word in more) else ["device=h100"]
    asked = [command, "llama", *card, "scheduler.max_model_len=8192", *more]
    request = prepared_request(words_to_overrides(asked)).prepared
    answer = request.config.plugins["command"].make(Command).run(request, None)
    assert max(len(line.text) for line in answer.lines(columns)) <= columns


def test_a_report_in_a_pipe_imports_no_rich_and_no_array_library() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); from report_runs import *; import io\n"
        "from kvpipe.report.text import PLUGIN\n"
        "from kvpipe.commands.run import answer_of\n"
        "report = report_of(plan_of(layers_of((full(), 2)), (GIB,), length=64))\n"
        "PLUGIN(PLUGIN.Options(name='text')).render(answer_of(report), None, io.StringIO())\n"
        "print([m for m in ('rich', 'torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_paragraphs_keep_long_words_whole_and_the_last_column_wraps() -> None:
    section = Section(
        title="t",
        headers=("a", "b"),
        align="rl",
        rows=[("1", "word " * 30), ("22", "y" * 90)],
        paragraphs=[Line("see " + "x" * 90)],
    )
    lines = [line.text for line in lay_out([section], 80)]
    assert "".join(lines).count("word") == 30 and "".join(lines).count("y") == 90
    assert any("x" * 90 in line for line in lines)
    assert any("y" * 90 in line for line in lines)
    assert all(len(line) <= 80 for line in lines if "x" not in line and "y" not in line)
    assert lines[1] == "   a  b"
    assert next(lay_out([Section(title="only")], 80)) == Line("only", "title")


# --- the report for a program ---------------------------------------------------------------------
def json_report() -> JsonReport:
    return JsonReport(JsonReport.Options(name="json"))


@pytest.mark.parametrize("plan", [LLAMA, GEMMA, HYBRID], ids=["llama", "gemma", "hybrid"])
def test_json_is_one_document_and_equals_plan_json(plan) -> None:
    report = report_of(plan)
    written = unfolded(json.loads(shown(json_report(), report)))
    assert written.pop("exit_code") == 0
    assert written == json.loads(strict_json(plan_document(report)))
    assert written["status"] == "fits" and written["schema_version"] == 2
    rank = written["plan"]["ranks"][0]
    config = plan.ranks[0].config
    assert rank["size_bytes"] == config.size_bytes == sum(t["size_bytes"] for t in rank["tensors"])
    for group, spec in zip(rank["groups"], config.groups, strict=True):
        assert [layer["layer"] for layer in group["layers"]] == list(spec.layer_names)
        assert group["bytes_per_block"] + group["padding_bytes_per_block"] == config.bytes_per_block
    for account in written["bytes"]["ranks"]:
        assert sum(account["peak"].values()) == account["total_bytes"]


def test_in_a_sweep_each_job_is_one_line() -> None:
    report = json_report()
    stream = io.StringIO()
    report.render(answer_of(report_of(LLAMA, job="0")), "0", stream)
    report.render_failure(DoesNotFit("too small", longest_len=7), "1", stream)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["job"], first["status"]) == ("0", "fits")
    assert (second["job"], second["status"], second["longest_len"]) == ("1", "does_not_fit", 7)


def test_failures_carry_their_numbers_and_problems() -> None:
    small = failure_document(DoesNotFit("no", needed_bytes=(9,), available_bytes=(4,)))
    assert (small["exit_code"], small["needed_bytes"], small["available_bytes"]) == (1, [9], [4])
    wrong = failure_document(ConfigError(Problem("a.b", "an int", "'x'", "try 3")))
    assert (wrong["status"], wrong["exit_code"]) == ("wrong_request", 2)
    assert wrong["problems"] == [
        {"key": "a.b", "expected": "an int", "got": "'x'", "knob": "try 3"}
    ]
    assert json.loads(strict_json(small)) and json.loads(strict_json(wrong))


def test_text_and_none_leave_failures_to_stderr() -> None:
    for report in (
        TextReport(TextReport.Options(name="text")),
        NoReport(NoReport.Options(name="none")),
    ):
        stream = io.StringIO()
        report.render_failure(DoesNotFit("no"), None, stream)
        assert stream.getvalue() == ""


def test_no_document_holds_nan_or_infinity() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict_json({"x": float("inf")})


def test_settings_that_json_has_no_number_for_are_written_as_yaml_writes_them() -> None:
    settings = {"limits": [0.0, float("inf"), -float("inf")], "deep": {"odd": float("nan")}}
    document = plan_document(replace(report_of(LLAMA), config=settings))
    told = json.loads(strict_json(document))["config"]
    assert told == {"limits": [0.0, ".inf", "-.inf"], "deep": {"odd": ".nan"}}


def test_none_writes_nothing() -> None:
    assert shown(NoReport(NoReport.Options(name="none")), report_of(LLAMA)) == ""


def test_every_option_file_is_complete_and_names_a_plugin() -> None:
    files = sorted((ROOT / "conf" / "report").glob("*.yaml"))
    assert [file.stem for file in files] == REGISTRIES["report"].names()
    for file in files:
        options = yaml.safe_load(file.read_text())
        plugin = REGISTRIES["report"].get(options["name"])
        assert options["name"] == file.stem
        assert plugin(plugin.Options(**options)).options.model_fields_set == set(
            plugin.Options.model_fields
        )


# --- the schema is documented ---------------------------------------------------------------------
# Described as a whole, or by a table of their own.
OPEN = re.compile(
    r"config|backend|seconds|bytes\.causes|bytes\.ranks\[\]\.(peak|steady)|.*\.spec\.fields"
    r"|memory\.ranks\[\]\.(total|requested|available_kv)"
)


def key_paths(value: object, path: str = "") -> set[str]:
    """`plan.ranks[].num_blocks`: every key of a document, lists by their elements."""
    if isinstance(value, dict):
        paths = set()
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            paths |= {here} | (set() if OPEN.fullmatch(here) else key_paths(item, here))
        return paths
    if isinstance(value, list):
        return {found for item in value for found in key_paths(item, f"{path}[]")}
    return set()


def schema_page() -> str:
    return (ROOT / "docs" / "plan_schema.md").read_text(encoding="utf-8")


def with_scratch(plan: Plan) -> Plan:
    rank, scratch = plan.ranks[0], GroupScratch(
        pages_per_slot=1, unit_bytes=16, slot_units=1, pitch_units=1, shifts=()
    )  # fmt: skip
    config = replace(rank.config, scratch=(scratch,) * len(rank.config.groups))
    assert plan.capacity is not None
    capacity = replace(plan.capacity, scratch_blocks=3)
    return replace(plan, ranks=(replace(rank, config=config),), capacity=capacity)


def in_subslots() -> Plan:
    limits = RequestLimits(max_model_len=4096, max_num_batched_tokens=2048)
    made = plan(
        layers_of((full(), 5), (mamba(), 23)), limits, GIB, slots=SlotOptions(subslots=True)
    )
    assert any(group.blocks_per_slot > 1 for group in made.groups)
    return made


def test_every_key_of_plan_json_is_documented_and_every_documented_key_is_real() -> None:
    from test_kernel_split import planned  # pages that kernels read as several blocks

    split = address_map(
        planned((16, 32, 64)).ranks[0].config, (), "flashinfer_nhd", any_kernel_block=False
    )
    documents = [
        plan_document(
            report_of(
                replace(plan, shared_layers=(("model.layers.9", "model.layers.1"),)),
                notes=(Note(text="n", knob="k"),),
                address_map={
                    "ranks": [address_map(plan.ranks[0].config).to_json(), split.to_json()]
                },
                job="0",
            )
        )
        for plan in (
            LLAMA,
            replace(GEMMA, slots=SLOTS),
            HYBRID,
            with_scratch(GEMMA),
            in_subslots(),
        )
    ]
    documents.append(failure_document(DoesNotFit("x", needed_bytes=(1,))))
    documents.append(failure_document(ConfigError(Problem("a", "b", "c"))))
    found: set[str] = set()
    for document in documents:
        found |= key_paths(json.loads(strict_json(document)))
    documented = set(re.findall(r"^\| `([^`]+)` \|", schema_page(), re.MULTILINE))
    assert found - documented == set()
    assert documented - found == set()


def test_every_cause_is_documented_in_order() -> None:
    table = schema_page().partition("| cause | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| {cause} | {meaning} |" for cause, meaning in CAUSES.items()]


@pytest.mark.parametrize("kind", SPECS.names())
def test_the_own_fields_of_every_kind_of_spec_are_documented(kind: str) -> None:
    own = SPECS.get(kind).examples()[0].own_fields()
    assert f"\n| {kind} | {', '.join(own)} |\n" in schema_page()


def test_the_documented_version_is_the_written_one() -> None:
    version = plan_document(report_of(LLAMA))["schema_version"]
    assert schema_page().startswith(f"# plan.json, schema `kvpipe.plan` version {version}\n")


# --- sweeps ---------------------------------------------------------------------------------------
def rows() -> list[dict[str, object]]:
    fits = {"status": "fits", "exit_code": 0, "error": ""}
    done = [
        {"job": i, "overrides": f"model={m}", **fits, **summary(plan_document(report_of(plan)))}
        for i, (m, plan) in enumerate((("llama", LLAMA), ("gemma3_27b", GEMMA)))
    ]
    failed = {
        "job": 2,
        "overrides": "model=llama cache.block_size=7",
        "status": "does_not_fit",
        "exit_code": 1,
        "error": "cache: one request needs 3 blocks, 1 fits",
    }
    return [*done, failed]


def test_a_summary_has_the_fields_of_the_table() -> None:
    assert tuple(summary(plan_document(report_of(LLAMA)))) == FIELDS
    llama = rows()[0]
    assert (llama["num_blocks"], llama["kv_bytes"], llama["requests_at_peak"]) == (512, GIB, 1)
    assert llama["waste_percent"] == round(100 / 512, 2)  # the null block, nothing else
    assert llama["printed"] == {"vllm_0_17": 8192}


def test_the_sweep_table_has_every_job_and_every_error_at_80_columns() -> None:
    table = sweep_table(rows(), Run.columns, Run.legend, width=80)
    lines = table.splitlines()
    assert lines[0] == "3 jobs, 2 fit"
    assert max(map(len, lines)) <= 80
    assert "job 2 (1): cache: one request needs 3 blocks, 1 fits" in table
    words = " ".join(table.split())
    assert "0 fits 8,176 1 1 1.00 GiB 0.2% model=llama" in words
    assert "2 does_not_fit - - - - - model=llama" in words


def test_the_csv_has_one_line_a_job_and_a_column_an_engine() -> None:
    read = list(csv.DictReader(io.StringIO(sweep_csv(rows(), Run.fields))))
    assert [row["job"] for row in read] == ["0", "1", "2"]
    assert read[0]["printed_vllm_0_17"] == "8192" and read[2]["printed_vllm_0_17"] == ""
    assert read[2]["error"] == "cache: one request needs 3 blocks, 1 fits"
    assert set(FIELDS) - {"printed"} <= set(read[0])


# --- figures and files ----------------------------------------------------------------------------
@given(st.integers(0, 2**50))
def test_a_written_size_reads_back_within_its_rounding(num_bytes: int) -> None:
    number, unit = size(num_bytes).split()
    value = float(number.replace(",", ""))
    power = ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert abs(value * 1024**power - num_bytes) <= 0.051 * 1024**power
    assert value < 1024 or unit == "TiB"


def test_figures_have_units_and_small_shares_are_not_nothing() -> None:
    assert (size(0), size(576), size(2**30), size(2**20 - 1)) == (
        "0 B",
        "576 B",
        "1.00 GiB",
        "1.00 MiB",
    )
    assert (count(1, "block"), count(0, "block"), count(4096, "token")) == (
        "1 block",
        "0 blocks",
        "4,096 tokens",
    )
    assert (percent(0, 5), percent(1, 10**6), percent(1, 4)) == ("0.0%", "<0.1%", "25.0%")


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.json"
    write_atomic(path, "one ü")
    assert path.read_text(encoding="utf-8") == "one ü"
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half of it, then \ud800")
    assert path.read_text(encoding="utf-8") == "one ü"
    write_atomic(str(path), "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_a_written_file_can_be_read_by_whom_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
