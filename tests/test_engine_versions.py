"""One table rule -> version range -> source, and the engines that are rows of it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kvpipe.engines.base import EngineRules
from kvpipe.engines.versions import DISTINCT, NEWEST, OLDEST, RULES, parse_version, rules_of
from kvpipe.engines.vllm import PLUGIN
from kvpipe.engines.vllm_0_17 import PLUGIN as VLLM_0_17
from kvpipe.engines.vllm_0_33 import PLUGIN as VLLM_0_33
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import plan_of

RELEASES = [f"0.{minor}.0" for minor in range(2, 36)]


@pytest.mark.parametrize("version", RELEASES)
def test_every_release_has_exactly_one_row_of_each_rule(version: str) -> None:
    parsed = min(parse_version(version), (0, 33, 0))
    for rule in {row.rule for row in RULES}:
        assert sum(row.holds(parsed) for row in RULES if row.rule == rule) == 1, rule


def test_every_rule_of_the_table_is_a_field_of_engine_rules_and_has_a_source() -> None:
    known = {field.name for field in fields(EngineRules)}
    known -= {"name", "source", "version", "unread"}
    known -= {"groups", "splits_apart_pages"}  # no release of vLLM has slots
    assert {row.rule for row in RULES} == known
    assert all(row.source for row in RULES)


@pytest.mark.parametrize(("preset", "version"), [(VLLM_0_17, "0.17.0"), (VLLM_0_33, "0.33.0")])
def test_the_two_presets_are_rows_of_the_table(preset: EngineRules, version: str) -> None:
    row = rules_of(version)
    assert replace(row, name=preset.name) == preset


def test_neighbouring_sets_of_rules_differ() -> None:
    sets = [replace(rules_of(version), name="", source="", version="") for version in DISTINCT]
    merged = [s for i, s in enumerate(sets) if s not in sets[:i]]
    # 0.12 and 0.17 plan alike; what changed between them are defaults.
    assert len(merged) == len(DISTINCT) - 1


def test_the_token_line_changed_with_0_21() -> None:
    assert rules_of("0.20.2").printed == "group_share"
    assert rules_of("0.21.0").printed == "by_concurrency"


@pytest.mark.parametrize(
    ("version", "as_release", "words"),
    [
        ("0.40.1", "0.33.0", "newer than any that was read: it is planned as 0.33.0"),
        ("99.0.0", "0.33.0", "newer than any that was read: it is planned as 0.33.0"),
        ("0.0.0", "0.6.0", "older than any that was read: it is planned as 0.6.0"),
    ],
)
def test_an_unknown_release_is_planned_as_its_neighbour_and_a_run_says_so(
    version: str, as_release: str, words: str
) -> None:
    rules, known = rules_of(version), rules_of(as_release)
    assert words in rules.unread and known.unread == ""
    assert replace(rules, name="", source="", version="", unread="") == replace(
        known, name="", source="", version=""
    )
    plan = plan_of(
        prepared_request(
            ["engine=vllm", f"engine.version={version}", "device=h100_80gb", "model=llama"]
        ).prepared
    )
    assert f"vLLM {version} is {rules.unread}" in [note.text for note in plan.notes]


def test_the_oldest_and_the_newest_release_are_known() -> None:
    for version in (OLDEST, NEWEST, (0, 33, 9)):
        assert rules_of(".".join(map(str, version))).unread == ""
    assert "newest release that was read" in rules_of("0.40.1").source


def test_a_version_of_thousands_of_digits_is_refused_in_a_few_words() -> None:
    with pytest.raises(ConfigError, match="a release in three parts, such as 0.21.0") as caught:
        prepared_request(["engine=vllm", f"engine.version='0.{'9' * 5000}.0'"])
    assert len(str(caught.value)) < 300


def test_a_development_build_counts_as_its_release() -> None:
    assert parse_version("0.28.1rc1.dev452") == (0, 28, 1)


@pytest.mark.parametrize(
    "text", ["0.21", "latest", "", "1", "0.1_0.0", "0.٣.0", "0." + "9" * 5000 + ".0"]
)
def test_a_version_that_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="three parts"):
        parse_version(text)


@pytest.mark.parametrize("written", ["0.21", "0.10"])
def test_two_parts_arrive_as_a_number_and_are_refused_with_the_hint(written: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.version: expected a release in three parts"):
        prepared_request(["engine=vllm", f"engine.version={written}"])


def test_engine_vllm_with_a_version_picks_its_rules() -> None:
    config = prepared_request(["engine=vllm", "engine.version=0.21.0"]).prepared.config
    assert config.plugins["engine"].make(EngineRules) == rules_of("0.21.0")


def test_a_preset_makes_itself() -> None:
    request = prepared_request(["engine=vllm_0_17"]).prepared
    assert request.config.plugins["engine"].make(EngineRules) is VLLM_0_17
    assert PLUGIN(PLUGIN.Options(name="vllm", version="0.17.0")).printed == VLLM_0_17.printed
