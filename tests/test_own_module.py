"""A module of one's own on a planned cache, and what is said where something is missing."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import kvpipe
from kvpipe.errors import ConfigError
from kvpipe.integrations.own_module import OwnCache, bind, layers_of
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mla import MLAAttentionSpec

torch = pytest.importorskip("torch")
LIMITS = RequestLimits(max_model_len=64, max_num_batched_tokens=64)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return run_path(str(Path(__file__).parents[1] / "examples/own_module.py"))


@pytest.fixture(scope="module")
def model(example: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = example["Model"]().eval()
    for matrix in model.parameters():
        matrix.data.mul_(3)
    return model


def test_the_example_generates_what_it_does_without_a_cache(
    example: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    example["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["gathered", "by block table"]


@pytest.mark.parametrize("by_table", [False, True])
def test_a_page_that_is_lost_changes_the_text(
    example: dict[str, Any], model: Any, by_table: bool
) -> None:
    """Else equal text would prove nothing."""
    prompts = [list(range(20)), [7, 3, 9]]
    plan = kvpipe.plan(layers_of(model, 4), LIMITS, 1 << 20)
    whole = bind(plan)
    losing = Losing(manager=bind(plan).manager, buffers=whole.buffers)
    with torch.no_grad():
        right = example["generate"](model, prompts, 16, whole, by_table)
        assert example["generate"](model, prompts, 16, losing, by_table) != right


class Losing(OwnCache):
    """Loses V of every decode step, which has one token of each of the two requests."""

    def write(self, layer: str, *new: Any) -> None:
        k, v = new
        super().write(layer, k, v * (len(v) != 2))


def one_layer(spec: Any) -> OwnCache:
    return bind(kvpipe.plan([CacheLayer(name="layers.0", spec=spec)], LIMITS, 1 << 16))


def test_a_latent_row_comes_back_as_keys() -> None:
    cache = one_layer(MLAAttentionSpec(block_size=4, head_size=24, dtype="float32"))
    rows = torch.randn((6, 1, 24))
    cache.add("a")
    cache.step({"a": 6})
    cache.write("layers.0", rows)
    seen = cache.gather("layers.0", "a")
    assert torch.equal(seen.keys, rows) and seen.values is None and seen.first == 0


def test_requests_of_a_step_follow_each_other_and_give_their_blocks_back() -> None:
    cache = one_layer(FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float32"))
    for name in "ab":
        cache.add(name)
    cache.step({"b": 3, "a": 5})
    k = torch.arange(8.0)[:, None, None].expand(-1, 1, 8)
    cache.write("layers.0", k, -k)
    assert cache.seq_lens.tolist() == [3, 5]
    assert cache.gather("layers.0", "a").keys[:, 0, 0].tolist() == [3, 4, 5, 6, 7]
    assert cache.gather("layers.0", "b").values[:, 0, 0].tolist() == [0, -1, -2]
    assert cache.bytes_held == 3 * 2 * 4 * 8 * 4  # blocks, K and V, tokens, numbers, bytes
    cache.free("a")
    cache.free("b")
    assert cache.bytes_held == 0


def test_a_prefix_is_served_from_the_cache() -> None:
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float32")
    plan = kvpipe.plan([CacheLayer(name="layers.0", spec=spec)], LIMITS, 1 << 16)
    cache, prompt = bind(plan, prefix_caching=True), list(range(10))
    assert cache.add("a", prompt) == 0
    cache.step({"a": 10})
    assert cache.add("b", prompt) == 8


def test_what_is_missing_is_said_in_one_line() -> None:
    pytest.importorskip("transformers")
    from kvpipe.integrations import transformers

    with pytest.raises(ConfigError, match=r"a module with kv_cache_layers\(block_size\), got Line"):
        layers_of(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="a transformers model, or its config, got Linear, which"):
        transformers.layers_of(torch.nn.Linear(2, 2))
    plan = kvpipe.plan(
        [CacheLayer(name="layers.0", spec=FullAttentionSpec(
            block_size=4, num_kv_heads=1, head_size=8, dtype="float32"))], LIMITS, 1 << 16
    )  # fmt: skip
    with pytest.raises(ConfigError, match="kvpipe.integrations.own_module takes a module of your"):
        transformers.bind(torch.nn.Linear(2, 2), plan)


def test_a_protocol_that_answers_something_else_is_named() -> None:
    class Wrong(torch.nn.Module):
        def kv_cache_layers(self, block_size: int) -> list[int]:
            return [block_size]

    with pytest.raises(ConfigError, match="Wrong.kv_cache_layers: expected .*, got int"):
        layers_of(Wrong())


SPEC = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float32")


@pytest.mark.parametrize(
    ("protocol", "got"),
    [
        (5, "got int: 5 is not a callable object"),
        (lambda self: [], "got method: too many positional arguments"),
        (lambda self, block_size: None, "got NoneType"),
        (lambda self, block_size: [], "got none"),
        (lambda self, block_size: {"a": SPEC}, "got str"),
        (lambda self, block_size: [CacheLayer(name="a", spec=SPEC)] * 2, "got 'a' twice"),
        (
            lambda self, block_size: [CacheLayer(name="a", spec=SPEC, shares_with="b")],
            "shares with 'b', which is not there",
        ),
    ],
)
def test_what_is_missing_of_the_protocol_is_one_line(protocol: Any, got: str) -> None:
    module = type("My", (torch.nn.Module,), {"kv_cache_layers": protocol})()
    with pytest.raises(ConfigError) as caught:
        layers_of(module)
    (line,) = caught.value.lines()
    assert line.startswith("My.kv_cache_layers: expected a method of one argument") and got in line


def test_wrong_rows_and_layers_are_named() -> None:
    cache = one_layer(FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float32"))
    cache.add("a")
    cache.step({"a": 2})
    rows = torch.zeros((2, 1, 8))
    with pytest.raises(ConfigError, match=r"rows of \[2, 1, 8\] and \[2, 1, 8\], got \[2, 1, 8\]$"):
        cache.write("layers.0", rows)
    with pytest.raises(ConfigError, match=r"and \[2, 1, 8\], got \[2, 1, 8\], \[2, 8, 1\]"):
        cache.write("layers.0", rows, rows.transpose(1, 2))
    with pytest.raises(ConfigError, match="layer: expected one of layers.0, got 'layers.1'"):
        cache.gather("layers.1", "a")
