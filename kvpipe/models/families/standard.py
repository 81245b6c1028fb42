"""Types whose K/V the standard keys say: layers, heads, K/V heads, head size, kinds of layers.

Where a class calls them otherwise, its own names are in the table of classes; a row here adds what
that does not know. What each type's own cache holds is measured (tests/facts/README.md).
"""

from __future__ import annotations

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family
from kvpipe.models.families.caches import attention_caches, standard_caches


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


def reference_caches(config: Config) -> list[CacheGeometry]:
    """Windows beside reference tokens that stay: what is kept has no bound, as full attention."""
    return attention_caches(config)


_PLAIN = """
afmoe apertus apertus1p5_text arcee aria_text biogpt bitnet blip_text_model chameleon codegen
cohere2_moe cohere_compass_text cosmos3_edge_text csm ctrl cwm diffllama doge dots1 emu3_text_model
ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text evolla exaone exaone4 exaone_moe flex_olmo git glm4
glm4v_moe_text glm4v_text glm_ocr_text gpt-sw3 gpt_neox_japanese granite4_vision_text
granite_docling_text granite_swa granitemoe granitemoe_swa granitemoeshared helium higgs_audio_v2
hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text hy_v3 hyperclovax internlm3 iquestcoder jais2
kolibri1 kosmos_2_5_text_model kosmos_2_text_model kyutai_speech_to_text laguna mellum minimax_m2
minimax_m3_vl_text ministral molmo2_text moshi nanochat nemotron olmo olmoe
paddleocr_vl_text persimmon phi4_multimodal phimoe qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text
qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text sarvam_moe seed_oss smollm3 solar_open stablelm
step3p5 vaultgemma voxtral_realtime_text xglm
"""

FAMILIES = {name: Family(caches=standard_caches) for name in _PLAIN.split()} | {
    "hrm_text": Family(caches=hrm_caches, num_layers=hrm_layers),
    "jetmoe": Family(caches=jetmoe_caches),
    "deepseek_ocr2_text": Family(caches=standard_caches),
    "unlimited_ocr_text": Family(caches=reference_caches),
    "dbrx": Family(
        caches=standard_caches, aliases={"num_key_value_heads": "attn_config.kv_n_heads"}
    ),
    "gpt_neo": Family(  # its local layers keep everything, too
        caches=standard_caches, aliases={"num_attention_heads": "num_heads"}
    ),
}
