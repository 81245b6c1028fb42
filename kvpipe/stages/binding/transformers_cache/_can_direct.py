"""Which mode a model can take, found out by trying: two rows, a prefill and one decode step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.as_transformers import cache_layers
from kvpipe.models.probe.needs import LayerNeeds
from kvpipe.models.probe.releases import cache_keyword
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.binding.transformers_cache.bound import bind_needs
from kvpipe.stages.binding.transformers_cache.match import PlannedCache
from kvpipe.stages.grouping.planning import plan

PROMPTS = (5, 3)  # tokens of the two rows; blocks of 4, so that a row has several
BLOCK_SIZE = 4


def choose_mode(model: Any, needs: Sequence[LayerNeeds], asked: str) -> tuple[str, str]:
    """(gather or direct, why not direct); ConfigError where direct is asked for and cannot be."""
    if asked == "gather":
        return asked, ""
    reason = direct_problem(model, needs)
    if reason and asked == "direct":
        raise ConfigError(
            Problem("mode", "a model whose attention can read pages", reason, "mode=gather")
        )
    return ("gather" if reason else "direct"), reason


def direct_problem(model: Any, needs: Sequence[LayerNeeds]) -> str:
    """Why the attention of `model` cannot read pages itself ("" if it can)."""
    import torch

    if not any(need.attention for need in needs):
        return "it keeps no keys and values"
    gathered = _outputs(model, needs, "gather")
    try:
        read = _outputs(model, needs, "direct")
    except Exception as error:  # whatever a foreign attention makes of a stand-in is the answer
        cause = f"{type(error).__name__}: {error}"[:160]
        return f"its attention does not take pages through AttentionInterface ({cause})"
    difference = max(
        float((a.float() - b.float()).abs().max()) for a, b in zip(gathered, read, strict=True)
    )
    size = max(float(a.float().abs().max()) for a in gathered)
    allowed = 2**12 * torch.finfo(gathered[0].dtype).eps * max(1.0, size)
    if not difference <= allowed:
        return f"its outputs differ by {difference:.3g} when pages are read directly"
    return ""


def _outputs(model: Any, needs: Sequence[LayerNeeds], mode: str) -> list[Any]:
    """Outputs of the real tokens of both passes."""
    import torch

    layers = cache_layers(needs, BLOCK_SIZE)
    limits = RequestLimits(max_model_len=16, max_num_batched_tokens=16, max_encoder_tokens=4)
    memory = 64 * sum(layer.spec.page_size_bytes for layer in layers)
    planned = PlannedCache.of(plan(layers, limits, memory, compared=()))
    cache = bind_needs(model, needs, planned, mode=mode)
    decoder = model.get_decoder()
    width = max(PROMPTS)
    ids = torch.arange(2 * (width + 1), device=model.device).reshape(2, -1) % 7 + 1
    mask = torch.ones_like(ids)
    mask[1, : width - PROMPTS[1]] = 0
    more: dict[str, Any] = {"use_cache": True, cache_keyword(decoder): cache}
    if any(need.cross for need in needs):
        config = decoder.config
        size = getattr(config, "d_model", None) or config.hidden_size
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn((2, 4, size), generator=generator).to(model.device, model.dtype)
        more["encoder_hidden_states"] = hidden
    found = []
    try:
        with torch.no_grad():
            for columns in (slice(0, width), slice(width, width + 1)):
                seen = mask[:, : columns.stop]
                out = decoder(input_ids=ids[:, columns], attention_mask=seen, **more)[0]
                found += [out[0, :], out[1, max(0, width - PROMPTS[1] - columns.start) :]]
    finally:
        cache.bound.unbind()
    return found
