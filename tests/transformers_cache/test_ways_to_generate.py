"""Chunked prefill, sampling, beams, continuing, prefix hits, fp8: each equals the model's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equality import (
    LENGTHS,
    SHORT,
    assert_equal,
    generate,
    max_difference,
    planned,
    reference,
    short_output,
)
from test_equality import first_of
from tiny_models import VOCAB, build, inputs_of, prompts

from kvpipe.blocks import OutOfBlocks
from kvpipe.errors import ConfigError
from kvpipe.integrations.transformers import bind, cache_keyword

CHUNKABLE = [
    "llama", "mistral", "gemma3", "gpt_oss", "qwen3_next", "deepseek_v3", "llama4", "jamba",
    "gemma3n", "falcon_h1",
]  # fmt: skip


def both(family: str, mode: str = "gather", **options: Any) -> tuple[Any, Any, Any]:
    """(own, bound, cache): the same generation with transformers' own cache and a bound one."""
    case = reference(family)
    torch.manual_seed(5)
    options = {**SHORT, **options}
    own = generate(case.model, case.inputs, **options)
    cache = bind(case.model, planned(case.model, family), mode=mode, shuffle=3)
    try:
        torch.manual_seed(5)
        return own, generate(case.model, case.inputs, cache, **options), cache
    finally:
        cache.bound.unbind()


@pytest.mark.parametrize("family", first_of(CHUNKABLE))
@pytest.mark.parametrize("mode", first_of(["gather", "direct"]))
def test_chunked_prefill(family: str, mode: str) -> None:
    """Chunks of 16 columns: of the second row the first chunk is padding alone."""
    own, found, _ = both(family, mode, prefill_chunk_size=16)
    assert_equal(own, found)


def test_chunked_prefill_lowers_the_peak_of_windows() -> None:
    case, peaks = reference("mistral"), []
    for chunk in (None, 16):
        cache = bind(case.model, planned(case.model, "mistral"))
        generate(case.model, prompts((90,)), cache, prefill_chunk_size=chunk, **SHORT)
        cache.bound.unbind()
        peaks.append(cache.peak_bytes_held)
    assert peaks[1] < 0.7 * peaks[0]


@pytest.mark.parametrize("family", first_of(["llama", "gemma3", "jamba", "deepseek_v3"]))
def test_sampling_with_a_fixed_seed(family: str) -> None:
    own, found, _ = both(family, do_sample=True, top_k=20)
    assert_equal(own, found)


@pytest.mark.parametrize(
    "family", first_of(["llama", "jamba", "mistral", "deepseek_v3", "falcon_h1", "t5", "bart"])
)
def test_beam_search_forks_and_copies_on_write(family: str) -> None:
    own, found, cache = both(
        family, num_beams=3, num_return_sequences=3, output_logits=False, output_scores=True
    )
    assert found.sequences.tolist() == own.sequences.tolist()
    assert torch.equal(found.sequences_scores, own.sequences_scores)
    stats = cache.bound.manager.pool.stats()
    assert stats.shared > 0  # beams shared blocks ...
    assert stats.allocated > stats.in_use  # ... and took their own when they wrote


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gemma3", "jamba", "deepseek_v3"])
def test_beam_search_in_direct_mode(family: str) -> None:
    own, found, _ = both(
        family, "direct", num_beams=3, num_return_sequences=3, output_logits=False,
        output_scores=True,
    )  # fmt: skip
    assert found.sequences.tolist() == own.sequences.tolist()
    assert torch.allclose(found.sequences_scores, own.sequences_scores, atol=1e-5)


@pytest.mark.parametrize("family", first_of(["llama", "gemma3", "deepseek_v3"]))
def test_rows_can_be_dropped_moved_and_repeated(family: str) -> None:
    """What `generate` does with its own cache when rows end or are expanded."""
    transformers = pytest.importorskip("transformers")
    case = reference(family)
    ids, mask = case.inputs["input_ids"], case.inputs["attention_mask"]
    bound = bind(case.model, planned(case.model, family), shuffle=6)
    logits = []
    for cache in (transformers.DynamicCache(config=case.model.config), bound):
        given = {cache_keyword(case.model): cache}
        with torch.no_grad():
            case.model(ids, attention_mask=mask, **given)
            cache.batch_select_indices(torch.tensor([2, 0]))
            cache.batch_repeat_interleave(2)
            wider = torch.nn.functional.pad(mask[[2, 2, 0, 0]], (0, 1), value=1)
            next_ids = torch.tensor([[5], [6], [7], [8]])
            logits.append(case.model(next_ids, attention_mask=wider, **given).logits)
    bound.bound.unbind()
    assert torch.equal(*logits)


def test_beams_share_what_they_have_in_common() -> None:
    """Nine beams hold far less than nine times one row."""
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"))
    options: dict[str, Any] = dict(max_new_tokens=8, min_new_tokens=8, output_logits=False)
    generate(case.model, case.inputs, cache, num_beams=3, **options)
    beams = cache.bytes_held
    cache.reset()
    generate(case.model, case.inputs, cache, **options)
    one = cache.bytes_held
    cache.bound.unbind()
    assert one < beams < 2 * one


@pytest.mark.parametrize("family", first_of(["llama", "gemma3", "deepseek_v3"]))
def test_continuing_from_a_prefix_hit(family: str) -> None:
    """A second conversation starts where the blocks of the first one end."""
    case = reference(family)
    generator = torch.Generator().manual_seed(9)
    prefix = torch.randint(3, VOCAB, (1, 40), generator=generator)
    first, second = (
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for ids in (torch.cat([prefix, torch.full((1, 5), token)], dim=1) for token in (7, 11))
    )
    cache = bind(case.model, planned(case.model, family), prefix_caching=True, shuffle=1)
    try:
        assert cache.admit(**first) == 0
        own = generate(case.model, first, **SHORT)
        assert_equal(own, generate(case.model, first, cache, **SHORT))
        cache.reset()
        assert cache.admit(**second) == 40  # five blocks of eight tokens
        own = generate(case.model, second, **SHORT)
        assert_equal(own, generate(case.model, second, cache, **SHORT))
    finally:
        cache.bound.unbind()


def test_a_prefix_hit_reads_what_was_cached() -> None:
    """With the cached pages overwritten the second conversation comes out wrong: they were used."""
    case = reference("llama")
    ids = prompts((40,))
    expected = generate(case.model, ids, **SHORT)
    cache = bind(case.model, planned(case.model, "llama"), prefix_caching=True)
    try:
        generate(case.model, ids, cache, **SHORT)
        cache.reset()
        for buffer in cache.bound.buffers.buffers:
            buffer.data.zero_()
        assert cache.admit(**ids) == 32
        assert max_difference(expected, generate(case.model, ids, cache, **SHORT)) > 0.01
    finally:
        cache.bound.unbind()


def test_rows_whose_hits_end_in_different_columns_start_afresh() -> None:
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"), prefix_caching=True)
    try:
        generate(case.model, case.inputs, cache, **SHORT)
        cache.reset()
        assert cache.admit(**case.inputs) == 0
        assert_equal(short_output("llama"), generate(case.model, case.inputs, cache, **SHORT))
    finally:
        cache.bound.unbind()


def test_a_second_call_continues_the_conversation() -> None:
    """As with transformers' own cache: the full text is passed, only its new part is computed."""
    case = reference("llama")
    mask, ids = case.inputs["attention_mask"], case.output.sequences
    more = torch.cat([ids, torch.full((3, 4), 8)], dim=1)
    longer = {
        "input_ids": more,
        "attention_mask": torch.nn.functional.pad(
            mask, (0, more.shape[1] - mask.shape[1]), value=1
        ),
    }
    cache = bind(case.model, planned(case.model, "llama"))
    try:
        generate(case.model, case.inputs, cache)
        assert cache.get_seq_length() == max(LENGTHS) + 63
        own = generate(case.model, longer, **SHORT)
        assert_equal(own, generate(case.model, longer, cache, **SHORT))
    finally:
        cache.bound.unbind()


# --- fp8 -----------------------------------------------------------------------------------------
# Largest logit error of teacher-forced text, float32 weights; the logits span 3.3 (0.45 deviation).
# e4m3 keeps three mantissa bits, so K and V are off by up to 1/16. Routed experts are left out: a
# router that chooses another expert is no rounding error.
FP8_BOUNDS = {"llama": 0.2, "gemma3": 0.45, "deepseek_v3": 0.2}
DENSE = {"deepseek_v3": {"first_k_dense_replace": 4}}


@pytest.mark.parametrize("family", first_of(FP8_BOUNDS))
def test_an_fp8_cache_stays_within_its_bound(family: str) -> None:
    model = build(family, **DENSE.get(family, {}))
    text = prompts((61, 33, 46), seed=4)
    plan = planned(model, family, cache_dtype="fp8_e4m3")
    cache = bind(model, plan, shuffle=2)
    live = text["attention_mask"].bool()
    try:
        error = (teacher_forced(model, text, cache) - teacher_forced(model, text))[live].abs().max()
    finally:
        cache.bound.unbind()
    print(f"{family}: logit error {error:.3f}")
    assert 0.001 < error < FP8_BOUNDS[family]  # it is quantised, and no more than that
    whole = planned(model, family).ranks[0].config
    assert plan.ranks[0].config.bytes_per_block * 4 == whole.bytes_per_block


def teacher_forced(model: Any, text: dict[str, Any], cache: Any = None, prompt: int = 37) -> Any:
    """[B, T, vocabulary] logits of a given text: a prompt, then token by token."""
    ids, mask = text["input_ids"], text["attention_mask"]
    given = {} if cache is None else {cache_keyword(model): cache}
    columns = [slice(0, prompt)] + [slice(i, i + 1) for i in range(prompt, ids.shape[1])]
    if cache is None:
        columns = [slice(0, ids.shape[1])]
    with torch.no_grad():
        steps = [
            model(ids[:, c], attention_mask=mask[:, : c.stop], **given).logits for c in columns
        ]
    return torch.cat(steps, dim=1)


def test_fp8_pages_hold_what_torch_casts() -> None:
    """Generation through fp8 pages is bit-identical to rounding K and V by torch's own cast."""
    from transformers import DynamicCache

    class Rounded(DynamicCache):
        def update(self, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            k, v = (x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) for x in (k, v))
            return super().update(k, v, *args, **kwargs)

    case = reference("llama")
    own = generate(case.model, case.inputs, Rounded(config=case.model.config), **SHORT)
    cache = bind(case.model, planned(case.model, "llama", cache_dtype="fp8_e4m3"))
    found = generate(case.model, case.inputs, cache, **SHORT)
    cache.bound.unbind()
    assert max_difference(own, found) == 0.0


# --- shortage and misuse -------------------------------------------------------------------------
def test_a_pool_that_is_too_small_says_by_how_much() -> None:
    case = reference("llama")
    plan = planned(case.model, "llama", memory=40_000, max_model_len=48)
    cache = bind(case.model, plan)
    try:
        with pytest.raises(OutOfBlocks, match="blocks needed, .* free: short by"):
            generate(case.model, case.inputs, cache)
    finally:
        cache.bound.unbind()


def test_right_padding_is_refused() -> None:
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"))
    flipped = {name: tensor.flip(1) for name, tensor in case.inputs.items()}
    try:
        with pytest.raises(ConfigError, match="padding on the left only, got a hole or right"):
            generate(case.model, flipped, cache)
    finally:
        cache.bound.unbind()


def test_a_cache_belongs_to_its_model() -> None:
    case, other = reference("llama"), reference("qwen3")
    cache = bind(case.model, planned(case.model, "llama"))
    try:
        with pytest.raises(ConfigError, match="used by the model it was bound to"):
            generate(other.model, other.inputs, cache)
    finally:
        cache.bound.unbind()


def test_attention_that_was_changed_meanwhile_is_noticed() -> None:
    """Else the model would compute with stand-ins of no content."""
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"), mode="direct")
    case.model.set_attn_implementation("eager")
    try:
        with pytest.raises(ConfigError, match="attn, whose pages were not read; mode=gather"):
            generate(case.model, case.inputs, cache, **SHORT)
    finally:
        cache.bound.unbind()


def test_two_direct_caches_of_one_model_do_not_disturb_each_other() -> None:
    case = reference("llama")
    one, two = (bind(case.model, planned(case.model, "llama"), mode="direct") for _ in range(2))
    assert_equal(short_output("llama"), generate(case.model, case.inputs, one, **SHORT))
    one.bound.unbind()
    one.bound.unbind()  # once is enough, twice is no harm
    assert_equal(short_output("llama"), generate(case.model, case.inputs, two, **SHORT))
    two.bound.unbind()
    assert case.model.config._attn_implementation == "sdpa"


def test_unbinding_leaves_the_model_as_it_was() -> None:
    case = reference("llama")
    before = case.model.config._attn_implementation
    cache = bind(case.model, planned(case.model, "llama"), mode="direct")
    own = generate(case.model, case.inputs, **SHORT)  # its own cache, meanwhile
    assert_equal(short_output("llama"), own)
    cache.bound.unbind()
    assert case.model.config._attn_implementation == before
    assert not case.model.get_decoder()._forward_pre_hooks
    again = generate(case.model, case.inputs, **SHORT)
    assert max_difference(short_output("llama"), again) == 0.0


# --- odd sizes -----------------------------------------------------------------------------------
ODD_FAMILIES = ["llama4", "llama", "gemma3", "jamba", "falcon_h1", "t5"]
ODD_LENGTHS = [(17, 1, 16), (1,), (24, 24, 25, 3)]


@pytest.mark.full
@pytest.mark.parametrize("family", ODD_FAMILIES)
@pytest.mark.parametrize("block_size", [1, 3, 17])
@pytest.mark.parametrize("lengths", ODD_LENGTHS, ids=str)
@pytest.mark.parametrize("chunk", [None, 7])
def test_odd_blocks_lengths_and_chunks(
    family: str, block_size: int, lengths: tuple[int, ...], chunk: int | None
) -> None:
    """Both modes; a block of one token, chunks and windows that end inside blocks."""
    if chunk is not None and family == "t5":
        pytest.skip("encoder-decoders have no prompt to cut in chunks")
    model, inputs = reference(family).model, inputs_of(family, lengths)
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "prefill_chunk_size": chunk}
    own = generate(model, inputs, **options)
    for mode in ("gather", "direct"):
        plan = planned(model, family, block_size, memory=16 << 20)
        cache = bind(model, plan, mode=mode, shuffle=8)
        found = generate(model, inputs, cache, **options)
        cache.bound.unbind()
        assert_equal(own, found)
