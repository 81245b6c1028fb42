"""Models whose layers were searched one by one (Nemotron NAS, arXiv:2411.19146): block_configs.

Attention and feed-forward of a layer are each as they are, a single matrix, or not there, with the
norm in front (vllm/model_executor/models/nemotron_nas.py, 0.32).
"""

from __future__ import annotations

from kvpipe.models._values import Values
from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import attention_cache
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norms

_ROUNDED = 256  # widths are multiples of it


def _part(config: Config, layer: int, name: str) -> Values:
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != config.num_layers:
        expected = f"{config.num_layers} blocks (num_hidden_layers)"
        raise unreadable("block_configs", expected, type(blocks))
    block = blocks[layer] if isinstance(blocks[layer], dict) else {}
    return Values(block, f"block_configs[{layer}].").section(name)


def _is_left_out(part: Values) -> bool:
    return part.flag("no_op") or part.flag("replace_with_linear")


def _grouped(config: Config, part: Values) -> Config:
    """n_heads_in_group: how many queries share a K/V head in this layer."""
    group, heads = part.count("n_heads_in_group"), config.num_heads
    if heads % group:
        raise part.wrong("n_heads_in_group", f"a number that divides {heads}", group)
    return config.having(num_key_value_heads=heads // group)


def searched_caches(config: Config) -> list[CacheGeometry]:
    parts = [(layer, _part(config, layer, "attention")) for layer in range(config.num_layers)]
    return [
        attention_cache(_grouped(config, part), layer)
        for layer, part in parts
        if not _is_left_out(part)
    ]


def searched_block(config: Config, layer: int) -> list[Weight]:
    found: list[Weight] = []
    for name, whole in (("attention", _attention), ("ffn", _feed_forward)):
        part = _part(config, layer, name)
        if part.flag("no_op"):
            continue
        own = _one_matrix(config, layer, name) if _is_left_out(part) else whole(config, part, layer)
        found += [*own, *norms(config, layer, 1, name=f"{name}_norm")]
    return found


def _one_matrix(config: Config, layer: int, name: str) -> list[Weight]:
    return linear(f"{name}.linear_attn", config.hidden_size, config.hidden_size, layer=layer)


def _attention(config: Config, part: Values, layer: int) -> list[Weight]:
    return attention(_grouped(config, part), layer, bias=config.flag("attention_bias"))


def _feed_forward(config: Config, part: Values, layer: int) -> list[Weight]:
    times = part.ratio("ffn_mult")
    if times is None:
        raise part.wrong("ffn_mult", "a number", None)
    width = int(2 * times * config.hidden_size / 3)
    return mlp(config, layer, -(-width // _ROUNDED) * _ROUNDED, bias=config.flag("mlp_bias"))


def searched_weights(config: Config) -> list[Weight]:
    return decoder(config, searched_block)


FAMILIES = {"nemotron-nas": Family(caches=searched_caches, weights=searched_weights)}
