"""The quick way composes what Hydra composes, or leaves the request to Hydra."""

from __future__ import annotations

import random
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvpipe.errors import ConfigError, Problem
from kvpipe.front.prepared import prepared_request
from kvpipe.request.compose import compose_request, configuration
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.plain_yaml import dump_yaml, load_yaml
from kvpipe.request.quick import quick_compose

GROUPS = sorted(path.name for path in CONF_DIR.iterdir() if path.is_dir() and path.name != "hydra")
OPTIONS = [(g, path.stem) for g in GROUPS for path in sorted((CONF_DIR / g).glob("*.yaml"))]


def by_hydra(*overrides: str) -> tuple[dict[str, Any], str]:
    """Inside configuration(): values and YAML."""
    composed = compose_request(list(overrides))
    assert not composed.problems
    own = OmegaConf.masked_copy(composed.config, [str(k) for k in composed.config if k != "hydra"])
    return composed.raw, OmegaConf.to_yaml(own, resolve=True)


def agree(*overrides: str) -> bool:
    """Whether the quick way answered; if so, with the same values, types, order and YAML."""
    quick = quick_compose(list(overrides))
    if quick is None:
        return False
    values, text = by_hydra(*overrides)
    assert quick == values and repr(quick) == repr(values), overrides
    assert dump_yaml(quick) == text, overrides
    return True


@pytest.mark.parametrize(
    "options", [OPTIONS[::40], pytest.param(OPTIONS, marks=pytest.mark.full)], ids=["some", "all"]
)
def test_shipped_options_compose_the_same_both_ways(options: list[tuple[str, str]]) -> None:
    with configuration():
        left = [f"{group}={option}" for group, option in options if not agree(f"{group}={option}")]
    assert set(left) <= {"attention=sliding"}, left  # it asks for what another section lacks


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("cache=sliding", "model=llama"),
        ("cache=sliding", "attention=full"),
        ("example=mamba", "cache=full", "cache.block_size=32"),
        ("example=longformer", "device=h200"),
        ("model=llama", "cache.kv_cache_memory_bytes=30GiB", "scheduler.max_model_len=32768"),
        ("cache.gpu_memory_utilization=0.5", "cache.enable_prefix_caching=false"),
        ("cache.sliding_window=null", "cache.enable_prefix_caching=TRUE"),
        ("engine=vllm", "model.dtype=float16", "command=find", "want.requests=64"),
        ("engine=vllm", "engine.version=0.21.0"),
        ("engine=vllm", "engine.version=0.10.1.1", "model=hf", "model.path=/data/a-b/c_1.5/x"),
        ("model=hf", "model.repo=Qwen/Qwen3-235B-A22B", "model.path=./1/2"),
        ("model=hf", "model.path=./2026-11-30/e5", "device.name=1.5-b"),
    ],
)
def test_plain_requests_are_composed_quickly(overrides: tuple[str, ...]) -> None:
    with configuration():
        assert agree(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ("cache.block_size=0",),
        ("cache.block_size=-1", "model=llama3_70b", "parallel.tensor_parallel_size=7"),
        ("device=h100_80gb", "scheduler.max_model_len=999999999", "cache.cache_dtype=int3"),
        ("engine=vllm", "engine.version=9.9.9.9", "parallel=tp2"),
        ("model=hf", "model.path=/nowhere/at-all"),
        ("model=llama", "cache=sliding", "attention=full"),
    ],
)
def test_what_is_wrong_is_said_in_the_same_words_both_ways(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def problems() -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            prepared_request(overrides)
        return caught.value.problems

    assert quick_compose(overrides) is not None
    quick = problems()
    monkeypatch.setattr("kvpipe.front.prepared.quick_compose", lambda overrides: None)
    assert problems() == quick


@pytest.mark.parametrize(
    "override",
    [
        "+cache.new=1",
        "~cache.block_size",
        "cache.nothing=1",
        "nothing=1",
        "cache=nothing",
        "cache.block_size=1_000",
        "cache.block_size=1e3",
        "cache.block_size=nan",
        "cache.block_size='16'",
        "parallel.pipeline_partition=[20,12]",
        "cache.block_size=${scheduler.max_num_seqs}",
        "hydra.run.dir=x",
        "cache=full,sliding",
        "cache.block_size=16,32",
        "device.name=a b",
        "cache=../cache/full",
        "cache.block_size=",
        "engine.version=0.21.0",
        "cache@x=full",
        "model.layers=1",
    ],
)
def test_what_is_not_plain_is_left_to_hydra(override: str) -> None:
    assert quick_compose([override]) is None


def test_a_setting_that_is_said_twice_is_left_to_hydra() -> None:
    assert quick_compose(["cache.block_size=16", "cache.block_size=32"]) is None


def random_text(rng: random.Random) -> str:
    """Names, paths, releases, dates, and what looks like numbers."""
    parts = [rng.choice(["a", "B_1", "7", "1e5", "nan", "true", "null", "0x1", "x-1", ""])]
    for _ in range(rng.randint(0, 3)):
        parts += [rng.choice("/.-_"), rng.choice(["b", "12", "e5", "inf", "Q", "0"])]
    return rng.choice(["", "", "./", "/"]) + "".join(parts)


def random_request(rng: random.Random) -> list[str]:
    words = {g: f"{g}={rng.choice([o for h, o in OPTIONS if h == g])}" for g in GROUPS}
    chosen = [words[g] for g in rng.sample(GROUPS, rng.randint(0, 5))]
    settings = [
        "cache.block_size=32",
        "cache.kv_cache_memory_bytes=8GiB",
        "cache.gpu_memory_utilization=0.75",
        "scheduler.max_model_len=4096",
        "scheduler.max_num_seqs=auto",
        "parallel.tensor_parallel_size=2",
        "device.bandwidth_bytes_per_s=null",
        "cache.enable_prefix_caching=false",
        "model.dtype=bfloat16",
        f"model.name={random_text(rng)}",
    ]
    chosen += rng.sample(settings, rng.randint(0, 4))
    rng.shuffle(chosen)
    return chosen


def same_as_hydra(rounds: int, seed: int) -> int:
    rng, quick = random.Random(seed), 0
    with configuration():
        for _ in range(rounds):
            quick += agree(*random_request(rng))
    return quick


def test_random_requests_compose_the_same_both_ways() -> None:
    assert same_as_hydra(6, seed=1) >= 4


@pytest.mark.parametrize(
    ("rounds", "seed"),
    [
        pytest.param(200, 2, marks=pytest.mark.full),
        pytest.param(2000, 3, marks=pytest.mark.nightly),
    ],
)
def test_thousands_of_random_requests_compose_the_same_both_ways(rounds: int, seed: int) -> None:
    assert same_as_hydra(rounds, seed) >= rounds * 3 // 4


@pytest.mark.parametrize(
    "text", ["1e6", "yes", "12", "2026-01-01", "0x1F", "1:30", "", "a: b", "~"]
)
def test_yaml_reads_and_writes_as_omegaconf_does(text: str) -> None:
    assert dump_yaml({"a": text}) == OmegaConf.to_yaml(OmegaConf.create({"a": text}))
    written = f"a: {text!r}" if ":" in text else f"a: {text}"
    assert load_yaml(written) == OmegaConf.to_container(OmegaConf.create(written))


def test_a_plain_run_imports_nothing_that_it_does_not_need(tmp_path) -> None:
    """Hydra, what would read the metadata of all packages, and parts of kvpipe for other runs."""
    import subprocess
    import sys

    code = (
        "import sys; before = set(sys.modules); from kvpipe.front.main import main\n"
        "sys.argv = ['kvpipe', 'model=llama', 'device=h100_80gb', 'report=none']\n"
        "heavy = {'hydra', 'omegaconf', 'antlr4', 'torch', 'numpy', 'rich', 'importlib.metadata',\n"
        "         'email', 'tempfile', 'shutil', 'socket', 'csv', 'html', 'kvpipe.logs',\n"
        "         'kvpipe.stages.binding._proof', 'kvpipe.stages.grouping.slots.rule'}\n"
        "try: main()\n"
        "finally: print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stdout + done.stderr
