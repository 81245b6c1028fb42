"""The Python API: run() for all stages, plan() for grouping alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kvpipe
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
LAYERS = [CacheLayer(name=f"model.layers.{i}.self_attn.attn", spec=SPEC) for i in range(32)]
LIMITS = RequestLimits(max_model_len=4096, max_num_batched_tokens=2048)


def test_run_takes_what_the_command_line_takes_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["model=tinyllama", "cache=sliding", "cache.kv_cache_memory_bytes=64MiB"]
    result = kvpipe.run([*asked, "cache.sliding_window=256", "backend=torch"])
    assert result.plan.num_blocks == 64 * 2**20 // (22 * 16 * 4 * 64 * 2 * 2)
    assert result.bound[0].verify.passed and result.bound[0].verify.rows > 0
    assert result.bound[0].buffers.allocated_bytes == result.plan.ranks[0].config.size_bytes
    assert not list(tmp_path.iterdir())


def test_run_raises_every_problem_at_once():
    with pytest.raises(ConfigError) as caught:
        kvpipe.run(["cache.block_size=abc", "cache.nothing=1"])
    assert len(caught.value.problems) == 2


def test_plan_needs_no_hydra_and_no_torch():
    plan = kvpipe.plan(LAYERS, LIMITS, 2**30)
    assert plan.num_blocks == 512 and plan.capacity.usable_blocks == 511
    with pytest.raises(DoesNotFit):
        kvpipe.plan(LAYERS, LIMITS, 2**20)
    heavy = "{'torch', 'hydra', 'numpy'}"
    code = f"import sys, kvpipe; kvpipe.plan; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_one_string_is_not_a_list_of_settings():
    with pytest.raises(TypeError, match="not one string"):
        kvpipe.run("model=llama")


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        kvpipe.plam  # noqa: B018
