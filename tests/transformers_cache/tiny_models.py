"""Tiny random transformers models, one a family: float32, weights scaled so that choices depend on
the context (at the default scale greedy output is nearly constant)."""

from __future__ import annotations

from typing import Any

VOCAB = 97
SCALE = 4.0  # of every matrix
WINDOW = 24  # tokens; prompts are longer and shorter than it

DROP = object()  # a field of BASE that a configuration does not take

BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=1024,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,
)
MAMBA2: dict[str, Any] = dict(
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=16,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=8,
)
TYPES_SLIDING = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]

# family -> (configuration class, model class, fields)
# fmt: off
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", dict(sliding_window=WINDOW)),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        dict(
            sliding_window=WINDOW,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
        ),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        dict(sliding_window=WINDOW, num_hidden_layers=6, query_pre_attn_scalar=8),
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        dict(sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        dict(
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_conv_kernel_dim=4,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            decoder_sparse_step=1,
        ),
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {}),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        dict(num_local_experts=4, num_experts_per_tok=2),
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        dict(
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
            num_key_value_heads=4,
            head_dim=8,
        ),
    ),
    "llama4": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        dict(
            attention_chunk_size=16,
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=48,
            interleave_moe_layer_step=2,
        ),
    ),
    "jamba": (
        "JambaConfig",
        "JambaForCausalLM",
        dict(
            attn_layer_period=4,
            attn_layer_offset=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=2,
            num_experts_per_tok=1,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        ),
    ),
    "bamba": ("BambaConfig", "BambaForCausalLM", dict(attn_layer_indices=[2], **MAMBA2)),
    "zamba2": (
        "Zamba2Config",
        "Zamba2ForCausalLM",
        dict(
            num_hidden_layers=6,
            num_key_value_heads=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_ngroups=1,
            n_mamba_heads=8,
            layers_block_type=["linear_attention", "hybrid"] * 3,
            num_mem_blocks=1,
            chunk_size=8,
            use_shared_attention_adapter=False,
            adapter_rank=4,
            use_mem_rope=True,
        ),
    ),
    "nemotron_h": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        dict(
            layers_block_type=["mamba", "attention", "mlp", "mamba"],
            mamba_num_heads=8,
            mamba_head_dim=8,
            ssm_state_size=16,
            n_groups=1,
            conv_kernel=4,
            chunk_size=8,
            expand=2,
        ),
    ),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", dict(mamba_d_ssm=64, **MAMBA2)),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        dict(
            layer_types=["mamba", "mamba", "attention", "mamba"],
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=16,
            **MAMBA2,
        ),
    ),
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        dict(
            layer_types=["conv", "conv", "full_attention", "conv"],
            conv_L_cache=3,
            block_auto_adjust_ff_dim=False,
        ),
    ),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        dict(state_size=8, conv_kernel=4, expand=2, time_step_rank=4),
    ),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        dict(
            state_size=16,
            conv_kernel=4,
            expand=2,
            num_heads=8,
            head_dim=8,
            n_groups=1,
            chunk_size=8,
        ),
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        dict(
            num_hidden_layers=6,
            sliding_window=WINDOW,
            num_kv_shared_layers=2,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            vocab_size_per_layer_input=VOCAB,
            hidden_size_per_layer_input=8,
            laurel_rank=4,
            activation_sparsity_pattern=[0.0] * 6,
            intermediate_size=[48] * 6,
        ),
    ),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        dict(
            head_dim=DROP,
            new_decoder_architecture=True,
            num_kv_heads=2,
            bias=False,
            parallel_attn=True,
            alibi=False,
            num_ln_in_parallel_attn=2,
        ),
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", dict(n_layer=4, n_head=4)),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        dict(n_embd=32, n_layer=4, n_head=4, n_positions=1024),
    ),
    "opt": ("OPTConfig", "OPTForCausalLM", dict(ffn_dim=48, word_embed_proj_dim=32)),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        dict(
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=4,
            decoder_start_token_id=1,
        ),
    ),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        dict(
            d_model=32,
            init_std=0.06,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            decoder_start_token_id=1,
            forced_eos_token_id=None,
        ),
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        dict(
            d_model=32,
            init_std=0.06,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_mel_bins=8,
            max_source_positions=30,
            max_target_positions=256,
            decoder_start_token_id=1,
        ),
    ),
}
# fmt: on
ENCODER_DECODERS = ("t5", "bart", "whisper")


def config_of(family: str, **changes: Any) -> Any:
    """Its configuration, without a model."""
    import transformers

    config_name, _, fields = FAMILIES[family]
    given = {**BASE, **fields, **changes}
    return getattr(transformers, config_name)(**{k: v for k, v in given.items() if v is not DROP})


def build(family: str, seed: int = 0, attention: str | None = None, **changes: Any) -> Any:
    """The model, in eval mode. attention: sdpa, eager (None: what the model takes first)."""
    import torch
    import transformers

    model_name = FAMILIES[family][1]
    torch.manual_seed(seed)
    config = config_of(family, **changes)
    config._attn_implementation = attention
    model = getattr(transformers, model_name)(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(SCALE)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def prompts(lengths: tuple[int, ...] = (37, 9, 22), seed: int = 1) -> dict[str, Any]:
    """Left-padded input_ids and attention_mask [len(lengths), max(lengths)]."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.zeros((len(lengths), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = torch.randint(3, VOCAB, (length,), generator=generator)
        mask[row, width - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def inputs_of(family: str, lengths: tuple[int, ...] = (37, 9, 22), seed: int = 1) -> dict[str, Any]:
    """What `generate` takes: prompts, encoder inputs (right padded), or audio features."""
    import torch

    batch = prompts(lengths, seed)
    if family == "whisper":
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn((len(lengths), 8, 60), generator=generator)
        return {"input_features": features}
    if family in ENCODER_DECODERS:
        return {name: tensor.flip(1) for name, tensor in batch.items()}
    return batch
