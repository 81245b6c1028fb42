"""Engines, memory sources, reports and traces, found by scanning: each keeps its room's promise.

Specs have a walk of their own (test_spec_walk), and layouts, too (test_layouts).
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvpipe
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import EngineRules
from kvpipe.engines.versions import DISTINCT, rules_of
from kvpipe.errors import ConfigError, DoesNotFit, KvpipeError
from kvpipe.plugins import REGISTRIES, SPECS
from kvpipe.report.base import Answer
from kvpipe.simulation.play import TRACES
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.stages.grouping.planning import plan
from kvpipe.text.lines import Line

CONF = Path(__file__).parents[1] / "conf"
LIMITS = RequestLimits(max_model_len=200, max_num_batched_tokens=32, max_encoder_tokens=30)
MEMORY = 1 << 22


def options(group: str, choice: str, **more: Any) -> Any:
    """The checked options of a choice, as its YAML writes them out."""
    return yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8")) | more


# --- engines --------------------------------------------------------------------------------
def engines() -> list[EngineRules]:
    found = [REGISTRIES["engine"].get(name) for name in REGISTRIES["engine"].names()]
    rules = [each for each in found if isinstance(each, EngineRules)]
    return rules + [rules_of(version) for version in DISTINCT]


def mixes() -> list[list[KVCacheSpec]]:
    kinds = [SPECS.get(name).examples()[-1] for name in SPECS.names()]
    return [[a, b, b] for a, b in combinations_with_replacement(kinds, 2)]


@pytest.mark.parametrize("rules", engines(), ids=lambda rules: rules.name)
def test_every_engine_plans_every_two_kinds_or_says_why_not(rules: EngineRules) -> None:
    planned = 0
    for specs in mixes():
        layers = [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs)]
        try:
            made = plan(layers, LIMITS, MEMORY, rules=rules)
        except (ConfigError, DoesNotFit) as error:
            assert all(": " in line for line in error.lines())
            continue
        planned += 1
        check_plan(made, specs)
        assert made.engine == made.printed[0].engine == rules.name
    assert planned


def check_plan(made: Plan, specs: Sequence[KVCacheSpec]) -> None:
    """Each layer is in one group, and its pages lie inside memory that was given."""
    config = made.ranks[0].config
    assert config.size_bytes <= MEMORY
    assert config.num_blocks * config.bytes_per_block <= MEMORY
    names = [name for group in config.groups for name in group.layer_names]
    assert sorted(names) == sorted(f"layers.{i}" for i in range(len(specs)))
    for tensor in config.tensors:
        for page in tensor.pages:
            assert 0 <= page.offset < tensor.size_bytes and page.block_stride > 0


# --- memory sources ---------------------------------------------------------------------------
@pytest.mark.parametrize("name", REGISTRIES["profiling"].names())
def test_every_memory_source_accounts_for_what_it_gives_or_says_what_it_lacks(name: str) -> None:
    chosen = [f"profiling={name}", "model=tinyllama", "device=h100_80gb", "backend=meta"]
    try:
        result = kvpipe.run([*chosen, "cache.kv_cache_memory_bytes=64MiB"])
    except KvpipeError as error:
        assert error.exit_code in (1, 2) and all(": expected " in line for line in error.lines())
        return
    for rank in result.profile.ranks:
        assert rank.available_kv.how in ("measured", "exact", "estimated", "nominal", "set")
        assert all(item.num_bytes >= 0 and item.source for item in rank.charged)
    assert result.plan.ranks[0].config.size_bytes <= result.profile.ranks[0].available_kv.num_bytes


# --- reports ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", REGISTRIES["report"].names())
def test_every_report_tells_a_success_and_a_failure_on_its_stream_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = REGISTRIES["report"].get(name)
    report, stream = kind(kind.Options(**options("report", name))), StringIO()
    told = Answer(
        status="fits", exit_code=0, lines=lambda width: [Line("it fits")], document={"fits": True}
    )
    report.render(told, None, stream)
    report.render_failure(DoesNotFit("it does not"), None, stream)
    assert capsys.readouterr() == ("", "")
    assert "\x1b" not in stream.getvalue()


# --- traces -----------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", sorted(path.stem for path in (CONF / "trace").glob("*.yaml")))
def test_every_trace_gives_requests_in_order_of_arrival(choice: str) -> None:
    written = options("trace", choice, max_requests=50)
    if written["name"] not in TRACES:
        assert choice == "none"
        return
    kind = TRACES.get(written["name"])
    try:
        requests = kind(kind.Options(**written)).requests()
    except ConfigError as error:
        assert written["path"] == "sample" and "trace.path" in str(error)
        return
    assert 0 < len(requests) <= 50
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals) and arrivals[0] >= 0
    assert all(r.prompt_tokens > 0 and r.output_tokens > 0 for r in requests)


def test_every_trace_reader_has_a_choice_that_names_it() -> None:
    chosen = {options("trace", path.stem)["name"] for path in (CONF / "trace").glob("*.yaml")}
    assert set(TRACES.names()) <= chosen
