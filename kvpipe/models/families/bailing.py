"""Ling hybrids: a latent layer closes every group; the others are linear, each release its own way.

Ling 3.0 has Kimi delta attention (arXiv:2510.26692), Ling 2.5 lightning attention
(arXiv:2501.08313), whose state an engine keeps in the model's dtype. Both files say
`bailing_hybrid`, and their architectures tell them apart (vllm/model_executor/models/
bailing_moe_linear.py, bailing_moe_v3.py, 0.33).
"""

from __future__ import annotations

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family
from kvpipe.models.families.caches import FULL, layer_types
from kvpipe.models.families.deepseek import latent_cache
from kvpipe.models.families.delta import LINEAR, kda_state, lightning_state, mixed_caches


def grouped_types(config: Config, every: int) -> Config:
    derived = [FULL if (i + 1) % every == 0 else LINEAR for i in range(config.num_layers)]
    return config.having(layer_types=layer_types(config, derived))


def bailing_caches(config: Config) -> list[CacheGeometry]:
    """head_dim is the linear heads' until the class makes it the rope's."""
    sized = grouped_types(config, config.count("layer_group_size", 6)).having(
        linear_head_dim=config.count("linear_head_dim", config.count("head_dim")),
        linear_num_heads=config.count("linear_num_heads", config.num_heads),
        linear_conv_kernel_dim=config.count("short_conv_kernel_size", 4),
    )
    return mixed_caches(sized, kda_state, latent_cache)


def lightning_caches(config: Config) -> list[CacheGeometry]:
    """Linear layers have as many heads as the latent ones, of head_dim."""
    grouped = grouped_types(config, config.count("layer_group_size"))
    return mixed_caches(grouped, lightning_state, latent_cache)


FAMILIES = {
    "bailing_hybrid": Family(caches=bailing_caches, ssm_dtype="float32"),
    "bailing_moe_v2_5": Family(caches=lightning_caches),
}
