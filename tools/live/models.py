"""Tiny models of every kind of cache an engine starts on a CPU: config.json files, no weights.

Sizes are the smallest that the engines' CPU kernels take (heads of 32 or 64, widths that 32
divides). An entry is a name, what its cache is, and the file's content.
"""

from __future__ import annotations

from tools.live.model_files import (
    CONTEXT,
    DEEPSEEK_V3,
    GPT_OSS,
    Config,
    Model,
    decoder,
    gemma3,
    kinds,
    latent,
)
from tools.live.odd_models import odd_models


def _full() -> list[Model]:
    llama = decoder("LlamaForCausalLM", "llama")
    moe = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
    gpt = {
        "vocab_size": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        "tie_word_embeddings": True,
    }
    rows: list[tuple[str, Config]] = [
        ("llama", llama),
        ("llama-mha", {**llama, "num_key_value_heads": 4}),
        ("llama-mqa-64", {**llama, "num_key_value_heads": 1, "head_dim": 64}),
        ("qwen2", decoder("Qwen2ForCausalLM", "qwen2")),
        ("qwen3", decoder("Qwen3ForCausalLM", "qwen3", head_dim=64)),
        ("granite", decoder("GraniteForCausalLM", "granite")),
        ("olmo2", decoder("Olmo2ForCausalLM", "olmo2")),
        ("glm4", decoder("Glm4ForCausalLM", "glm4", attention_bias=True)),
        ("gemma", decoder("GemmaForCausalLM", "gemma", hidden_activation="gelu_pytorch_tanh")),
        ("cohere", decoder("CohereForCausalLM", "cohere", layer_norm_eps=1e-5, logit_scale=1.0)),
        ("stablelm", decoder("StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5)),
        ("starcoder2", decoder("Starcoder2ForCausalLM", "starcoder2", norm_epsilon=1e-5)),
        (
            "nemotron",
            decoder("NemotronForCausalLM", "nemotron", hidden_act="relu2", norm_eps=1e-5),
        ),
        ("mixtral", decoder("MixtralForCausalLM", "mixtral", num_local_experts=4, **moe)),
        (
            "qwen3-moe",
            decoder(
                "Qwen3MoeForCausalLM",
                "qwen3_moe",
                num_experts=4,
                decoder_sparse_step=1,
                norm_topk_prob=True,
                mlp_only_layers=[],
                **moe,
            ),
        ),
        (
            "opt",
            {
                **gpt,
                "architectures": ["OPTForCausalLM"],
                "model_type": "opt",
                "hidden_size": 128,
                "ffn_dim": 128,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "max_position_embeddings": CONTEXT,
                "word_embed_proj_dim": 128,
                "do_layer_norm_before": True,
                "activation_function": "relu",
            },
        ),
        (
            "gpt2",
            {
                **gpt,
                "architectures": ["GPT2LMHeadModel"],
                "model_type": "gpt2",
                "n_embd": 128,
                "n_layer": 4,
                "n_head": 4,
                "n_positions": CONTEXT,
                "n_ctx": CONTEXT,
                "activation_function": "gelu_new",
            },
        ),
        (
            "gpt-neox",
            {
                **gpt,
                "architectures": ["GPTNeoXForCausalLM"],
                "model_type": "gpt_neox",
                "hidden_size": 128,
                "intermediate_size": 128,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "max_position_embeddings": CONTEXT,
                "rotary_pct": 0.25,
                "hidden_act": "gelu",
                "tie_word_embeddings": False,
            },
        ),
        (
            "bloom",
            {
                **gpt,
                "architectures": ["BloomForCausalLM"],
                "model_type": "bloom",
                "hidden_size": 128,
                "n_layer": 4,
                "n_head": 4,
                "seq_length": CONTEXT,
            },
        ),
    ]
    return [Model(name=name, kind="full", config=config) for name, config in rows]


def _windows() -> list[Model]:
    rows: list[tuple[str, str, Config]] = [
        ("mistral-window", "window", decoder("MistralForCausalLM", "mistral", sliding_window=64)),
        ("phi3-window", "window", decoder("Phi3ForCausalLM", "phi3", sliding_window=96)),
        (
            "mistral-window-200",
            "window",
            decoder("MistralForCausalLM", "mistral", sliding_window=200),
        ),
        (
            "gemma2",
            "1 window : 1 full",
            decoder(
                "Gemma2ForCausalLM",
                "gemma2",
                sliding_window=64,
                query_pre_attn_scalar=32,
                attn_logit_softcapping=50.0,
                final_logit_softcapping=30.0,
                hidden_activation="gelu_pytorch_tanh",
                layer_types=["sliding_attention", "full_attention"] * 2,
            ),
        ),
        ("gemma3-5-1", "5 windows : 1 full", gemma3(1, 5)),
        ("gemma3-10-4", "10 windows, 4 full", gemma3(4, 10)),
        ("gemma3-7-1", "7 windows, 1 full", gemma3(1, 7)),
        ("gemma3-22-4", "22 windows, 4 full", gemma3(4, 22)),
        ("gemma3-4-3", "4 windows, 3 full", gemma3(3, 4)),
        (
            "olmo3",
            "3 windows : 1 full",
            decoder(
                "Olmo3ForCausalLM",
                "olmo3",
                num_hidden_layers=8,
                sliding_window=128,
                layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
            ),
        ),
        (
            "gpt-oss",
            "1 window : 1 full, sinks",
            GPT_OSS,
        ),
        (
            "cohere2",
            "3 windows : 1 full",
            decoder(
                "Cohere2ForCausalLM",
                "cohere2",
                layer_norm_eps=1e-5,
                logit_scale=1.0,
                sliding_window=64,
                layer_types=["sliding_attention"] * 3 + ["full_attention"],
            ),
        ),
        (
            "exaone4",
            "3 windows : 1 full",
            decoder(
                "Exaone4ForCausalLM",
                "exaone4",
                sliding_window=64,
                sliding_window_pattern="LLLG",
                layer_types=["sliding_attention"] * 3 + ["full_attention"],
            ),
        ),
        (
            "llama4",
            "3 chunked : 1 full",
            decoder(
                "Llama4ForCausalLM",
                "llama4_text",
                attention_chunk_size=256,
                num_local_experts=2,
                num_experts_per_tok=1,
                interleave_moe_layer_step=1,
                intermediate_size_mlp=128,
                use_qk_norm=True,
                no_rope_layers=[1, 1, 1, 0],
                layer_types=["chunked_attention"] * 3 + ["full_attention"],
                attn_temperature_tuning=False,
            ),
        ),
    ]
    return [Model(name=name, kind=kind, config=config) for name, kind, config in rows]


def _latent() -> list[Model]:
    return [
        Model(
            name="deepseek-v2", kind="latent", config=latent("DeepseekV2ForCausalLM", "deepseek_v2")
        ),
        Model(name="deepseek-v3", kind="latent", config=DEEPSEEK_V3),
    ]


def _states() -> list[Model]:
    mamba = {
        "vocab_size": 512,
        "hidden_size": 128,
        "state_size": 16,
        "num_hidden_layers": 4,
        "conv_kernel": 4,
        "expand": 2,
        "intermediate_size": 256,
        "time_step_rank": 8,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    mamba2_sizes = {
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 64,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    }
    rows: list[tuple[str, str, Config]] = [
        (
            "mamba",
            "mamba-1",
            {**mamba, "architectures": ["MambaForCausalLM"], "model_type": "mamba"},
        ),
        (
            "falcon-mamba",
            "mamba-1",
            {
                **mamba,
                "architectures": ["FalconMambaForCausalLM"],
                "model_type": "falcon_mamba",
                "mixer_rms_eps": 1e-6,
            },
        ),
        (
            "mamba2",
            "mamba-2",
            {
                **mamba,
                "architectures": ["Mamba2ForCausalLM"],
                "model_type": "mamba2",
                "num_heads": 8,
                "head_dim": 32,
                "n_groups": 1,
                "chunk_size": 64,
                "rms_norm": True,
            },
        ),
        (
            "jamba",
            "mamba-1 hybrid",
            decoder(
                "JambaForCausalLM",
                "jamba",
                num_hidden_layers=4,
                attn_layer_period=4,
                attn_layer_offset=2,
                expert_layer_period=2,
                expert_layer_offset=1,
                num_experts=2,
                num_experts_per_tok=1,
                mamba_d_state=16,
                mamba_d_conv=4,
                mamba_expand=2,
                mamba_dt_rank=8,
                mamba_conv_bias=True,
                mamba_proj_bias=False,
            ),
        ),
        (
            "bamba",
            "mamba-2 hybrid",
            decoder(
                "BambaForCausalLM",
                "bamba",
                attn_layer_indices=[2],
                attn_rotary_emb=16,
                **mamba2_sizes,
            ),
        ),
        (
            "granite4",
            "mamba-2 hybrid",
            decoder(
                "GraniteMoeHybridForCausalLM",
                "granitemoehybrid",
                layer_types=["mamba", "mamba", "attention", "mamba"],
                num_local_experts=0,
                num_experts_per_tok=0,
                shared_intermediate_size=128,
                embedding_multiplier=1.0,
                logits_scaling=1.0,
                residual_multiplier=1.0,
                attention_multiplier=0.1,
                position_embedding_type="rope",
                **mamba2_sizes,
            ),
        ),
        (
            "falcon-h1",
            "mamba-2 beside attention in each layer",
            decoder(
                "FalconH1ForCausalLM",
                "falcon_h1",
                mamba_d_ssm=256,
                mamba_rms_norm=True,
                **mamba2_sizes,
            ),
        ),
        (
            "nemotron-h",
            "mamba-2 hybrid",
            decoder(
                "NemotronHForCausalLM",
                "nemotron_h",
                hybrid_override_pattern="M-M*",
                mamba_num_heads=8,
                mamba_head_dim=32,
                n_groups=1,
                ssm_state_size=16,
                conv_kernel=4,
                chunk_size=64,
                expand=2,
                mlp_hidden_act="relu2",
                layer_norm_epsilon=1e-5,
            ),
        ),
        (
            "zamba2",
            "mamba-2 hybrid, shared attention",
            decoder(
                "Zamba2ForCausalLM",
                "zamba2",
                num_hidden_layers=6,
                num_key_value_heads=4,  # as every checkpoint has: the engine takes all heads
                hybrid_layer_ids=[2, 5],
                layers_block_type=["mamba", "mamba", "hybrid"] * 2,
                num_mem_blocks=1,
                mamba_d_state=16,
                mamba_d_conv=4,
                mamba_expand=2,
                mamba_ngroups=1,
                n_mamba_heads=8,
                mamba_headdim=32,
                chunk_size=64,
                adapter_rank=8,
                attention_head_dim=64,
                attention_hidden_size=256,
                use_mem_rope=True,
                use_shared_attention_adapter=False,
                use_shared_mlp_adapter=True,
                hidden_act="gelu",
            ),
        ),
        (
            "lfm2",
            "short convolutions and attention",
            decoder(
                "Lfm2ForCausalLM",
                "lfm2",
                layer_types=["conv", "conv", "full_attention", "conv"],
                conv_L_cache=3,
                conv_dim=128,
                conv_bias=False,
                block_dim=128,
                block_ff_dim=128,
                block_multiple_of=32,
                block_auto_adjust_ff_dim=False,
                norm_eps=1e-5,
            ),
        ),
        (
            "qwen3-next",
            "gated delta net hybrid",
            decoder(
                "Qwen3NextForCausalLM",
                "qwen3_next",
                layer_types=["linear_attention"] * 3 + ["full_attention"],
                partial_rotary_factor=0.25,
                **linear,
                **experts,
            ),
        ),
    ]
    return [Model(name=name, kind=kind, config=config) for name, kind, config in rows]


def _shared_and_drafts() -> list[Model]:
    llama = decoder("LlamaForCausalLM", "llama")
    eagle = {
        **llama,
        "architectures": ["EagleLlamaForCausalLM"],
        "num_hidden_layers": 1,
    }
    eagle3 = {**eagle, "architectures": ["Eagle3LlamaForCausalLM"], "draft_vocab_size": 512}
    gemma3n = decoder(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        num_hidden_layers=5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"]
        + ["sliding_attention", "full_attention"],
        num_kv_shared_layers=2,
        sliding_window=64,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=512,
        laurel_rank=8,
        altup_num_inputs=2,
        altup_active_idx=0,
        altup_coef_clip=120.0,
        altup_correct_scale=True,
        activation_sparsity_pattern=[0.0] * 5,
        intermediate_size=[128] * 5,
        hidden_activation="gelu_pytorch_tanh",
        rope_local_base_freq=10000.0,
        tie_word_embeddings=True,
        final_logit_softcapping=30.0,
    )
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    return [
        Model(name="gemma3n", kind="windows and full, two layers share K/V", config=gemma3n),
        Model(
            name="llama-ngram",
            kind="full, n-gram draft",
            config=llama,
            engine={"speculative_config": ngram},
        ),
        Model(
            name="gemma3-ngram",
            kind="windows and full, n-gram draft",
            config=gemma3(1, 5),
            engine={"speculative_config": ngram},
        ),
        Model(
            name="llama-eagle",
            kind="full, EAGLE draft",
            config=llama,
            engine={"speculative_config": {"method": "eagle", "num_speculative_tokens": 2}},
            draft=eagle,
        ),
        Model(
            name="llama-eagle3",
            kind="full, EAGLE-3 draft",
            config=llama,
            engine={"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2}},
            draft=eagle3,
        ),
    ]


def _wide_heads_and_prediction_layers() -> list[Model]:
    """Layers whose tokens have other bytes: equal pages of several block sizes. Drafts that the
    model's own file has."""
    types = kinds(4, 10)
    gemma4 = decoder(
        "Gemma4ForCausalLM",
        "gemma4_text",
        num_hidden_layers=len(types),
        layer_types=types,
        sliding_window=64,
        global_head_dim=64,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=512,
        hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    return [
        Model(name="gemma4-10-4", kind="10 windows, 4 full of twice the bytes", config=gemma4),
        Model(
            name="deepseek-v3-mtp",
            kind="latent, MTP draft",
            config={**DEEPSEEK_V3, "num_nextn_predict_layers": 1},
            engine={"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
            overrides=("model.draft=mtp",),
        ),
    ]


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        *(*_full(), *_windows(), *_latent(), *_states(), *_shared_and_drafts()),
        *_wide_heads_and_prediction_layers(),
        *odd_models(),
    )
}

# As many layers of both kinds, a number that many sizes of groups divide: for what a table costs.
EVEN = Model(name="gemma3-8-8", kind="8 windows, 8 full", config=gemma3(8, 8))
