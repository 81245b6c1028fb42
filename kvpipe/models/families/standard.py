"""Types whose K/V the standard keys say: layers, heads, K/V heads, head size, kinds of layers.

Where a class calls them otherwise, its own names are in the table of classes; a row here adds what
that does not know. What each type's own cache holds is measured (tests/facts/README.md).
"""

from __future__ import annotations

from kvpipe.models.families.base import Family
from kvpipe.models.families.caches import standard_caches

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
    "dbrx": Family(
        caches=standard_caches, aliases={"num_key_value_heads": "attn_config.kv_n_heads"}
    ),
    "gpt_neo": Family(  # its local layers keep everything, too
        caches=standard_caches, aliases={"num_attention_heads": "num_heads"}
    ),
}
