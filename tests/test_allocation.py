"""allocation: the bytes really obtained, and that a layer's tensors are where the map says."""

from __future__ import annotations

import pytest
from cache_configs import (
    bytes_of,
    config_of,
    full,
    names,
    representative,
    state,
)

from kvpipe.backends.meta import MetaBackend
from kvpipe.cache.buffers import KVBuffers
from kvpipe.errors import DoesNotFit
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.allocation import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import Buffers
from kvpipe.stages.grouping.planning import plan

torch = pytest.importorskip("torch")

from kvpipe.backends.torch_ import TorchBackend  # noqa: E402

BACKEND = TorchBackend()
MODELS = representative()


def allocate(config, layout="auto", placement="auto", init="zero", backend=BACKEND, shared=()):
    addresses = address_map(config, shared, layout, placement)
    stage = Buffers(Buffers.Options(name="buffers", init=init))
    return stage.run(AllocationRequest(config=config, addresses=addresses), backend)


@pytest.mark.parametrize(
    ("layers", "per_token"),
    [  # bytes of one token over all layers, from the geometry alone
        ([full(16, 8, 128)] * 4, 4 * 8 * (128 + 128) * 2),
        ([full(16, 2, 96, head_size_v=64)] * 3, 3 * 2 * (96 + 64) * 2),
        ([full(16, 2, 128, dtype="fp8_e4m3")] * 5, 5 * 2 * 256),
        (
            [MLAAttentionSpec(block_size=64, head_size=576, dtype="bfloat16", cache_dtype="auto")]
            * 2,
            2 * 576 * 2,
        ),
    ],
)
@pytest.mark.parametrize("placement", ["auto", "per_tensor", "cross_layer"])
def test_the_storage_holds_as_many_bytes_as_the_geometry_says(layers, per_token, placement) -> None:
    cached = [
        CacheLayer(name=name, spec=spec)
        for name, spec in zip(names(len(layers)), layers, strict=True)
    ]
    limits = RequestLimits(max_model_len=64, max_num_batched_tokens=64)
    made = plan(cached, limits, 1 << 22)
    block = layers[0].block_size
    num_blocks = (1 << 22) // (block * per_token)
    assert made.num_blocks == num_blocks
    buffers = allocate(made.ranks[0].config, placement=placement)
    assert buffers.allocated_bytes == num_blocks * block * per_token


def test_a_hybrid_pool_holds_one_page_a_tensor_and_block() -> None:
    """Gemma-like: 10 windows and 2 full layers in 6 groups of 2, all of one page size."""
    page = 16 * 2 * (64 + 64) * 2
    window = SlidingWindowSpec(
        block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", sliding_window=32
    )
    specs = ([window] * 5 + [full(16, 2, 64)]) * 2
    cached = [CacheLayer(name=n, spec=s) for n, s in zip(names(12), specs, strict=True)]
    limits = RequestLimits(max_model_len=64, max_num_batched_tokens=64)
    made = plan(cached, limits, 100 * 2 * page)
    buffers = allocate(made.ranks[0].config)
    assert len(made.groups) == 6 and buffers.addresses.path == "per_group"
    assert buffers.allocated_bytes == 100 * 2 * page
    assert len(buffers.buffers) == 2


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("placement", ["auto", "per_tensor"])
def test_writing_a_block_through_torch_changes_the_bytes_the_map_names(
    model: str, placement: str
) -> None:
    buffers = allocate(MODELS[model], placement=placement)
    for layer in buffers.addresses.layers:
        arrays = buffers.arrays(layer.layer)
        for view in layer.views:
            split = view.shape[0] // buffers.addresses.num_blocks
            part = arrays[view.array][5 * split : 6 * split]
            assert tuple(arrays[view.array].shape) == view.shape
            part.copy_(torch.ones(part.shape).to(part.dtype))
        touched = {
            (index, int(byte))
            for index, buffer in enumerate(buffers.buffers)
            for byte in buffer.data.nonzero().flatten()
        }
        named = set(bytes_of(layer, 5, buffers.addresses.num_blocks))
        assert touched and touched <= named
        for buffer in buffers.buffers:
            buffer.data.zero_()


def test_the_native_tensor_is_the_same_memory_as_the_arrays() -> None:
    for layout in ("flash_attn", "flash_attn_hnd", "flashinfer_nhd", "flashinfer_hnd"):
        buffers = allocate(MODELS["full"], layout)
        name = names(3)[1]
        native, arrays = buffers.native(name), buffers.arrays(name)
        arrays["k"].fill_(1)
        arrays["v"].fill_(2)
        k, v = native.unbind(0 if layout.startswith("flash_attn") else 1)
        assert (k == 1).all() and (v == 2).all()
        assert buffers.buffers[0].data.view(torch.bfloat16).count_nonzero() == native.numel()


def test_cross_layer_slices_share_one_storage() -> None:
    buffers = allocate(MODELS["full"])
    assert buffers.addresses.path == "uniform" and len(buffers.buffers) == 1
    pointers = {buffers.native(name).untyped_storage().data_ptr() for name in names(3)}
    assert len(pointers) == 1


def test_a_sharing_layer_gets_its_targets_arrays() -> None:
    target, reader = names(3)[0], names(1, 9)[0]
    buffers = allocate(MODELS["full"], shared=((reader, target),))
    assert buffers.native(reader).data_ptr() == buffers.native(target).data_ptr()
    assert buffers.arrays(reader).keys() == buffers.arrays(target).keys()


@pytest.mark.parametrize(("init", "byte"), [("zero", 0), ("poison", 0xFF)])
@pytest.mark.parametrize("model", ["full", "jamba", "padded attention"])
def test_every_byte_starts_as_asked(init: str, byte: int, model: str) -> None:
    buffers = allocate(MODELS[model], init=init)
    assert all((buffer.data == byte).all() for buffer in buffers.buffers)
    assert buffers.init_byte == byte


def test_meta_takes_no_memory_and_has_no_arrays() -> None:
    buffers = allocate(MODELS["full"], backend=MetaBackend())
    assert isinstance(buffers, KVBuffers)
    assert buffers.allocated_bytes == 0
    assert buffers.arrays(names(1)[0]) == {} and buffers.native(names(1)[0]) is None
    assert sum(buffers.addresses.buffers) == 7 * 3 * full().page_size_bytes


def test_a_state_page_holds_its_arrays_one_after_another() -> None:
    config = config_of([(names(2, 0, "mixer"), state(100, (4, 4)))], 3)
    buffers = allocate(config)
    arrays = buffers.arrays(names(1, 0, "mixer")[0])
    assert arrays["conv"].shape == (3, 4, 4) and arrays["ssm"].shape == (3, 4, 3)
    assert arrays["conv"].dtype == torch.bfloat16 and arrays["ssm"].dtype == torch.float32
    assert arrays["ssm"].data_ptr() - arrays["conv"].data_ptr() == 32
    assert arrays["conv"].stride(0) == 50


def test_more_than_the_device_has_is_refused_before_anything_is_taken(monkeypatch) -> None:
    from kvpipe.backends.base import MemoryInfo

    little = MemoryInfo(total_bytes=100, free_bytes=100, source="test")
    monkeypatch.setattr(BACKEND, "memory_info", lambda: little)
    with pytest.raises(
        DoesNotFit, match=r"takes 2,016 bytes, 100 are free on cpu; backend=meta"
    ) as told:
        allocate(MODELS["full"], placement="per_tensor")
    assert told.value.needed_bytes == (2016,) and told.value.available_bytes == (100,)


def test_the_map_is_plain_json() -> None:
    import json

    addresses = address_map(MODELS["jamba"])
    plain = json.loads(json.dumps(addresses.to_json()))
    assert plain["layers"][0]["views"][0]["strides"] == list(addresses.layers[0].views[0].strides)
    assert plain["buffers"] == list(addresses.buffers)
    assert {tuple(group["layouts"]) for group in plain["groups"]} == {("flash_attn",), ("state",)}


def test_an_unknown_layer_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nobody"):
        address_map(MODELS["full"]).of_layer("nobody")


def test_planning_an_address_map_imports_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import kvpipe.stages.allocation, kvpipe.stages.allocation.buffers, "
        "kvpipe.stages.binding.context, kvpipe.backends.meta; "
        "assert not {'torch', 'numpy', 'cupy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_headline_bytes_are_512_blocks_of_two_mebibytes() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    cached = [CacheLayer(name=name, spec=spec) for name in names(32)]
    limits = RequestLimits(max_model_len=8176, max_num_batched_tokens=2048)
    made = plan(cached, limits, 2**30)
    assert sum(address_map(made.ranks[0].config).buffers) == 512 * 32 * 65536 == 2**30
