"""Shapes beside the plain ones: ratios that leave places, layers that share, drafts beside latent
rows, windows and states."""

from __future__ import annotations

from typing import Any

from tools.live.model_files import DEEPSEEK_V3, GPT_OSS, Model, decoder, gemma3, latent
from tools.live.whisper import whisper

EAGLE_3 = {"method": "eagle3", "num_speculative_tokens": 2}
MTP = {"method": "mtp", "num_speculative_tokens": 1}


def odd_models() -> list[Model]:
    return [*_ratios(), *_shared_and_chunked(), *_drafts(), *_convolutions(), *_latent(), whisper()]


def _ratios() -> list[Model]:
    """Below and above 1.5 layers of one kind for each of the other: the group's size turns."""
    pairs = ((5, 13), (2, 3), (5, 7))
    return [
        Model(
            name=f"gemma3-{windows}-{full}",
            kind=f"{windows} windows, {full} full",
            config=gemma3(full, windows),
        )
        for full, windows in pairs
    ]


def _shared_and_chunked() -> list[Model]:
    kinds = (["sliding_attention"] * 4 + ["full_attention"]) * 2
    gemma3n = decoder(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        num_kv_shared_layers=4,
        sliding_window=96,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=512,
        laurel_rank=8,
        altup_num_inputs=2,
        altup_active_idx=0,
        altup_coef_clip=120.0,
        altup_correct_scale=True,
        activation_sparsity_pattern=[0.0] * len(kinds),
        intermediate_size=[128] * len(kinds),
        hidden_activation="gelu_pytorch_tanh",
        rope_local_base_freq=10000.0,
        tie_word_embeddings=True,
        final_logit_softcapping=30.0,
    )
    chunked = decoder(
        "Llama4ForCausalLM",
        "llama4_text",
        num_hidden_layers=7,
        attention_chunk_size=192,
        num_local_experts=2,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        intermediate_size_mlp=128,
        use_qk_norm=True,
        no_rope_layers=[1, 1, 1, 0, 1, 1, 1],
        layer_types=["chunked_attention"] * 3 + ["full_attention"] + ["chunked_attention"] * 3,
        attn_temperature_tuning=False,
    )
    return [
        Model(name="gemma3n-8-2", kind="8 windows, 2 full, four share K/V", config=gemma3n),
        Model(name="llama4-192", kind="6 chunked of 192, 1 full", config=chunked),
    ]


def _drafts() -> list[Model]:
    draft = decoder("Eagle3LlamaForCausalLM", "llama", num_hidden_layers=1, draft_vocab_size=512)
    return [
        Model(
            name="deepseek-v3-eagle3",
            kind="latent, EAGLE-3 draft of full attention",
            config=DEEPSEEK_V3,
            engine={"speculative_config": EAGLE_3},
            draft=draft,
        ),
        Model(
            name="gpt-oss-eagle3",
            kind="1 window : 1 full, EAGLE-3 draft",
            config=GPT_OSS,
            engine={"speculative_config": EAGLE_3},
            draft=draft,
        ),
        Model(
            name="qwen3-next-mtp",
            kind="gated delta net hybrid, MTP draft",
            config=_qwen3_next(num_nextn_predict_layers=1),
            engine={"speculative_config": MTP},
            overrides=("model.draft=mtp",),
        ),
    ]


def _qwen3_next(**changes: Any) -> dict[str, Any]:
    return decoder(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        partial_rotary_factor=0.25,
        **_LINEAR,
        **_EXPERTS,
        **changes,
    )


_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}


def _convolutions() -> list[Model]:
    moe = decoder(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        num_hidden_layers=6,
        layer_types=["conv", "conv", "full_attention", "conv", "full_attention", "conv"],
        conv_L_cache=3,
        conv_bias=False,
        norm_eps=1e-5,
        num_dense_layers=1,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        use_expert_bias=True,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
    )
    del moe["head_dim"]
    return [Model(name="lfm2-moe", kind="short convolutions and attention", config=moe)]


def _latent() -> list[Model]:
    glm = latent("Glm4MoeLiteForCausalLM", "glm4_moe_lite", q_lora_rank=64)
    afmoe = decoder(
        "AfmoeForCausalLM",
        "afmoe",
        num_hidden_layers=6,
        layer_types=["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 2,
        global_attn_every_n_layers=4,
        sliding_window=64,
        moe_intermediate_size=64,
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=1,
        num_expert_groups=1,
        num_limited_groups=1,
        n_group=1,
        topk_group=1,
        route_norm=True,
        route_scale=1.0,
        score_func="sigmoid",
        mup_enabled=False,
    )
    return [
        Model(name="glm4-moe-lite", kind="latent", config=glm),
        Model(name="afmoe", kind="5 windows, 1 full", config=afmoe),
    ]
