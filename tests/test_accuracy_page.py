"""docs/accuracy.md is what its script makes, and says what the tests prove."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from accuracy_records import PEAKS, WEIGHTS, peak_of, weights_of
from engine_records import cases

from kvpipe.stages.profiling.estimates import WIDEST
from kvpipe.text.figures import GIB

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.mark.full
def test_the_accuracy_page_is_current() -> None:
    import accuracy

    assert accuracy.PAGE.read_text(encoding="utf-8") == accuracy.page()


def test_the_page_says_how_many_printed_peaks_lie_inside() -> None:
    inside = sum(peak.inside for peak in PEAKS.values())
    known = sum(peak.shape is not None for peak in PEAKS.values())
    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert f"Activation peak: {inside} of {known} printed values lie inside" in text
    assert len(PEAKS) == sum(case["activation_gib"] is not None for case in cases().values())


def test_no_range_misses_more_than_one_printed_value_in_ten() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    found = re.findall(r"### .*: (\d+) of (\d+) printed values lie inside", text)
    assert len(found) == 4
    assert all(10 * int(inside) >= 9 * int(known) for inside, known in found)


@pytest.mark.parametrize(
    "name", [name for name, peak in PEAKS.items() if peak.shape and not peak.is_packed]
)
def test_no_published_range_of_counted_arrays_is_wider_than_three(name: str) -> None:
    estimate = peak_of(name)
    assert estimate.high <= WIDEST * estimate.low


@pytest.mark.full
@pytest.mark.parametrize("name", WEIGHTS)
def test_what_an_engine_holds_lies_in_the_range_of_file_and_loading(name: str) -> None:
    printed, (_, estimate) = cases()[name]["weights_gib"] * GIB, weights_of(name)
    assert estimate.low - GIB / 200 <= printed <= estimate.high + GIB / 200


@pytest.mark.parametrize("name", ["L15", "L16", "L01"])
def test_weights_are_counted_to_the_printed_digit(name: str) -> None:
    assert weights_of(name)[0] == pytest.approx(cases()[name]["weights_gib"], abs=0.035)


def test_the_changelog_counts_the_same_outcomes() -> None:
    import accuracy

    text = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    counts = accuracy.outcome_counts()
    for outcome, words in (
        ("reproduced", "{} are reproduced"),
        ("ambiguous", "{} ambiguous"),
        ("ranks", "{} are lines of different ranks"),
        ("unexplained", "{} are unexplained"),
        ("nothing to check", "{} give nothing to check"),
    ):
        assert words.format(counts[outcome]) in text
