"""Mode `direct`: an attention function that reads pages through block tables, row by row.

Nothing is gathered for the batch: a row whose blocks lie side by side is read where it is. It is
registered with transformers as an attention implementation; the model itself is not changed.
B rows, Q query heads, H KV heads, T tokens of the step, n tokens a row reads, D head size.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvpipe.stages.binding.transformers_cache._eager import eager

NAME = "kvpipe"
# The store of the forward pass that is running; its layers are found through it.
ACTIVE: ContextVar[Any] = ContextVar("kvpipe_store", default=None)


def register() -> None:
    """`model.set_attn_implementation("kvpipe")` works from then on."""
    AttentionInterface.register(NAME, eager(paged_attention))
    AttentionMaskInterface.register(NAME, sdpa_mask)


def paged_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    kvpipe_layer: Any = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """[B, T, Q, D]. key and value are stand-ins where a paged layer was updated just before; an
    encoder's or cross attention's own elsewhere."""
    layer = kvpipe_layer or _layer_of(module)
    extras = _Extras(scaling or query.shape[-1] ** -0.5, softcap, s_aux)
    if layer is None:
        if softcap is None and s_aux is None:
            plain: tuple[Any, None] = sdpa_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling,
                position_bias=position_bias, **kwargs,
            )  # fmt: skip
            return plain
        mask = _causal(query, key.shape[2]) if attention_mask is None else attention_mask
        return _attend(query, key, value, mask, position_bias, extras).transpose(1, 2), None
    layer.store.last_updated = None
    layer.store.direct_reads.add(layer.arrays.layer)
    rows = [
        _row(module, layer, row, query[row], attention_mask, position_bias, extras)
        for row in range(query.shape[0])
    ]
    return torch.stack(rows).transpose(1, 2).contiguous(), None


class _Extras:
    """What some models add to softmax(QK)V: a cap on the scores, a sink a head."""

    def __init__(self, scaling: float, softcap: float | None, sinks: Any) -> None:
        self.scaling, self.softcap, self.sinks = scaling, softcap, sinks


def _layer_of(module: Any) -> Any:
    """The layer that this attention reads: a reused one, or the one updated just now; None where
    no paged layer was (an encoder, cross attention, another cache). Not by the module's index: one
    module may serve several layers."""
    store = ACTIVE.get()
    if store is None:
        return None
    if getattr(module, "is_kv_shared_layer", False):
        return store.shared[module.layer_idx]
    return store.last_updated


def _row(
    module: Any, layer: Any, row: int, query: Any, mask: Any, position_bias: Any, extras: _Extras
) -> Any:
    """[Q, T, D] of one row; zeros for its padding."""
    span = layer.store.span(layer, row)
    live = query[None, :, span.pads :]
    if not live.shape[2]:
        return query.new_zeros((*query.shape[:2], _value_size(module, layer)))
    keys, values = layer.arrays.read_row(row, span.first, span.stop, query.dtype)
    columns = slice(span.column, span.column + span.stop - span.first)
    if mask is None:
        allowed = _causal(live, span.stop - span.first, layer.window)
    else:
        allowed = mask[row if mask.shape[0] > 1 else 0][None, :, span.pads :, columns]
    bias = None if position_bias is None else position_bias[:, :, span.pads :, columns]
    if layer.arrays.is_latent:
        out = _attend_latent(module, live, keys, values, allowed, extras)
    else:
        out = _attend(live, keys, values, allowed, bias, extras)
    if not span.pads:
        return out[0]
    return torch.cat([out.new_zeros((out.shape[1], span.pads, out.shape[3])), out[0]], dim=1)


def _value_size(module: Any, layer: Any) -> int:
    return (
        int(module.v_head_dim) if layer.arrays.is_latent else int(layer.arrays.views[1].shape[-1])
    )


def _causal(query: Any, num_keys: int, window: int | None = None) -> Any:
    """[1, 1, T, n] for queries that are the last of n tokens."""
    keys = torch.arange(num_keys, device=query.device)
    own = keys[num_keys - query.shape[2] :, None]
    allowed = keys <= own
    if window is not None:
        allowed &= keys > own - window
    return allowed[None, None]


def _attend(q: Any, k: Any, v: Any, mask: Any, bias: Any, extras: _Extras) -> Any:
    """[1, Q, T, D] of q [1, Q, T, D] over k, v [1, H, n, D]; each KV head serves Q / H heads."""
    plain = extras.softcap is None and extras.sinks is None
    if plain and bias is not None:
        least = torch.finfo(bias.dtype).min
        mask = bias.masked_fill(~mask, least) if mask.dtype == torch.bool else bias + mask
    if plain:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=extras.scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    return _weights(q @ k.transpose(2, 3) * extras.scaling, mask, bias, extras).to(v.dtype) @ v


def _weights(scores: Any, mask: Any, bias: Any, extras: _Extras) -> Any:
    """Softmax of scores [1, Q, T, n] in float32, capped, biased, masked, and with sinks, whose
    share is dropped."""
    if extras.softcap is not None:
        scores = torch.tanh(scores / extras.softcap) * extras.softcap
    if bias is not None:
        scores = scores + bias
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    else:
        scores = scores + mask
    if extras.sinks is None:
        return scores.softmax(-1, dtype=torch.float32)
    sinks = extras.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sinks.to(scores.dtype)], -1).softmax(-1, dtype=torch.float32)[
        ..., :-1
    ]


def _attend_latent(module: Any, q: Any, latent: Any, rope: Any, mask: Any, extras: _Extras) -> Any:
    """MLA with absorbed weights: scores against the latents themselves, which are never expanded.

    q [1, Q, T, nope + rope]; latent [1, 1, n, r]; rope [1, 1, n, d_rope]. K of head h is
    W_uk[h] c, V is W_uv[h] c, hence q . K = (W_uk[h]^T q) . c, and the sum over V is W_uv[h] of the
    sum over c."""
    nope, value = module.qk_nope_head_dim, module.v_head_dim
    weight = module.kv_b_proj.weight.view(q.shape[1], nope + value, -1)
    absorbed = torch.einsum("bqtd,qdr->bqtr", q[..., :nope], weight[:, :nope])
    scores = absorbed @ latent.transpose(2, 3) + q[..., nope:] @ rope.transpose(2, 3)
    weights = _weights(scores * extras.scaling, mask, None, extras).to(latent.dtype)
    return torch.einsum("bqtr,qvr->bqtv", weights @ latent, weight[:, nope:])
