"""kvpipe.embed: what an engine writes through the parts is what it reads, whatever moves between.

The example engine, which is made of these parts, is compared with transformers in the full tier.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
import torch

import kvpipe
from kvpipe.embed import OutOfBlocks, Pool
from kvpipe.errors import ConfigError
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.sliding import SlidingWindowSpec

WINDOW = 20
LIMITS = RequestLimits(max_model_len=128, max_num_batched_tokens=64)


def layers() -> list[CacheLayer]:
    common = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": "float32"}
    window = SlidingWindowSpec(sliding_window=WINDOW, **common)
    kinds = [window, window, FullAttentionSpec(**common)]
    return [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(kinds)]


def opened(num_blocks: int = 64) -> Pool:
    width = kvpipe.plan(layers(), LIMITS, 2**24).ranks[0].config.bytes_per_block
    return Pool.open(kvpipe.plan(layers(), LIMITS, num_blocks * width))


def numbers(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    key, value = torch.rand((2, count, 2, 8), generator=made)
    return key, value


def test_every_layer_reads_what_was_written_while_requests_come_grow_and_go() -> None:
    pool, draw = opened(), Random(0)
    written: dict[str, list[list[tuple[torch.Tensor, torch.Tensor]]]] = {}
    for step in range(40):
        pool.begin_step()
        granted = [(name, 1) for name in written if pool.manager.num_tokens(name) < 120]
        if granted:
            pool.append([name for name, _ in granted], [0] * len(granted))
        if step % 5 == 0:
            name, count = f"r{step}", draw.randrange(1, 60)
            pool.manager.add_request(name)
            pool.grant(name, count)
            written[name] = [[] for _ in layers()]
            granted.append((name, count))
        for index, layer in enumerate(layers()):
            parts = [
                numbers(count, crc32(f"{name} {step} {index}".encode())) for name, count in granted
            ]
            for (name, _), part in zip(granted, parts, strict=True):
                written[name][index].append(part)
            pool.write(layer.name, *(torch.cat(both) for both in zip(*parts, strict=True)))
        for name in list(written):
            for index, layer in enumerate(layers()):
                wanted = [torch.cat(both) for both in zip(*written[name][index], strict=True)]
                total = pool.manager.num_tokens(name)
                is_window = layer.spec.kind == "sliding"
                first = max(0, total - WINDOW) if is_window else draw.randrange(total)
                for array, read in zip(wanted, pool.read(layer.name, name, first), strict=True):
                    assert torch.equal(read, array[first:]), (step, name, layer.name)
        if step % 7 == 6:
            gone = draw.choice(list(written))
            pool.manager.free(gone)
            del written[gone]


def test_a_shortage_leaves_everything_as_it_was() -> None:
    pool = opened(num_blocks=33)
    pool.manager.add_request("a")
    pool.begin_step()
    pool.grant("a", 64)
    pool.manager.add_request("b")
    free = pool.manager.pool.num_free
    with pytest.raises(OutOfBlocks):
        for more in range(100):
            pool.manager.add_request(more)
            pool.grant(more, 64)
            free = pool.manager.pool.num_free
    assert pool.manager.pool.num_free == free and pool.manager.num_tokens("a") == 64


def test_states_are_refused_in_a_line() -> None:
    state = MambaSpec(
        block_size=16, states=(StateArray(name="ssm", shape=(4, 4), dtype="float32"),)
    )
    plan = kvpipe.plan([CacheLayer(name="layers.0", spec=state)], LIMITS, 2**20)
    with pytest.raises(ConfigError, match=r"K and V of tokens, got layers\.0, a state"):
        Pool.open(plan)


@pytest.mark.full
def test_the_example_engine_gives_the_tokens_of_transformers() -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, str(root / "examples" / "engine.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert "16 of 16 requests equal transformers' generate" in done.stdout
    assert "\n0 preemptions" not in done.stdout and " 0 prompt tokens hit" not in done.stdout
    for engine in ("this engine", "transformers' continuous batching"):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{engine}: "))
        assert "steps a second" in line
