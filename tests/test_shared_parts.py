"""What jobs of a sweep share is made once, and is the same as made anew."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvpipe
from kvpipe.front.jobs_here import run_jobs_here
from kvpipe.report.document import plan_document
from kvpipe.report.folded import folded, unfolded
from kvpipe.report.of_run import report_input
from kvpipe.request.confdir import shipped_option
from kvpipe.request.plain_yaml import dump_sections, dump_words, dump_yaml
from kvpipe.request.quick import quick_compose
from kvpipe.stages.allocation import addresses
from kvpipe.text.clean import clean
from kvpipe.text.markup import shown

# What YAML may read as something else than the text that it is.
ODD = (
    *("y", "No", "ON", "null", "NULL", "Null", "~", "nan", "NaN", "inf", "Infinity", "-", "?", ""),
    *("0x1f", "1e3", "e5", "1_000", "12:30", "2026-11-30", "a: b", "a #b", "'", "model=llama", "="),
    *("x" * 59, "x" * 61, "x=" + "y" * 100, "a.b=-1", "a=[1,2]", "a=b c", "a=b:c", "key", "auto"),
)

JOBS = [
    ["model=gemma3_27b", "device=h200", f"scheduler.max_model_len={length}", f"cache={cache}"]
    for length in (4096, 8192)
    for cache in ("full", "fp8")
]
JOBS += [["model=llama", "device=h200", f"layout={name}"] for name in ("flash_attn", "kv_packed")]


def test_a_job_after_others_leaves_what_it_leaves_alone(tmp_path: Path) -> None:
    run_jobs_here(tmp_path / "all", JOBS, range(len(JOBS)), lambda: None)
    for number in range(len(JOBS)):
        addresses._addresses.cache_clear()
        run_jobs_here(tmp_path / "alone", JOBS, [number], lambda: None)
        for name in ("plan.json", "memory_map.svg", "result.json", ".hydra/config.yaml"):
            ours, theirs = (
                (tmp_path / place / str(number) / name).read_text() for place in ("all", "alone")
            )
            if name == "plan.json":
                ours, theirs = ({**json.loads(t), "seconds": 0} for t in (ours, theirs))
            assert ours == theirs, (number, name)


def test_sections_are_written_as_the_whole_is() -> None:
    for job in JOBS:
        values = quick_compose(job)
        assert values is not None and dump_sections(values) == dump_yaml(values)


def test_who_changes_a_shipped_option_changes_his_own() -> None:
    first = shipped_option("profiling", "estimate")
    first["name"] = "mine"
    assert shipped_option("profiling", "estimate")["name"] == "estimate"


@pytest.mark.parametrize("model", ["llama", "jamba"])
def test_a_shared_part_is_folded_as_any_other(model: str) -> None:
    result = kvpipe.run([f"model={model}", "device=h200", "backend=meta"])
    document = plan_document(report_input(result))
    for name in ("plan", "address_map"):
        plain = json.loads(json.dumps(document[name]))
        assert folded(document[name]) == folded(plain)
        assert unfolded(folded(document[name])) == plain


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.sampled_from(ODD)
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(ODD), st.text(max_size=8)), SCALARS, max_size=5))
def test_a_section_written_by_hand_is_what_yaml_writes(section: dict[str, object]) -> None:
    assert dump_sections({"section": section}) == dump_yaml({"section": section})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=30)), max_size=4))
def test_overrides_written_by_hand_are_what_yaml_writes(words: list[str]) -> None:
    words += [f"key={word}" for word in words]
    assert dump_words(words) == dump_yaml(words)


@given(st.text())
def test_text_of_a_picture_is_escaped_as_html_is(words: str) -> None:
    assert shown(words) == escape(clean(words))
