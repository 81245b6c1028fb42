"""Every preset x layout x placement that is not refused by name.

Two questions, each answered without the code under test: are the bytes that the allocator obtained
those of the model's geometry, and does any byte belong to two different block ids? New presets,
layouts and placements join by being in conf/; of presets alike in kind, a commit takes one.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
from presets import DISTINCT, PRESETS, SOME_AND_ALL

from kvpipe.backends.torch_ import PLUGIN as TorchBackend
from kvpipe.cache.addresses import AddressMap
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.request.confdir import CONF_DIR, shipped_option
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import PLUGIN as Buffers
from kvpipe.stages.grouping.planning import plan

LAYOUTS = sorted(p.stem for p in (CONF_DIR / "layout").glob("*.yaml"))
PLACEMENTS = sorted(p.stem for p in (CONF_DIR / "placement").glob("*.yaml"))
FULL_TIER = pytest.mark.full
FULL = list(product(DISTINCT, LAYOUTS, PLACEMENTS))


def covering() -> list[tuple[str, str, str]]:
    """Every pair of preset and layout, and of layout and placement, and of preset and placement."""
    rows = []
    for i, preset in enumerate(PRESETS):
        for j, layout in enumerate(LAYOUTS):
            rows.append((preset, layout, PLACEMENTS[(i + j) % len(PLACEMENTS)]))
    return rows


@cache
def small(preset: str) -> tuple[ModelGeometry, KVCacheConfig, tuple[tuple[str, str], ...]]:
    """The preset in a pool of a few blocks: memory for requests of one token."""
    one = ["scheduler.max_model_len=1", "scheduler.max_num_batched_tokens=1", "backend=meta"]
    resolved = prepared_request([f"model={preset}", *one]).prepared.resolved
    layers = resolved.ranks[0].layers
    probe = plan(layers, resolved.limits, 2**40)
    per_block = probe.ranks[0].config.bytes_per_block
    demand = sum(d.peak_blocks for d in probe.capacity.demands) if probe.capacity else 0
    made = plan(layers, resolved.limits, max(1, per_block * (demand + 2)))
    return resolved.model, made.ranks[0].config, made.shared_layers


def placed(preset: str, layout: str, placement: str) -> AddressMap | None:
    """None where the choice is refused by name."""
    _, config, shared = small(preset)
    try:
        return address_map(config, shared, layout, placement)
    except ConfigError as error:
        for problem in error.problems:
            assert problem.key.split(".")[0] in ("layout", "placement"), str(problem)
        return None


def page_bytes(cache: CacheGeometry, block_size: int) -> int:
    """Bytes of one layer's page at 16 bits, straight from the numbers in the preset."""
    fields = cache.fields
    if "states" in fields:
        wide = [4 if state.get("dtype") == "float32" else 2 for state in fields["states"]]
        return sum(prod(s["shape"]) * w for s, w in zip(fields["states"], wide, strict=True))
    width = 1 if fields.get("dtype") == "uint8" else 2
    if cache.spec in ("mla", "sliding_mla"):
        return block_size * fields["head_size"] * width
    both = fields["head_size"] + (fields.get("head_size_v") or fields["head_size"])
    return block_size * fields["num_kv_heads"] * both * width


def check_bytes(preset: str, layout: str, placement: str) -> None:
    model, config, _ = small(preset)
    addresses = placed(preset, layout, placement)
    if addresses is None:
        return
    backend = TorchBackend(TorchBackend.Options(name="torch", device="cpu"))
    buffers = Buffers(Buffers.Options(name="buffers", init="zero")).run(
        AllocationRequest(config=config, addresses=addresses), backend
    )
    caches = {cache.name: cache for cache in model.caches if cache.shares_with is None}
    widest = 0
    for group in config.groups:
        pages = [group.layer_spec(name).page_size_bytes for name in group.layer_names]
        blocks = [group.layer_spec(name).block_size for name in group.layer_names]
        own = [page_bytes(caches[n], b) for n, b in zip(group.layer_names, blocks, strict=True)]
        assert all(real <= page for real, page in zip(own, pages, strict=True))
        # A page is larger than the layer's own bytes only to equal pages it shares memory with.
        assert own == pages or len(config.groups) > 1
        widest = max(widest, sum(pages))
    storages = [buffer.data.untyped_storage() for buffer in buffers.buffers]
    obtained = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    assert obtained == buffers.allocated_bytes == config.num_blocks * widest


def check_owners(preset: str, layout: str, placement: str) -> None:
    """Write every block id's number over every byte of its arrays; nobody else's may be there."""
    _, config, _ = small(preset)
    addresses = placed(preset, layout, placement)
    if addresses is None:
        return
    owners = [np.full(size, 255, dtype=np.uint8) for size in addresses.buffers]
    assert config.num_blocks < 255
    for layer in addresses.layers:
        block_size = addresses.groups[layer.group].block_size
        for view in layer.views:
            item = view.strides[-1]
            flat = owners[view.buffer][view.offset :]
            shape, strides = (*view.shape, item), (*view.strides, 1)
            reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
            assert reach <= flat.size, "an array reaches past its buffer"
            array = np.lib.stride_tricks.as_strided(flat, shape, strides)
            split = block_size // view.shape[1] if view.per_token else 1
            ids = (np.arange(view.shape[0]) // split).astype(np.uint8)
            mine = ids.reshape(-1, *[1] * (array.ndim - 1))
            assert ((array == 255) | (array == mine)).all(), (layer.layer, view.array)
            array[...] = mine


SLOW = {"mamba_codestral_7b", "bamba", "nemotron_h", "whisper_large_v3", "falcon_h1"}
EACH = [
    preset
    if preset in DISTINCT and preset not in SLOW
    else pytest.param(preset, marks=pytest.mark.full)
    for preset in PRESETS
]


@pytest.mark.parametrize("preset", EACH)
def test_the_bytes_are_the_geometrys_and_no_byte_belongs_to_two_block_ids(preset):
    for row in covering():
        if row[0] == preset:
            check_bytes(*row)
            check_owners(*row)


@pytest.mark.full
@pytest.mark.parametrize(("preset", "layout", "placement"), FULL)
def test_every_combination_is_sound(preset, layout, placement):
    check_bytes(preset, layout, placement)
    check_owners(preset, layout, placement)


def test_at_least_25_families_are_shipped():
    makers = {shipped_option("model", preset)["name"].split("/")[0] for preset in PRESETS}
    assert len(PRESETS) >= 100 and len(makers) >= 25


@pytest.mark.parametrize("preset", SOME_AND_ALL)
@pytest.mark.parametrize("placement", ["auto", "per_tensor"])
def test_the_default_layout_suits_every_preset(preset, placement):
    assert placed(preset, "auto", placement) is not None


def test_refusals_are_neither_none_nor_all():
    rows = [row for row in covering() if row[0] in DISTINCT]
    refused = sum(placed(*row) is None for row in rows)
    assert len(rows) // 10 < refused < len(rows)
