"""Traces are read as their files say, and what a replay counts is what a slow count gives."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError
from kvpipe.front.main import run as main
from kvpipe.report.text import write_lines
from kvpipe.request.confdir import CONF_DIR, shipped_option
from kvpipe.simulation import ReplayResult, read_trace, replay, run
from kvpipe.simulation.named_chain import PrefixNames
from kvpipe.simulation.plot import levels, render_svg
from kvpipe.simulation.text import render
from kvpipe.simulation.traces.base import TraceRequest
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.grouping.planning import plan
from kvpipe.text.lines import Line
from kvpipe.text.ticks import round_step

HEAD: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": "bfloat16"}

# The folder of the full original traces, where somebody has them.
FULL_TRACES = Path(os.environ.get("KVPIPE_TRACES", "/nonexistent"))


def section(option: str, **changes: Any) -> dict[str, Any]:
    return shipped_option("trace", option) | changes


def plan_of(
    num_blocks: int,
    block_size: int = 16,
    max_model_len: int = 8192,
    window: int = 0,
    drafts: int = 0,
) -> Plan:
    """num_blocks blocks, one of them the null block; window: a second layer that slides."""
    specs: list[Any] = [FullAttentionSpec(block_size=block_size, **HEAD)]
    if window:
        specs.append(SlidingWindowSpec(block_size=block_size, sliding_window=window, **HEAD))
    layers = [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs)]
    limits = RequestLimits(
        max_model_len=max_model_len, max_num_batched_tokens=2048, num_lookahead_tokens=drafts
    )
    return plan(layers, limits, num_blocks * specs[0].page_size_bytes, fit=True)


def at_once(*lengths: tuple[int, int]) -> list[TraceRequest]:
    return [TraceRequest(arrival_s=0, prompt_tokens=p, output_tokens=o) for p, o in lengths]


def served(requests: list[TraceRequest], plan: Plan, **options: Any) -> ReplayResult:
    trace = read_trace(section("azure_code_sample", arrivals="at_once"))
    return replay(requests, plan, trace.options, **options)


# --- reading --------------------------------------------------------------------------------
def test_the_azure_sample_is_read_as_it_stands() -> None:
    requests = read_trace(section("azure_code_sample")).requests()
    assert len(requests) == 500
    assert (requests[0].prompt_tokens, requests[0].output_tokens) == (4808, 10)
    assert requests[0].arrival_s == 0
    assert requests[1].arrival_s == pytest.approx(4.0319600 - 3.9799600, abs=1e-6)
    assert sum(r.prompt_tokens for r in requests) == 1_081_658
    assert all(a.arrival_s <= b.arrival_s for a, b in zip(requests, requests[1:], strict=False))


def test_the_mooncake_sample_is_read_as_it_stands() -> None:
    requests = read_trace(section("mooncake_sample")).requests()
    assert len(requests) == 400
    assert requests[0].prompt_tokens == 6758 and requests[0].prefix_ids == tuple(range(14))
    assert requests[10].arrival_s == 3.0
    assert sum(len(r.prefix_ids) for r in requests) == 11_349


def test_the_original_formats_are_read_from_a_path(tmp_path: Path) -> None:
    rows = [{"timestamp": 27000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}]
    rows.append({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [9]})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        first, second = read_trace(section("mooncake", path=str(path))).requests()
        assert (first.prompt_tokens, first.arrival_s) == (3, 0.0)
        assert (second.prefix_ids, second.arrival_s) == ((7, 8), 27.0)
    lengths = tmp_path / "v.csv"
    lengths.write_text(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n"
    )
    (request,) = read_trace(section("vidur", path=str(lengths))).requests()
    assert (request.prompt_tokens, request.output_tokens) == (3772, 54)


def test_synthetic_requests_follow_their_seed_and_medians() -> None:
    one = read_trace(section("synthetic")).requests()
    assert one == read_trace(section("synthetic")).requests()
    assert one != read_trace(section("synthetic", seed=1)).requests()
    assert len(one) == 1000
    assert sorted(r.prompt_tokens for r in one)[500] == pytest.approx(1024, rel=0.1)
    assert one[-1].arrival_s == pytest.approx(250, rel=0.15)
    alike = read_trace(section("synthetic", spread=0.0, max_requests=3)).requests()
    assert {(r.prompt_tokens, r.output_tokens) for r in alike} == {(1024, 128)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:17:03.97,12", "a request in Azure's csv format on line 2 of .*got '2023"),
        ("yesterday,12,5", "line 2 of .*Invalid isoformat"),
        ("2023-11-16 18:17:03.97,12,-5", "a length below 0"),
        ("", "expected at least one request, got none in"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        read_trace(section("azure", path=str(path))).requests()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "none"}, "trace: expected requests to replay, got none; choose trace=azure"),
        ({"name": "azur"}, "trace.name: expected a registered name, got 'azur'; did you mean"),
        ({"max_requests": 0}, "trace.max_requests: expected"),
        ({"max_request": 1}, "trace.max_request: expected a known key, got 'max_request'; did you"),
        ({"arrivals": "soon"}, "trace.arrivals: expected"),
        ({"step_seconds": 0.0}, "trace.step_seconds: expected"),
    ],
)
def test_a_wrong_trace_section_names_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(section("azure_code_sample", **changes))


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("azure", "/no/such/file.csv", "a file that can be read, got /no/such/file.csv .No such"),
        ("vidur", "sample", "trace.path: expected a file in Vidur's csv format, got 'sample'"),
        ("vidur", str(CONF_DIR / "config.yaml"), "expected a file that starts 'num_prefill_tokens"),
        ("mooncake", str(CONF_DIR / "config.yaml"), "a request in Mooncake's jsonl format on line"),
    ],
)
def test_a_file_that_is_no_such_trace_is_named(name: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(section(name, path=path)).requests()


AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [9]}


def mooncake(**changes: Any) -> bytes:
    """A right line, and one with these changes; NaN and Infinity as json writes them."""
    return (json.dumps(ROW) + "\n" + json.dumps(ROW | changes) + "\n").encode()


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("azure", "a.csv", AZURE + b"\xff\xfe", "read, got .*a.csv, line 2 .not UTF-8 text"),
        ("azure", "a.csv", AZURE + "2023-11-16 18:17:03.97,é,5".encode("latin-1"), "line 2 .not"),
        ("azure", "a.csv", AZURE.decode().encode("utf-16"), "line 1 .not UTF-8 text"),
        ("azure", "a.csv", bytes(range(256)), "expected a file that starts|line 1 .not UTF-8"),
        (
            "azure",
            "a.csv",
            AZURE + b"2023-11-16 18:17:03.97,12," + b"9" * 30,
            "format on line 2",
        ),
        ("azure", "a.csv", AZURE + b"2023-11-16 18:17:03.97,12,2147483648", "2,147,483,648 tokens"),
        ("azure", "a.csv", AZURE + b"2023-11-16 18:17:03.97,1_2,3", "line 2 .*not a whole number"),
        ("azure", "a.csv", AZURE + b"2023-11-16 18:17:03.nan,12,3", "line 2 .*convert string to"),
        ("azure", "a.csv", AZURE + b"1923-11-16 18:17:03.97,12,3", "line 2 .*a time that is not 0"),
        ("mooncake", "m.gz", b"no gzip", "read, got .*m.gz .Not a gzipped file"),
        (
            "mooncake",
            "m.gz",
            gzip.compress(mooncake(), mtime=0)[:-9],
            "m.gz.* .Compressed file ended",
        ),
        (
            "mooncake",
            "m.gz",
            gzip.compress(mooncake(), mtime=0)[:10] + b"\xff" * 30,
            "m.gz .*invalid",
        ),
        ("mooncake", "m", mooncake(timestamp=float("nan")), "line 2 of .*a time that is not 0 to"),
        ("mooncake", "m", mooncake(timestamp=float("inf")), "line 2 of .*a time that is not 0 to"),
        ("mooncake", "m", mooncake(timestamp=-1), "line 2 of .*a time that is not 0 to"),
        ("mooncake", "m", mooncake(timestamp=10**400), "line 2 of .*too large"),
        ("mooncake", "m", mooncake(timestamp="soon"), "line 2 of .*'soon' is not a number"),
        (
            "mooncake",
            "m",
            mooncake(output_length=2**31),
            "line 2 of .*2,147,483,648 tokens or",
        ),
        ("mooncake", "m", mooncake(output_length=float("inf")), "line 2 of .*inf is not a whole"),
        ("mooncake", "m", mooncake(output_length=2.5), "line 2 of .*2.5 is not a whole number"),
        ("mooncake", "m", mooncake(output_length=True), "line 2 of .*True is not a whole number"),
        ("mooncake", "m", mooncake(input_length=float("nan")), "line 2 of .*nan is not a whole"),
        ("mooncake", "m", mooncake(hash_ids=[10**50]), "line 2 of .*a hash_id below 0, or of more"),
        ("mooncake", "m", mooncake(hash_ids=[-1]), "line 2 of .*a hash_id below 0, or of more"),
        ("mooncake", "m", mooncake(hash_ids=5), "line 2 of .*not iterable"),
        ("mooncake", "m", b"{}", "line 1 of .*no 'input_length'"),
        ("mooncake", "m", b"null", "line 1 of .*not subscriptable"),
        ("mooncake", "m", b"[" * 100_000, "line 1 of .*brackets in brackets, too deep"),
        ("mooncake", "m", b'{"input_length": ' + b"9" * 5000 + b"}", "line 1 of .*4300 digits"),
    ],
    ids=range(29),
)
def test_whatever_a_file_holds_is_refused_in_one_line(
    tmp_path: Path, name: str, file: str, content: bytes, message: str
) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_trace(section(name, path=str(tmp_path / file))).requests()
    assert len(caught.value.lines()) == 1 and len(str(caught.value)) < 500


@pytest.mark.parametrize("path", ["a\0b", "a" * 5000, "~nobody-of-that-name/x", "\udcff", "", "/"])
def test_a_path_that_cannot_be_opened_is_refused_in_a_few_words(path: str) -> None:
    with pytest.raises(ConfigError, match=r"trace\.path: expected a file that can be") as caught:
        read_trace(section("azure", path=path)).requests()
    assert len(str(caught.value)) < 400 and "\0" not in str(caught.value)


def test_a_line_without_an_end_is_not_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpipe.simulation.traces.base.LONGEST_LINE", 100)
    (tmp_path / "m").write_bytes(b"x" * 101)
    with pytest.raises(ConfigError, match="m .a line of 100 bytes or more"):
        read_trace(section("mooncake", path=str(tmp_path / "m"))).requests()


def test_a_file_that_a_windows_editor_saved_is_read(tmp_path: Path) -> None:
    rows = AZURE + b"2023-11-16 18:17:03.97,12,5\n"
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + rows.replace(b"\n", b"\r\n"))
    (request,) = read_trace(section("azure", path=str(tmp_path / "a.csv"))).requests()
    assert (request.prompt_tokens, request.output_tokens) == (12, 5)


@pytest.mark.parametrize(
    ("option", "changes", "message"),
    [
        ("azure", {"arrival_rate_scale": 1e-320}, "arrival_rate_scale: expected at least 1e-06"),
        ("azure", {"step_seconds": 1e308}, "step_seconds: expected at most 1000000000"),
        ("azure", {"step_seconds": float("nan")}, "step_seconds: expected"),
        ("azure", {"prefill_tokens_per_second": 1e-320}, "per_second: expected at least 1e-06"),
        ("azure", {"max_requests": 2**31}, "max_requests: expected less than"),
        ("synthetic", {"requests_per_second": 1e-320}, "per_second: expected at least 1e-06"),
        ("synthetic", {"prompt_tokens": 10**30}, "prompt_tokens: expected less than"),
        ("synthetic", {"output_tokens": 2**31}, "output_tokens: expected less than"),
        ("synthetic", {"shared_prefix_tokens": 2**31}, "prefix_tokens: expected less than"),
        ("synthetic", {"seed": 2**63}, "seed: expected less than"),
        ("synthetic", {"max_requests": 10**7}, "max_requests: expected at most 1000000"),
    ],
)
def test_options_without_bound_are_refused(
    option: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(section(option, **changes))


def test_the_widest_synthetic_options_make_finite_requests() -> None:
    widest = {"requests_per_second": 1e-6, "arrival_rate_scale": 1e-6, "spread": 4.0}
    tokens = {"prompt_tokens": 2**31 - 1, "output_tokens": 2**31 - 1, "shared_prefix_tokens": 1}
    made = read_trace(section("synthetic", max_requests=20, **widest, **tokens)).requests()
    assert all(0 < r.prompt_tokens < 2**31 and 0 < r.output_tokens < 2**31 for r in made)
    assert served(made, plan_of(10)).counts.too_long == 20


@pytest.mark.parametrize("wrong", [5, None, [1], "azure_"])
def test_a_trace_that_is_no_section_is_one_problem(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"trace(\.name)?: expected") as caught:
        read_trace(wrong)
    assert len(caught.value.problems) == 1


def test_a_pool_whose_tables_this_machine_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a pool that can be replayed here, got 3,000,"):
        served(at_once((1, 1)), plan_of(3_000_000_000))


def test_tables_are_made_for_the_requests_of_the_trace_only() -> None:
    assert served(at_once((10, 5)), plan_of(10), max_num_seqs=2**31 - 1).counts.finished == 1


def test_every_shipped_trace_option_is_complete() -> None:
    for path in sorted((CONF_DIR / "trace").glob("*.yaml")):
        if path.stem != "none":
            assert read_trace(section(path.stem)).options.name


# --- prefix hits -----------------------------------------------------------------------------
def slow_hits(requests: list[TraceRequest]) -> tuple[int, int, int]:
    """Leading 512-token blocks of each prompt that were seen before, in file order: counted when
    the last, possibly short, block counts too, and when at least one token must remain."""
    seen: set[int] = set()
    all_hits = kept = blocks = 0
    for request in requests:
        leading = 0
        for prefix in request.prefix_ids:
            if prefix not in seen:
                break
            leading += 1
        all_hits += leading
        kept += min(leading, (request.prompt_tokens - 1) // 512)
        blocks += len(request.prefix_ids)
        seen.update(request.prefix_ids)
    return all_hits, kept, blocks


def unlimited(requests: int) -> Plan:
    return plan_of(requests, block_size=512, max_model_len=200_000)


def test_an_unlimited_cache_hits_every_prefix_block_that_came_before() -> None:
    requests = read_trace(section("mooncake_sample")).requests()
    result = run(section("mooncake_sample"), unlimited(12_000), prefix_caching=True)
    all_hits, kept, blocks = slow_hits(requests)
    assert (all_hits, kept, blocks) == (1528, 1525, 11_349)
    assert result.counts.prefix_blocks == blocks
    assert result.counts.hit_prefix_blocks == kept
    assert result.counts.hit_tokens == 512 * kept
    assert result.pool.evicted == 0 and result.ran_dry is None


@pytest.mark.full
def test_the_whole_conversation_trace_hits_36_6_percent_of_its_blocks() -> None:
    path = FULL_TRACES / "mooncake_conversation_trace.jsonl.gz"
    if not path.is_file():
        pytest.skip("set KVPIPE_TRACES to the folder of mooncake_conversation_trace.jsonl.gz")
    requests = read_trace(section("mooncake", path=str(path))).requests()
    all_hits, kept, blocks = slow_hits(requests)
    assert all_hits / blocks == pytest.approx(0.3664, abs=5e-5)
    result = run(section("mooncake", path=str(path)), unlimited(400_000), prefix_caching=True)
    assert (result.counts.hit_prefix_blocks, result.counts.prefix_blocks) == (kept, blocks)
    assert f"{result.prefix_block_hit_rate:.3f}" == "0.366"


def test_tokens_are_equal_exactly_as_far_as_prefix_ids_are() -> None:
    """Small cache blocks see the same hits, but for the block that the ids call equal in part."""
    requests = [
        TraceRequest(
            arrival_s=i, prompt_tokens=n, output_tokens=2, prefix_ids=ids, prefix_block=512
        )
        for i, (n, ids) in enumerate(
            [(1030, (1, 2, 3)), (1200, (1, 2, 4)), (700, (1, 2)), (9, (5,))]
        )
    ]
    result = served(requests, plan_of(1000), prefix_caching=True)
    assert result.counts.hit_tokens == 1024 + 688
    assert result.counts.hit_prefix_blocks == 2 + 1


@pytest.mark.parametrize("other", [5 + 2**22, 5 + 2**31, 5 + 2**62])
def test_ids_that_differ_are_never_taken_for_the_same(other: int) -> None:
    """Ids may be hashes: they differ in any of 63 bits."""
    pair = [
        TraceRequest(
            arrival_s=i, prompt_tokens=600, output_tokens=2, prefix_ids=(n, n), prefix_block=512
        )
        for i, n in enumerate((5, other))
    ]
    assert served(pair, plan_of(1000), prefix_caching=True).counts.hit_tokens == 0
    same = served([pair[1], pair[1]], plan_of(1000), prefix_caching=True)
    assert same.counts.hit_tokens == 592


# --- what a replay counts --------------------------------------------------------------------
def test_the_pool_runs_dry_at_the_token_that_arithmetic_says() -> None:
    """10 blocks of 16; two prompts of 64 hold 8, and their 17th output needs a third pair."""
    result = served(at_once((64, 60), (64, 60)), plan_of(11))
    # 128 prompt tokens, then pairs of tokens: blocks 5 + 5 are taken at once, 16 steps fill them.
    assert result.ran_dry is not None
    assert result.ran_dry.token == 128 + 2 * 16 and result.ran_dry.held == 160
    assert result.ran_dry.running == 2 and "short by 2" in result.ran_dry.reason
    assert result.counts.preemptions == 1 and result.counts.finished == 2
    assert result.max_running == 2 and result.peak_in_use == 10


def test_as_many_run_together_as_the_pool_holds() -> None:
    result = served(at_once(*[(100, 20)] * 9), plan_of(1 + 3 * 8))
    assert result.max_running == 3 and result.counts.finished == 9
    assert result.counts.preemptions == 0
    assert result.ran_dry is not None and result.ran_dry.running == 3
    # All of one length: three at a time, 20 steps a round (the first also stores the prompts).
    assert result.mean_running == pytest.approx(3, rel=0.05)


def test_max_num_seqs_bounds_the_batch() -> None:
    assert served(at_once(*[(10, 5)] * 9), plan_of(1000), max_num_seqs=2).max_running == 2


def test_requests_that_cannot_be_served_are_counted_not_lost() -> None:
    requests = at_once((600, 10), (300, 10), (200, 400), (50, 1))
    result = served(requests, plan_of(11 + 22, max_model_len=512))
    assert result.counts.too_long == 1  # 600 tokens
    assert result.counts.cut_short == 1  # 200 + 400
    assert result.counts.finished == 3
    alone = served(at_once((300, 10), (50, 1)), plan_of(34, max_model_len=512))
    assert alone.counts.finished == 2


def test_with_room_for_all_blocks_in_use_follow_the_closed_form() -> None:
    result = served(at_once((100, 30), (37, 60), (500, 5)), plan_of(1000))
    assert result.counts.preemptions == 0 and result.ran_dry is None
    gap = result.largest_gap
    assert gap is not None and gap.shared == 0 and gap.in_flight == 0
    assert abs(gap.blocks) < 3  # at most a block a request
    assert result.pool.in_use == 0 and result.pool.allocated == result.pool.freed == 9 + 6 + 32


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("window", [0, 40])
def test_the_parts_of_the_gap_add_up(window: int, prefix_caching: bool) -> None:
    requests = read_trace(
        section("synthetic", max_requests=60, shared_prefix_tokens=160, prompt_tokens=200)
    ).requests()
    result = served(requests, plan_of(400, window=window), prefix_caching=prefix_caching)
    gap = result.largest_gap
    assert gap is not None
    assert gap.in_use - gap.linear_blocks == pytest.approx(
        gap.in_flight - gap.shared - gap.looseness
    )
    assert gap.looseness >= 0 and (gap.shared > 0) == prefix_caching


def test_a_preempted_request_is_computed_again_and_finishes() -> None:
    result = served(at_once(*[(40, 100)] * 6), plan_of(30))
    assert result.counts.preemptions > 0 and result.counts.finished == 6
    assert result.counts.stored_tokens > 6 * 139
    assert result.pool.in_use == 0


def test_twice_the_rate_puts_more_requests_together() -> None:
    slow = run(section("azure_code_sample", max_requests=100), plan_of(4000))
    fast = run(
        section("azure_code_sample", max_requests=100, arrival_rate_scale=50.0), plan_of(4000)
    )
    assert fast.mean_running > slow.mean_running and fast.simulated_s < slow.simulated_s


# --- showing it ------------------------------------------------------------------------------
def test_the_text_and_the_plot_show_what_was_counted() -> None:
    result = served(at_once(*[(100, 20)] * 9), plan_of(1 + 3 * 8))
    text = render(result)
    for fact in (
        "9 in azure, 9 finished, 0 preemptions",
        "at most 3,",
        "at most 24 of 24 in use (100.0 %",
        "ran dry     first at token 300 ",
        "group 0 (full) ran short",
        "0 evicted",
        "slack of the line",
    ):
        assert fact in text
    svg = ElementTree.fromstring(render_svg(result))
    areas = [e.get("class") for e in svg.iter("{http://www.w3.org/2000/svg}polygon")]
    assert areas == ["cached", "use"]
    json.dumps(result.to_json())


@pytest.mark.parametrize("width", [72, 80, 100])
def test_the_text_keeps_within_the_width_and_its_labels_in_their_column(width: int) -> None:
    result = run(
        section("mooncake_sample", max_requests=40), plan_of(3000, window=512), prefix_caching=True
    )
    assert result.ran_dry is not None and result.largest_gap is not None
    lines = render(result, "an-organisation/" + "a-model " * 12, width).splitlines()
    assert max(map(len, lines)) <= width
    labels = [line[:12].strip() for line in lines]
    assert [label for label in labels if label] == [
        *("replay", "requests", "together", "wait", "first token", "each token", "blocks"),
        *("over time", "pool", "prefix", "ran dry"),
        "gap",
    ]
    assert all(line[12] != " " for line in lines if not line.startswith("over time"))


def test_one_is_not_written_as_many() -> None:
    result = served(at_once((3, 1)), plan_of(2, max_model_len=16), prefix_caching=True)
    text = " ".join(render(result).split())
    assert "capacity's closed form: 1 request of" in text and "in 1 step " in text
    shown = text + render_svg(result)
    assert re.search(r"(?<![\d,.])1 (requests|tokens|blocks|steps|preemptions)\b", shown) is None


def test_every_preemption_that_can_be_told_apart_is_marked() -> None:
    result = served(at_once(*[(40, 100)] * 6), plan_of(30))
    assert len(result.preempted_s) == result.counts.preemptions > 1
    assert all(0 < seconds <= result.simulated_s for seconds in result.preempted_s)
    svg = ElementTree.fromstring(render_svg(result))
    marks = [e for e in svg.iter("{http://www.w3.org/2000/svg}path") if e.get("class")]
    assert 0 < len(marks) <= result.counts.preemptions
    assert {mark.get("class") for mark in marks} == {"preempted"}
    assert "preempted_s" not in result.to_json()


def test_idle_time_is_drawn_idle() -> None:
    """Two requests of part of a second, 100 s apart: two ticks, and nothing between them."""
    apart = [TraceRequest(arrival_s=t, prompt_tokens=2000, output_tokens=10) for t in (0, 100)]
    trace = read_trace(section("azure_code_sample", arrivals="trace"))
    result = replay(apart, plan_of(400), trace.options)
    ((start, end),) = result.idle
    assert 0 < start < 5 and end == 100.0
    used = levels(result, lambda point: point.in_use, idle=lambda point: 0)
    between = [blocks for time_s, blocks in used if start <= time_s < end]
    assert between == [0] and max(blocks for _, blocks in used) == result.peak_in_use
    svg = ElementTree.fromstring(render_svg(result, "a model on a card"))
    words = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "a model on a card, azure: at most 1 request together" in str(words[-3])
    assert {"0", "20", "40", "60", "80", "100"} <= set(words) and "time, s (simulated)" in words


@pytest.mark.parametrize(
    ("whole", "step"), [(251, 50), (1977, 500), (0.7, 0.2), (6, 1), (1, 0.2), (86_400, 20_000)]
)
def test_ticks_are_round(whole: float, step: float) -> None:
    assert round_step(whole) == pytest.approx(step)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_a_stdout_without_bars_is_given_others(encoding: str) -> None:
    raw = io.BytesIO()
    result = served(at_once(*[(100, 20)] * 9), plan_of(1 + 3 * 8))
    lines = [Line(text) for text in render(result).split("\n")]
    stream = io.TextIOWrapper(raw, encoding=encoding)
    write_lines([*lines, Line("\u4e2d")], stream)
    stream.flush()
    shown = raw.getvalue().decode(encoding)
    over_time = next(line for line in shown.splitlines() if line.startswith("over time"))
    assert set(over_time[12:]) <= set(" .:-=+*#@") and "@" in over_time and shown.endswith("?\n")


def test_points_of_the_plot_keep_the_peak() -> None:
    result = served(at_once(*[(20, 1500)] * 8), plan_of(2000))
    assert result.steps == 12_000 or len(result.points) <= 2001
    assert max(point.in_use for point in result.points) == result.peak_in_use


def test_the_command_reports_and_writes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", "model=llama", "trace=azure_code_sample", "trace.max_requests=20"]) == 0
    out = capsys.readouterr().out
    assert "20 in azure" in out and "ran dry" in out and "meta-llama/Llama-3.1-8B" in out
    (folder,) = tmp_path.glob("outputs/*/*")
    assert json.loads((folder / "replay.json").read_text())["requests"] == 20
    assert (folder / "blocks_over_time.svg").read_text().startswith("<svg")


def test_the_command_reports_one_json_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["replay", "model=llama", "trace=synthetic", "trace.max_requests=5", "report=json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["finished"] == 5


def test_the_command_without_a_trace_is_a_wrong_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", "model=llama"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "trace: expected requests to replay, got none" in printed.err
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("model", sorted(p.stem for p in (CONF_DIR / "model").glob("*.yaml")))
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_every_preset_serves_a_trace_and_gives_all_blocks_back(
    model: str, prefix_caching: bool
) -> None:
    from kvpipe.front.prepared import prepared_request
    from kvpipe.pipeline import plan_of as plan_of_request

    if model == "hf":
        pytest.skip("a reader, not a preset")
    words = [f"model={model}", "device=cpu", "cache.kv_cache_memory_bytes=8GiB"]
    plan = plan_of_request(prepared_request(words).prepared)
    prompt = max(1, min(600, plan.limits.max_model_len // 3))
    trace = section("synthetic", max_requests=30, prompt_tokens=prompt, shared_prefix_tokens=prompt)
    result = run(trace, plan, prefix_caching=prefix_caching)
    counts = result.counts
    assert counts.finished + counts.too_long + counts.never_fit == 30 and counts.finished > 0
    assert result.pool.in_use == 0


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_accepted_drafts_save_steps_and_store_the_same_tokens(rate: float) -> None:
    drafting = plan_of(400, drafts=3)
    options = read_trace(section("azure", arrivals="at_once", acceptance_rate=rate)).options
    requests = at_once((100, 41), (37, 60), (500, 5))
    result = replay(requests, drafting, options)
    counts, plain = result.counts, served(requests, plan_of(400))
    assert counts.finished == 3 and result.pool.in_use == 0
    assert counts.stored_tokens == plain.counts.stored_tokens
    assert (counts.accepted_tokens == 0) == (rate == 0.0)
    # A prompt's step gives no token yet; at best every step gives four.
    assert result.steps == {0.0: plain.steps, 1.0: 1 + 15}.get(rate, result.steps)
    assert result.steps <= plain.steps
    assert "drafted tokens accepted" in " ".join(render(result).split())


@pytest.mark.parametrize("window", [0, 600])
def test_keys_named_by_the_trace_hit_what_keys_of_its_tokens_hit(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = read_trace(section("mooncake_sample", max_requests=40)).requests()
    small = plan_of(9000, max_model_len=131_072, window=window)
    named = served(requests, small, prefix_caching=True)
    monkeypatch.setattr(PrefixNames, "suit", lambda names, item: False)
    assert served(requests, small, prefix_caching=True) == named
    assert named.counts.hit_tokens > 0 and named.pool.evicted > 0


def test_a_preempted_request_does_not_count_its_own_blocks_as_hits() -> None:
    result = served(at_once(*[(40, 100)] * 6), plan_of(30), prefix_caching=True)
    assert result.counts.preemptions > 0
    assert (result.counts.prompt_tokens, result.counts.hit_tokens) == (240, 0)
