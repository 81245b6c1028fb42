"""Types whose K/V the standard keys say, and whose layers are one `Block` or are not yet counted.

Where a class calls a key otherwise, its own name is in the table of classes. What each type's own
cache holds is measured, and its parameters are compared (tests/facts/README.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.blocks import Block, Experts, holds
from kvpipe.models.families.caches import attention_caches, standard_caches
from kvpipe.models.families.weights import decoder

LLAMA = Block(bias="attention_bias", mlp_bias="mlp_bias")
QWEN2 = Block(bias="yes", o_bias="no")
QWEN3 = Block(bias="attention_bias", qk_norm="head")
GLM4 = Block(bias="attention_bias", o_bias="no", norms=4)
GRANITE_MOE = Block(
    bias="attention_bias",
    experts=Experts(
        number="num_local_experts",
        width="intermediate_size",
        shared_width="shared_intermediate_size",
    ),
)
OCR_EXPERTS = Experts(
    number="n_routed_experts", shared="n_shared_experts", shared_bias="mlp_bias", first=1
)
HUNYUAN = Block(bias="attention_bias", qk_norm="head")

BLOCKS: Mapping[str, Block] = {
    "afmoe": Block(
        bias="attention_bias",
        qk_norm="head",
        gate="whole",
        norms=4,
        experts=Experts(first="num_dense_layers", shared="num_shared_experts", bias=1),
    ),
    "apertus": Block(bias="attention_bias", qk_norm="head", gated=False, scalars=2),
    "apertus1p5_text": Block(bias="attention_bias", qk_norm="head", gated=False, scalars=2),
    "arcee": Block(bias="attention_bias", gated=False, mlp_bias="mlp_bias"),
    "aria_text": Block(
        bias="attention_bias",
        experts=Experts(
            number="moe_num_experts",
            width="intermediate_size",
            shared="moe_num_shared_experts",
            shared_bias="mlp_bias",
        ),
    ),
    "bitnet": Block(bias="attention_bias", sub_norms=True),
    "cohere_compass_text": Block(bias="attention_bias", norms=1),
    "cosmos3_edge_text": Block(bias="attention_bias", gated=False, mlp_bias="mlp_bias"),
    "cwm": Block(mlp_bias="mlp_bias"),
    "dbrx": Block(
        experts=Experts(number="ffn_config.moe_num_experts", width="ffn_config.ffn_hidden_size")
    ),
    "deepseek_ocr2_text": Block(
        bias="attention_bias",
        mlp_bias="mlp_bias",
        experts=OCR_EXPERTS,
    ),
    "diffllama": Block(bias="attention_bias", lambdas=4),
    "dots1": Block(
        bias="attention_bias",
        qk_norm="head",
        experts=Experts(
            number="n_routed_experts", shared="n_shared_experts", first="first_k_dense_replace"
        ),
    ),
    "emu3_text_model": Block(bias="attention_bias", mlp_bias="mlp_bias"),
    "ernie4_5": Block(bias="use_bias", mlp_bias="use_bias"),
    "ernie4_5_moe": Block(
        bias="use_bias",
        mlp_bias="use_bias",
        head_bias="use_bias",
        experts=Experts(
            number="moe_num_experts",
            shared="moe_num_shared_experts",
            shared_bias="use_bias",
            first="moe_layer_start_index",
            last="moe_layer_end_index",
            every="moe_layer_interval",
            bias=1,
        ),
    ),
    "exaone": LLAMA,
    "exaone4": Block(qk_norm="head"),
    "exaone_moe": Block(
        qk_norm="head",
        experts=Experts(shared="num_shared_experts", first="first_k_dense_replace"),
    ),
    "flex_olmo": Block(
        bias="attention_bias", qk_norm="whole", experts=Experts(width="intermediate_size")
    ),
    "glm4": GLM4,
    "glm4v_text": Block(bias="yes", o_bias="no", norms=4),
    "glm_ocr_text": Block(norms=4),
    "glm4v_moe_text": Block(
        bias="attention_bias",
        o_bias="no",
        experts=Experts(
            number="n_routed_experts", shared="n_shared_experts", first="first_k_dense_replace"
        ),
    ),
    "granite4_vision_text": LLAMA,
    "granite_docling_text": LLAMA,
    "granite_swa": Block(bias="attention_bias", mlp_bias="mlp_bias", sinks=True),
    "granitemoe": GRANITE_MOE,
    "granitemoe_swa": Block(bias="attention_bias", sinks=True, experts=GRANITE_MOE.experts),
    "granitemoeshared": GRANITE_MOE,
    "helium": Block(bias="attention_bias", o_bias="no", mlp_bias="mlp_bias"),
    "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": Block(
        bias="attention_bias",
        qk_norm="head",
        experts=Experts(width="intermediate_size", shared_width="intermediate_size"),
    ),
    "hunyuan_vl_text": HUNYUAN,
    "hy_v3": Block(
        bias="attention_bias",
        qk_norm="head",
        mlp_bias="mlp_bias",
        experts=Experts(shared="num_shared_experts", shared_bias="mlp_bias", first=1),
    ),
    "hyperclovax": Block(bias="attention_bias", mlp_bias="mlp_bias", post_norms="use_post_norm"),
    "internlm3": Block(bias="qkv_bias", o_bias="bias", mlp_bias="bias"),
    "iquestcoder": LLAMA,
    "kolibri1": Block(
        qk_norm="head",
        norms=4,
        experts=Experts(shared_width="shared_expert_intermediate_size"),
    ),
    "mellum": Block(bias="attention_bias", qk_norm="head", experts=Experts()),
    "minimax_m2": Block(
        qk_norm="whole",
        experts=Experts(number="num_local_experts", width="intermediate_size"),
    ),
    "minimax_m3_vl_text": Block(
        qk_norm="head",
        width="dense_intermediate_size",
        experts=Experts(
            number="num_local_experts",
            width="intermediate_size",
            shared_width="shared_intermediate_size",
        ),
    ),
    "ministral": Block(),
    "olmoe": Block(
        bias="attention_bias", qk_norm="whole", experts=Experts(width="intermediate_size")
    ),
    "paddleocr_vl_text": Block(bias="use_bias", mlp_bias="use_bias"),
    "qwen2_5_omni_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen3_vl_text": QWEN3,
    "qwen3_vl_moe_text": Block(bias="attention_bias", qk_norm="head", experts=Experts(steps=True)),
    "qwen3_omni_moe_text": Block(
        bias="attention_bias", qk_norm="head", experts=Experts(steps=True)
    ),
    "sarvam_moe": Block(
        bias="attention_bias",
        o_bias="no",
        qk_norm="head",
        qk_norm_if="use_qk_norm",
        experts=Experts(
            number="n_routed_experts", shared="n_shared_experts", first="first_k_dense_replace"
        ),
    ),
    "seed_oss": Block(bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "smollm3": LLAMA,
    "solar_open": Block(
        bias="attention_bias",
        o_bias="no",
        experts=Experts(
            number="n_routed_experts", shared="n_shared_experts", first="first_k_dense_replace"
        ),
    ),
    "unlimited_ocr_text": Block(
        bias="attention_bias",
        mlp_bias="mlp_bias",
        experts=OCR_EXPERTS,
    ),
    "vaultgemma": Block(bias="attention_bias"),
}
# Layer norms with biases, the last one too.
NORMED: Mapping[str, Block] = {
    "jais2": Block(bias="attention_bias", norm_bias=True, gated=False, mlp_bias="mlp_bias"),
    "persimmon": Block(
        bias="yes", qk_norm="head", qk_norm_if="qk_layernorm", qk_norm_bias=True,
        norm_bias=True, gated=False, mlp_bias="yes",
    ),
    "phimoe": Block(
        bias="attention_bias",
        norm_bias=True,
        head_bias="lm_head_bias",
        experts=Experts(number="num_local_experts", width="intermediate_size"),
    ),
    "nemotron": Block(bias="attention_bias", norm_bias=True, gated=False, mlp_bias="mlp_bias"),
    "stablelm": Block(
        bias="use_qkv_bias", o_bias="no", qk_norm="whole", qk_norm_if="qk_layernorm",
        one_norm="use_parallel_residual", norm_bias=True,
    ),
}  # fmt: skip
# Norms without weights.
UNWEIGHTED: Mapping[str, Block] = {
    "nanochat": Block(bias="attention_bias", norms=0, gated=False),
    "olmo": Block(bias="attention_bias", norms=0),
}
_NOT_COUNTED = """
biogpt chameleon codegen csm ctrl doge evolla git
gpt_neox_japanese higgs_audio_v2 kosmos_2_5_text_model kosmos_2_text_model
kyutai_speech_to_text moshi phi4_multimodal xglm
"""


def whole_decoder(config: Config, block: Block, *, norm_bias: bool = False) -> list[Weight]:
    return decoder(config, block, norm_bias=norm_bias, head_bias=holds(config, block.head_bias))


def bare_decoder(config: Config, block: Block) -> list[Weight]:
    """Without weights in its last norm."""
    return [w for w in decoder(config, block) if not w.name.startswith("model.norm")]


# --- caches that are nearly standard -------------------------------------------------------------
def hrm_layers(config: Config) -> int:
    """HRM runs its stacks again and again, and each run has a cache of its own. A file of the
    class itself says the sum, and the stack's layers apart."""
    if config.number("num_layers_per_stack"):
        return config.num_layers
    cycles = config.count("H_cycles") * (config.count("L_cycles") + 1)
    return config.count("num_hidden_layers") * cycles


def hrm_caches(config: Config) -> list[CacheGeometry]:
    return attention_caches(config.having(num_hidden_layers=hrm_layers(config)))


def jetmoe_caches(config: Config) -> list[CacheGeometry]:
    """Experts of attention: as many query heads a K/V head as experts run."""
    kv = config.count("num_key_value_heads")
    heads = kv * config.count("num_experts_per_tok")
    size = config.count("kv_channels")
    return attention_caches(config.having(num_attention_heads=heads, head_dim=size))


def minimax_m2_caches(config: Config) -> list[CacheGeometry]:
    """Its published files still list kinds of attention, all of them full (1)."""
    listed = config.numbers("attn_type_list")
    if listed is not None and set(listed) != {1}:
        raise config.wrong("attn_type_list", "1 (full) for every layer", sorted(set(listed)))
    return standard_caches(config)


def unbounded_caches(config: Config) -> list[CacheGeometry]:
    """Windows beside reference tokens that stay: what is kept has no bound, as full attention."""
    return attention_caches(config)


_OWN_CACHES = {
    "minimax_m2": minimax_m2_caches,
    "unlimited_ocr_text": unbounded_caches,
}
_ALIASES = {"dbrx": {"num_key_value_heads": "attn_config.kv_n_heads"}}
# Of sections inside the file, which the table of classes does not open.
_DEFAULTS = {
    "dbrx": {
        "attn_config.kv_n_heads": 1,
        "ffn_config.moe_num_experts": 4,
        "ffn_config.ffn_hidden_size": 3584,
    }
}


def _row(name: str, block: Block, *, norm_bias: bool = False, bare: bool = False) -> Family:
    weights = partial(bare_decoder, block=block) if bare else None
    return Family(
        caches=_OWN_CACHES.get(name, standard_caches),
        weights=weights or partial(whole_decoder, block=block, norm_bias=norm_bias),
        aliases=_ALIASES.get(name, {}),
        defaults=_DEFAULTS.get(name, {}),
    )


FAMILIES = {
    **{name: _row(name, block) for name, block in BLOCKS.items()},
    **{name: _row(name, block, norm_bias=True) for name, block in NORMED.items()},
    **{name: _row(name, block, bare=True) for name, block in UNWEIGHTED.items()},
    **{name: Family(caches=standard_caches) for name in _NOT_COUNTED.split()},
    "hrm_text": Family(caches=hrm_caches, num_layers=hrm_layers),
    "jetmoe": Family(caches=jetmoe_caches),
    "gpt_neo": Family(  # its local layers keep everything, too
        caches=standard_caches, aliases={"num_attention_heads": "num_heads"}
    ),
}
