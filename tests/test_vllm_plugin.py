"""The plug-in inside vLLM: it does nothing unasked, better groups when asked, and fails closed.

vLLM is a stand-in here (vllm_stand_in.py); tests marked `live` start the real one.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import vllm_stand_in as stand_in

from kvpipe.integrations.vllm import hook, planning, register
from kvpipe.integrations.vllm.settings import LeftAlone, Settings, settings_of

MEMORY = 8 * 2**20
OPTIMAL = {"grouping": "optimal"}
VERSION = "0.32.0"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger=hook.LOGGER.name)
    return caplog


def installed(version: str = VERSION) -> ModuleType:
    module = stand_in.planner()
    hook.install(module, stand_in.core_of(module), version)
    return module


def sizes(configs: list[Any]) -> list[int]:
    return [len(group.layer_names) for group in configs[0].kv_cache_groups]


def plan(
    module: ModuleType, asked: Any, full: int = 4, window: int = 10, memory: int = MEMORY
) -> list[Any]:
    layers = stand_in.layers(full, window)
    return module.get_kv_cache_configs(stand_in.config(asked), [layers], [memory])


def tokens(module: ModuleType, configs: list[Any]) -> int:
    return module.get_kv_cache_capacity(stand_in.config(), configs[0])[0]


# --- what it does -----------------------------------------------------------------------------
def test_an_engine_that_does_not_ask_gets_its_own_plan_and_no_word(
    warnings: pytest.LogCaptureFixture,
) -> None:
    assert plan(installed(), None) == plan(stand_in.planner(), None)
    assert not warnings.records


def test_asked_for_the_best_groups_the_engine_holds_more_tokens_of_the_same_layers(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = installed()
    own, better = plan(module, None), plan(module, OPTIMAL)
    assert sizes(own) == [4, 3, 3, 4] and sizes(better) == [2] * 7
    assert tokens(module, better) > tokens(module, own)
    names = [name for group in better[0].kv_cache_groups for name in group.layer_names]
    assert sorted(names) == sorted(stand_in.layers(4, 10))
    (said,) = warnings.messages
    assert f"{tokens(module, own):,} tokens -> 7 groups" in said
    assert f"{tokens(module, better):,} tokens" in said


def test_no_grouping_within_the_limits_beats_the_one_that_was_chosen() -> None:
    module = installed()
    asked = {**OPTIMAL, "price_of_a_group": 0, "max_groups": 99}
    for full, window in ((1, 5), (4, 10), (3, 4), (12, 13), (2, 9), (5, 7)):
        chosen = tokens(module, plan(module, asked, full, window))
        for size in range(1, full + window + 1):  # every size, planned by the engine itself
            parts = [-(-n // size) for n in (full, window)]
            width = max(-(-n // k) for n, k in zip((full, window), parts, strict=True))
            blocks = MEMORY // (width * stand_in.FullAttentionSpec().page_size_bytes)
            config = stand_in.config()
            needed = parts[0] * stand_in.FullAttentionSpec().blocks(config)
            needed += parts[1] * stand_in.SlidingWindowSpec(sliding_window=32).blocks(config)
            assert int(blocks / needed * 256) <= chosen, (full, window, size)


def test_layers_that_are_one_group_stay_one(warnings: pytest.LogCaptureFixture) -> None:
    module = installed()
    assert plan(module, OPTIMAL, full=6, window=0) == plan(module, None, full=6, window=0)
    assert warnings.messages == ["kvpipe: one group of layers, nothing to regroup"]


def test_no_more_tables_than_allowed() -> None:
    module = installed()
    assert len(sizes(plan(module, {**OPTIMAL, "max_groups": 6}))) <= 6


@pytest.mark.parametrize(
    ("price", "most", "further"),
    [(0.005, 0.03, 6), (0.015, 0.03, 2), (0.005, 0.01, 2), (0.2, 0, 0)],
)
def test_further_tables_cost_no_more_of_a_step_than_allowed(
    price: float, most: float, further: int
) -> None:
    module = installed()
    asked = {**OPTIMAL, "price_of_a_group": price, "slower_at_most": most}
    for full, window in ((4, 10), (3, 4), (4, 22)):
        own, chosen = plan(module, None, full, window), plan(module, asked, full, window)
        assert len(sizes(chosen)) - len(sizes(own)) <= further
    assert len(sizes(plan(module, asked, 3, 4))) == {6: 7, 2: 3, 0: 2}[further]


def test_the_report_says_what_really_fits_and_leaves_the_plan(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = installed()
    assert plan(module, {"report": True}) == plan(module, None)
    text = "\n".join(warnings.messages)
    for words in ("in the steady state", "the engine prints", "layers a group lacks", "null block"):
        assert words in text


def test_the_core_that_holds_the_planner_by_name_gets_it_too() -> None:
    module = stand_in.planner()
    core = stand_in.core_of(module)
    hook.install(module, core, VERSION)
    assert core.get_kv_cache_configs is module.get_kv_cache_configs


def test_a_second_load_changes_nothing() -> None:
    module = installed()
    before = module.get_kv_cache_configs
    hook.install(module, None, VERSION)
    assert module.get_kv_cache_configs is before


# --- what it refuses --------------------------------------------------------------------------
def stays(module: ModuleType, warnings: pytest.LogCaptureFixture, *words: str) -> None:
    """The engine's own plan, and one warning that says why."""
    before = stand_in.planner()
    assert sizes(plan(module, OPTIMAL)) == sizes(plan(before, None))
    found = [r.getMessage() for r in warnings.records if r.levelno >= logging.WARNING]
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


@pytest.mark.parametrize("version", ["0.27.0", "0.33.0", "1.0.0"])
def test_a_release_that_was_not_tested_is_left_alone(
    version: str, warnings: pytest.LogCaptureFixture
) -> None:
    stays(installed(version), warnings, version, "0.28 to 0.32")


def test_an_unknown_spec_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stand_in, "FullAttentionSpec", stand_in.NewSpec)
    stays(installed(), warnings, "NewSpec, which kvpipe does not know")


def test_a_field_that_says_something_new_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    real = stand_in.SlidingWindowSpec
    monkeypatch.setattr(
        stand_in, "SlidingWindowSpec", lambda **given: real(**given, extra_retained_tokens=3)
    )
    stays(installed(), warnings, "extra_retained_tokens=3")


def test_a_page_that_kvpipe_counts_otherwise_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        stand_in.FullAttentionSpec, "page_size_bytes", property(lambda spec: 8192 + 64)
    )
    stays(installed(), warnings, "bytes, kvpipe counts")


def test_an_engine_whose_own_plan_is_not_kvpipes_is_left_alone(
    warnings: pytest.LogCaptureFixture,
) -> None:
    """A release that came to group otherwise: all in one group of each kind."""
    module = installed()
    own = module.get_kv_cache_groups

    def get_kv_cache_groups(vllm_config: Any, specs: dict[str, Any]) -> list[Any]:
        return list(reversed(own(vllm_config, specs)))

    module.get_kv_cache_groups = get_kv_cache_groups  # type: ignore[attr-defined]
    assert sizes(plan(module, OPTIMAL)) == [4, 3, 3, 4]
    assert "differs: other groups" in warnings.messages[-1]


def test_groups_that_the_engine_plans_otherwise_than_promised_are_left_alone(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = installed()
    own = module.create_kv_cache_group_specs

    def create_kv_cache_group_specs(specs: dict[str, Any], names: list[list[str]]) -> list[Any]:
        groups = own(specs, names)
        return groups if len(names) < 7 else [*groups[:-1], *own(specs, [names[-1][:1]])]

    module.create_kv_cache_group_specs = create_kv_cache_group_specs  # type: ignore[attr-defined]
    stays(module, warnings, "the engine makes another plan of kvpipe's groups")


@pytest.mark.parametrize("name", hook.USED)
def test_a_private_name_that_is_gone_leaves_the_engine_as_it_is(
    name: str, warnings: pytest.LogCaptureFixture
) -> None:
    module = stand_in.planner()
    before = module.get_kv_cache_configs
    delattr(module, name)
    hook.install(module, None, VERSION)
    assert getattr(module, "get_kv_cache_configs", None) in (None, before)
    assert f"has no {name}" in warnings.messages[0]


def test_two_plug_ins_that_replace_the_same_do_not_meet(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = stand_in.planner()

    def another(*_: Any) -> list[Any]:
        return []

    module.get_kv_cache_configs = another  # type: ignore[attr-defined]
    hook.install(module, None, VERSION)
    assert module.get_kv_cache_configs is another
    assert "was replaced already, by test_vllm_plugin" in warnings.messages[0]


def test_a_core_with_another_planner_is_left_alone(warnings: pytest.LogCaptureFixture) -> None:
    module = stand_in.planner()
    hook.install(module, stand_in.core_of(stand_in.planner()), VERSION)
    assert not hasattr(module.get_kv_cache_configs, "is_kvpipe")
    assert "has another get_kv_cache_configs" in warnings.messages[0]


def test_groups_that_the_engine_marks_as_a_drafts_are_left_alone(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = installed()
    own = module.get_kv_cache_groups

    def get_kv_cache_groups(vllm_config: Any, specs: dict[str, Any]) -> list[Any]:
        groups = own(vllm_config, specs)
        groups[-1].is_eagle_group = True
        return list(groups)

    module.get_kv_cache_groups = get_kv_cache_groups  # type: ignore[attr-defined]
    stays(module, warnings, "groups of a draft model are marked")
    assert module.get_kv_cache_groups is get_kv_cache_groups


def test_tables_that_cost_more_than_they_bring_are_not_made(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = installed()
    assert sizes(plan(module, {**OPTIMAL, "price_of_a_group": 0.2})) == [4, 3, 3, 4]
    assert warnings.messages[-1].endswith("no other grouping is worth more")


def test_two_plug_ins_of_which_the_other_comes_later_leave_its_groups(
    warnings: pytest.LogCaptureFixture,
) -> None:
    """It replaced what the engine's planner calls after kvpipe took hold of the planner."""
    module = installed()
    own = module.get_kv_cache_groups

    def theirs(vllm_config: Any, specs: dict[str, Any]) -> list[Any]:
        names = [name for group in own(vllm_config, specs) for name in group.layer_names]
        return list(module.create_kv_cache_group_specs(specs, [[name] for name in names]))

    module.get_kv_cache_groups = theirs  # type: ignore[attr-defined]
    assert sizes(plan(module, OPTIMAL)) == [1] * 14
    assert "the engine's own plan stays" in warnings.messages[-1]
    assert module.get_kv_cache_groups is theirs


def test_an_engine_that_cannot_be_looked_at_starts_without_kvpipe(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # what an import of it meets: an ImportError
    register()
    assert warnings.messages[0].startswith("kvpipe is left out: ")


def test_our_own_fault_never_stops_an_engine(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(planning, "request_of", broken)
    stays(installed(), warnings, "RuntimeError: a fault of ours")


def test_what_does_not_fit_is_refused_by_the_engine_itself() -> None:
    module = installed()
    with pytest.raises(ValueError, match="larger than the available"):
        plan(module, OPTIMAL, memory=2**18)


def test_every_wrong_setting_is_named_and_the_engine_starts(
    warnings: pytest.LogCaptureFixture,
) -> None:
    module = installed()
    asked = {"grouping": "best", "groups": 3, "report": 1}
    assert sizes(plan(module, asked)) == [4, 3, 3, 4]
    (said,) = warnings.messages
    for words in ("got 'groups'", "engine or optimal, got 'best'", "true or false, got 1"):
        assert words in said


@pytest.mark.parametrize("asked", [3, "optimal", ["optimal"]])
def test_settings_that_are_no_object_are_named(asked: object) -> None:
    with pytest.raises(LeftAlone, match="expected an object"):
        settings_of({"kvpipe": asked})


def test_nothing_asked_is_nothing_done() -> None:
    assert settings_of({}) is None and settings_of(None) is None
    assert settings_of({"kvpipe": {}}) == Settings()
