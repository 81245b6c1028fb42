"""Layouts and placements: where every byte lies, against a map made element by element."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_configs import collisions, config_of, full, names, representative, state
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, LayerPages
from kvpipe.errors import ConfigError
from kvpipe.layouts.base import axis_strides
from kvpipe.plugins import REGISTRIES
from kvpipe.request.confdir import CONF_DIR
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.stages.allocation import address_map
from kvpipe.stages.allocation.placements import LETTERED
from kvpipe.stages.allocation.soundness import check_sound

MODELS = representative()
LAYOUTS = sorted(path.stem for path in (CONF_DIR / "layout").glob("*.yaml"))
PLACEMENTS = sorted(path.stem for path in (CONF_DIR / "placement").glob("*.yaml"))


def place_or_refuse(config: KVCacheConfig, layout: str, placement: str):
    """The address map, or None where the pair is refused by name."""
    try:
        return address_map(config, (), layout, placement)
    except ConfigError as error:
        assert str(error).startswith(("layout", "placement")), error
        return None


def test_every_layout_has_an_option_file_and_every_option_file_a_layout() -> None:
    assert REGISTRIES["layout"].names() == LAYOUTS


@pytest.mark.parametrize("model", MODELS)
def test_no_byte_belongs_to_two_block_ids_or_to_two_layers_of_a_group(model: str) -> None:
    placed = 0
    for layout in LAYOUTS:
        for placement in PLACEMENTS:
            if addresses := place_or_refuse(MODELS[model], layout, placement):
                assert not collisions(addresses)[:3], (layout, placement)
                placed += 1
    assert placed >= 2  # auto and per_tensor suit every model


@pytest.mark.parametrize("model", MODELS)
def test_auto_places_every_model_and_buffers_are_the_plans_bytes(model: str) -> None:
    config = MODELS[model]
    for placement in ("auto", "per_tensor"):
        addresses = address_map(config, (), "auto", placement)
        assert sum(addresses.buffers) == config.num_blocks * config.bytes_per_block
        assert {layer.layer for layer in addresses.layers} == {
            name for group in config.groups for name in group.layer_names
        }


@pytest.mark.parametrize(
    ("layout", "physical"),
    [  # axes from outermost to innermost, as vLLM's stride orders have them
        ("flash_attn", "BLKNHD"),
        ("flash_attn_hnd", "BHLKND"),
        ("flashinfer_nhd", "BLKNHD"),
        ("flashinfer_hnd", "BKHLND"),
        ("mla", "BLNHD"),
    ],
)
def test_the_uniform_buffer_is_one_permuted_array(layout: str, physical: str) -> None:
    """Step 5 and 6 of the uniform path: torch permutes one contiguous array; so do the strides."""
    torch = pytest.importorskip("torch")
    sizes = {"B": 5, "L": 3, "K": 2, "N": 4, "H": 2, "D": 3}
    spec = full(block=4, heads=2, head=3)
    if layout == "mla":
        sizes["H"] = 1
        spec = MLAAttentionSpec(block_size=4, head_size=3, dtype="bfloat16")
    addresses = address_map(config_of([(names(3), spec)], 5), (), layout, "cross_layer")
    assert addresses.path == "uniform"
    whole = torch.empty([sizes[axis] for axis in physical])
    for index, layer in enumerate(addresses.layers):
        for number, view in enumerate(layer.views):
            part = whole.permute([physical.index(axis) for axis in physical])
            axes = physical
            for axis, chosen in (("L", index), ("K", number)):
                if axis in axes:
                    part = part.select(axes.index(axis), chosen)
                    axes = axes.replace(axis, "")
            part = part.permute([axes.index(axis) for axis in "BNHD"])
            assert view.shape == tuple(part.shape)
            assert view.strides == tuple(2 * stride for stride in part.stride())
            assert view.offset == 2 * part.storage_offset()


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("flash_attn", (2, 7, 4, 2, 3)),
        ("flash_attn_hnd", (2, 7, 4, 2, 3)),
        ("flashinfer_nhd", (7, 2, 4, 2, 3)),
        ("flashinfer_hnd", (7, 2, 4, 2, 3)),
        ("kv_packed", (7, 2, 4, 6)),
    ],
)
def test_the_native_tensor_has_the_attention_backends_shape(
    layout: str, shape: tuple[int, ...]
) -> None:
    for placement in ("per_tensor", "cross_layer"):
        for layer in address_map(MODELS["full"], (), layout, placement).layers:
            assert layer.native is not None and layer.native.shape == shape


def test_the_native_tensor_of_one_layer_is_contiguous_where_the_backend_expects_it() -> None:
    native = address_map(MODELS["full"], (), "flash_attn", "per_tensor").layers[1].native
    assert native is not None
    assert native.strides == (7 * 4 * 2 * 3 * 2, 4 * 2 * 3 * 2, 2 * 3 * 2, 3 * 2, 2)


def test_k_and_v_of_different_widths_have_no_single_tensor_but_packed() -> None:
    config = MODELS["v narrower than k"]
    assert address_map(config, (), "flash_attn").layers[0].native is None
    packed = address_map(config, (), "kv_packed").layers[0].native
    assert packed is not None and packed.shape == (7, 2, 4, 3 + 2)


@pytest.mark.parametrize("model", ["jamba", "groups that split pages otherwise"])
def test_pages_shared_with_other_splits_keep_k_and_v_inside_their_page(model: str) -> None:
    addresses = address_map(MODELS[model], (), "flash_attn")
    page = addresses.groups[0].page_size_bytes
    for layer in addresses.layers:
        for view in layer.views:
            assert view.offset < page and view.strides[0] == page
    assert any("re-strided" in note for note in addresses.notes)


def test_pages_split_alike_keep_all_k_before_all_v() -> None:
    """Other heads and block size, the same bytes of K and V in a page: no need to re-stride."""
    addresses = address_map(MODELS["gemma, other block sizes"], (), "flash_attn")
    assert not addresses.notes
    for layer in addresses.layers:
        k, v = layer.views
        assert (k.offset, v.offset) == (0, 7 * 4 * 2 * 3 * 2)


@pytest.mark.parametrize("placement", LETTERED)
def test_a_lettered_placement_is_one_permuted_array(placement: str) -> None:
    torch = pytest.importorskip("torch")
    sizes = {"l": 3, "b": 7, "h": 2, "n": 4, "c": 6}
    whole = torch.empty([sizes[axis] for axis in placement])
    addresses = address_map(MODELS["full"], (), "kv_packed", placement)
    assert len(addresses.buffers) == 1
    for index, layer in enumerate(addresses.layers):
        part = whole.select(placement.index("l"), index)
        axes = placement.replace("l", "")
        part = part.permute([axes.index(axis) for axis in "bhnc"])
        assert layer.native is not None
        assert layer.native.strides == tuple(2 * stride for stride in part.stride())
        assert layer.native.offset == 2 * part.storage_offset()


def engine_placed(placement: str) -> KVCacheConfig:
    """As vLLM 0.33 plans: one backing allocation, strides given; two groups over the same bytes."""
    spec, blocks = full(), 5
    page, run = spec.page_size_bytes, spec.page_size_bytes // 2
    layer, block = {
        "lb": (blocks * page, page),
        "lh": (blocks * page, run),
        "bl": (page, 2 * page),
        "bh": (run, 2 * page),
    }[placement[:2]]
    groups = (
        KVCacheGroupSpec(layer_names=tuple(names(2)), spec=spec),
        KVCacheGroupSpec(layer_names=tuple(names(2, 2)), spec=spec),
    )
    pages = tuple(
        LayerPages(layer=name, offset=i % 2 * layer, block_stride=block)
        for i, name in enumerate(names(4))
    )
    return KVCacheConfig(
        num_blocks=blocks,
        tensors=(KVCacheTensor(size_bytes=2 * blocks * page, pages=pages),),
        groups=groups,
        bytes_per_block=2 * page,
    )


@pytest.mark.parametrize("placement", LETTERED)
def test_an_engines_own_strides_are_the_same_places_as_ours(placement: str) -> None:
    theirs = address_map(engine_placed(placement), (), "kv_packed", placement)
    ours = address_map(
        config_of([(names(2), full()), (names(2, 2), full())], 5), (), "kv_packed", placement
    )
    assert not collisions(theirs)
    for name in names(4):
        assert theirs.of_layer(name).views == ours.of_layer(name).views


def test_an_engines_block_first_strides_are_kept_without_a_lettered_placement() -> None:
    addresses = address_map(engine_placed("blnhc"), (), "flash_attn", "per_tensor")
    assert not collisions(addresses)
    page = full().page_size_bytes
    assert [layer.views[0].strides[0] for layer in addresses.layers] == [2 * page] * 4


# --- kernel blocks ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("layout", "block", "kernel"),
    [
        ("flash_attn", 48, 48),
        ("flashinfer_nhd", 96, 32),
        ("flashinfer_hnd", 256, 64),
        ("mla", 64, 64),
    ],
)
@pytest.mark.parametrize("placement", ["per_tensor", "cross_layer"])
def test_a_kernel_block_is_the_largest_supported_divisor(
    layout: str, block: int, kernel: int, placement: str
) -> None:
    spec = full(block=block)
    if layout == "mla":
        spec = MLAAttentionSpec(block_size=block, head_size=3, dtype="bfloat16")
    config = config_of([(names(2), spec)], 3)
    addresses = address_map(config, (), layout, placement, any_kernel_block=False)
    assert addresses.groups[0].kernel_block_size == kernel
    for layer in addresses.layers:
        assert layer.views[0].shape[:2] == (3 * block // kernel, kernel)
    assert not collisions(addresses)


def test_any_kernel_block_is_the_block_itself_on_a_cpu() -> None:
    addresses = address_map(config_of([(names(2), full(block=17))]), (), "flashinfer_nhd")
    assert addresses.groups[0].kernel_block_size == 17


@pytest.mark.parametrize("placement", ["per_tensor", "cross_layer"])
@pytest.mark.parametrize("layout", ["flash_attn", "flash_attn_hnd", "flashinfer_hnd", "kv_packed"])
def test_a_smaller_kernel_block_still_tiles_the_block(layout: str, placement: str) -> None:
    config = config_of([(names(2), full(block=6))], 3)
    addresses = address_map(config, (), layout, placement, kernel_block_size=2)
    assert addresses.layers[0].views[0].shape[:2] == (9, 2)
    assert not collisions(addresses)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: address_map(config_of([(names(2), full(24))]), any_kernel_block=False),
            r"cache.block_size: expected a multiple of 16 tokens.*24 tokens in model.layers.0",
        ),
        (
            lambda: address_map(MODELS["full"], kernel_block_size=3),
            r"layout.kernel_block_size: .*3, which does not divide 4",
        ),
        (
            lambda: address_map(
                config_of([(names(1), full(96))]),
                (),
                "flashinfer_nhd",
                kernel_block_size=48,
                any_kernel_block=False,
            ),
            r"48, but flashinfer_nhd takes one of 16, 32, 64",
        ),
        (
            lambda: address_map(MODELS["padded attention"], kernel_block_size=1),
            r"kernel_block_size: .* are padded or interleaved",
        ),
        (
            lambda: address_map(MODELS["mla"], (), "flash_attn"),
            r"layout: expected one that holds model.layers.0.*mla stores latent, not k, v",
        ),
        (lambda: address_map(MODELS["full"], (), "mla"), r"full stores k, v, not one row a token"),
        (
            lambda: address_map(MODELS["gemma"], (), "auto", "cross_layer"),
            r"placement: expected a uniform model for cross_layer, got 4 groups",
        ),
        (
            lambda: address_map(MODELS["mla and indexer"], (), "auto", "cross_layer"),
            r"cross_layer, got layers with different pages",
        ),
        (
            lambda: address_map(MODELS["states alone"], (), "auto", "cross_layer"),
            r"cross_layer, got a state, not attention",
        ),
        (
            lambda: address_map(MODELS["padded attention"], (), "auto", "cross_layer"),
            r"cross_layer, got padded pages",
        ),
        (
            lambda: address_map(engine_placed("blnhc"), (), "kv_packed", "cross_layer"),
            r"cross_layer, got 2 groups",
        ),
        (
            lambda: address_map(MODELS["full"], (), "flash_attn", "lbnhc"),
            r"placement: expected layout kv_packed or mla for lbnhc, got layout flash_attn",
        ),
        (
            lambda: address_map(MODELS["jamba"], (), "kv_packed", "bhlnc"),
            r"got the state of model.layers.2.mixer, which is one run",
        ),
        (
            lambda: address_map(MODELS["padded attention"], (), "kv_packed", "lhbnc"),
            r"got padded pages of model.layers.0",
        ),
        (
            lambda: address_map(MODELS["mla and indexer"], (), "mla", "blnhc"),
            r"got pages of 20, 72 bytes",
        ),
        (
            lambda: address_map(
                config_of([(names(2), full(4, 2, 3)), (names(2, 2), full(4, 1, 6))]),
                (),
                "kv_packed",
                "lhbnc",
            ),
            r"placement: expected pages that no two block ids share.*layout kv_packed.*lhbnc",
        ),
        (
            lambda: address_map(engine_placed("lbnhc"), (), "kv_packed", "blnhc"),
            r"a plan whose engine puts layers outside blocks",
        ),
        (
            lambda: address_map(config_of([(names(1, 0, "mixer"), state(82, (5, 3)))])),
            r"mamba_page_size_padded: expected 'ssm' of model.layers.0.mixer at a multiple of 4",
        ),
        (lambda: address_map(MODELS["full"], (), "flash"), r"did you mean 'flash_attn'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


# --- the proof itself ------------------------------------------------------------------------
def nested_strides(order: tuple[str, ...], sizes: dict[str, int]) -> dict[str, int]:
    strides, step = {}, 2
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis]
    return strides


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_proof_by_lanes_never_passes_what_the_bytes_refute(data: st.DataObject) -> None:
    """Two layers with axes in any order and at most two numbers spoilt: `check_sound` may refuse
    what would do (hypothesis counts), but must never accept what the bytes refute."""
    addresses = address_map(config_of([(names(2), full(2, 2, 1))], 3), (), "flash_attn")
    order = data.draw(st.permutations("LBKNH"))
    strides = nested_strides(tuple(order), {"L": 2, "B": 3, "K": 2, "N": 2, "H": 2})
    own_group = data.draw(st.booleans())
    numbers = []
    for index in range(2):
        for pair in range(2):
            offset = pair * strides["K"] + (0 if own_group else index * strides["L"])
            numbers.append([offset, strides["B"], strides["N"], strides["H"]])
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        numbers[place[0]][place[1]] = 2 * data.draw(st.integers(0, 24))
    moved = []
    for index, layer in enumerate(addresses.layers):
        views = tuple(
            replace(view, offset=offset, strides=(*axes, 2))
            for view, (offset, *axes) in zip(
                layer.views, numbers[2 * index : 2 * index + 2], strict=True
            )
        )
        moved.append(replace(layer, views=views, group=index * own_group))
    spoilt = replace(addresses, layers=tuple(moved), buffers=(400,))
    try:
        check_sound(spoilt)
    except ConfigError:
        event("refused")
        return
    event("accepted")
    assert not collisions(spoilt)


def test_a_layer_that_reaches_past_its_buffer_is_refused() -> None:
    config = config_of([(names(1), full())])
    page = LayerPages(layer=names(1)[0], offset=1, block_stride=full().page_size_bytes)
    shifted = KVCacheConfig(
        num_blocks=config.num_blocks,
        tensors=(KVCacheTensor(size_bytes=config.tensors[0].size_bytes, pages=(page,)),),
        groups=config.groups,
        bytes_per_block=config.bytes_per_block,
    )
    with pytest.raises(ConfigError, match=r"reaches byte .* of a buffer of"):
        address_map(shifted, (), "kv_packed", "per_tensor")


def test_two_layers_of_a_group_on_the_same_bytes_are_refused() -> None:
    config = config_of([(names(2), full())])
    pages = tuple(
        LayerPages(layer=name, offset=0, block_stride=full().page_size_bytes) for name in names(2)
    )
    aliased = KVCacheConfig(
        num_blocks=config.num_blocks,
        tensors=(KVCacheTensor(size_bytes=config.tensors[0].size_bytes, pages=pages),),
        groups=config.groups,
        bytes_per_block=config.bytes_per_block,
    )
    with pytest.raises(ConfigError, match="of one group share bytes"):
        address_map(aliased)


def test_axes_inside_k_belong_to_one_array_and_axes_outside_to_all() -> None:
    k, v = axis_strides("BHKND", {"B": 2, "H": 3, "N": 4}, [10, 6])
    assert k == (0, {"N": 10, "H": 64, "B": 192})
    assert v == (40, {"N": 6, "H": 64, "B": 192})


# --- plans as the engine makes them ----------------------------------------------------------
def check_golden_plans(cases) -> int:
    """Each plan that exists has a sound map under the axes it was planned for."""
    import golden_plans

    placed = 0
    for case in cases:
        if "error" in case["answer"]:
            continue
        made = golden_plans.planned(case["input"])
        placement = case["input"].get("kv_cache_layout", "auto").lower()
        for rank in made.ranks:
            addresses = address_map(rank.config, made.shared_layers, "auto", placement)
            given = {tensor.size_bytes for tensor in rank.config.tensors}
            assert sum(addresses.buffers) == sum(t.size_bytes for t in rank.config.tensors)
            assert len(given) <= 1 or addresses.path == "per_group"
            placed += 1
    return placed


@pytest.mark.parametrize("name", ["plan_vllm017", "plan_vllm033"])
def test_a_tenth_of_the_golden_plans_has_a_sound_map(golden, name: str) -> None:
    assert check_golden_plans(golden(name)[::10]) > 20


@pytest.mark.full
@pytest.mark.parametrize("name", ["plan_vllm017", "plan_vllm033"])
def test_every_golden_plan_has_a_sound_map(golden, name: str) -> None:
    assert check_golden_plans(golden(name)) > 240
