"""Tiny models that need more than a decoder and a prompt: images, encoders of their own, masks that
they prepare themselves, caches of their own, or attention that reads padding."""

from __future__ import annotations

from typing import Any

from tiny_models import BASE, SCALE, VOCAB, WINDOW, prompts

TEXT = {k: v for k, v in BASE.items() if k not in ("eos_token_id",)}
IMAGE, IMAGE_TOKEN, TOKENS_OF_IMAGE = 16, 90, 4  # pixels a side; 2 x 2 patches of 8
LENGTHS = (21, 9, 14)
VISION = dict(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    image_size=IMAGE, patch_size=8, num_channels=3,
)  # fmt: skip
QWEN_VISION = dict(
    depth=1, embed_dim=32, hidden_size=32, intermediate_size=32, num_heads=2, in_channels=3,
    patch_size=4, spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=32,
    window_size=16, fullatt_block_indexes=[0],
)  # fmt: skip
GEMMA = dict(TEXT, sliding_window=WINDOW, num_hidden_layers=6, query_pre_attn_scalar=8)
PEGASUS = dict(
    vocab_size=VOCAB, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=0,
    decoder_start_token_id=1, max_position_embeddings=256, init_std=0.3,
    attention_type="original_full",
)  # fmt: skip

# name -> (configuration class, model class, fields)
ODD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mpt": (
        "MptConfig", "MptForCausalLM",
        dict(d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=256,
             vocab_size=VOCAB),
    ),
    "gemma3": (
        "Gemma3Config", "Gemma3ForConditionalGeneration",
        dict(text_config=GEMMA, vision_config=VISION, mm_tokens_per_image=TOKENS_OF_IMAGE,
             image_token_index=IMAGE_TOKEN, boi_token_index=91, eoi_token_index=92),
    ),
    "paligemma": (
        "PaliGemmaConfig", "PaliGemmaForConditionalGeneration",
        dict(text_config=dict(TEXT, model_type="gemma"),
             vision_config=dict(VISION, model_type="siglip_vision_model", projection_dim=32,
                                num_image_tokens=TOKENS_OF_IMAGE, vision_use_head=False),
             image_token_index=IMAGE_TOKEN, projection_dim=32, hidden_size=32, vocab_size=VOCAB),
    ),
    "llava": (
        "LlavaConfig", "LlavaForConditionalGeneration",
        dict(text_config=dict(TEXT, model_type="llama"),
             vision_config=dict(VISION, model_type="clip_vision_model", projection_dim=32),
             image_token_index=IMAGE_TOKEN, image_seq_length=TOKENS_OF_IMAGE,
             vision_feature_layer=-1),
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
        dict(text_config=dict(TEXT, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}),
             vision_config=QWEN_VISION, image_token_id=IMAGE_TOKEN, video_token_id=93,
             vision_start_token_id=91, vision_end_token_id=92),
    ),
    "bigbird_pegasus": ("BigBirdPegasusConfig", "BigBirdPegasusForConditionalGeneration", PEGASUS),
    "git": (
        "GitConfig", "GitForCausalLM",
        dict(vision_config=VISION, vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2,
             num_attention_heads=4, intermediate_size=32, max_position_embeddings=128,
             pad_token_id=0, bos_token_id=1, eos_token_id=2),
    ),
    "modernbert-decoder": (
        "ModernBertDecoderConfig", "ModernBertDecoderForCausalLM",
        dict(TEXT, global_attn_every_n_layers=2, local_attention=WINDOW, cls_token_id=1,
             sep_token_id=2, eos_token_id=2),
    ),
    "t5gemma": (
        "T5GemmaConfig", "T5GemmaForConditionalGeneration",
        dict(encoder=dict(TEXT, sliding_window=WINDOW, query_pre_attn_scalar=8,
                          num_hidden_layers=2),
             decoder=dict(TEXT, sliding_window=WINDOW, query_pre_attn_scalar=8,
                          num_hidden_layers=2),
             decoder_start_token_id=1, vocab_size=VOCAB, pad_token_id=0),
    ),
    "minimax": (
        "MiniMaxConfig", "MiniMaxForCausalLM",
        dict(TEXT, num_local_experts=2, num_experts_per_tok=1, block_size=8),
    ),
    "xlnet": ("XLNetConfig", "XLNetLMHeadModel", dict(vocab_size=VOCAB, d_model=32, n_layer=2,
                                                      n_head=4, d_inner=32)),
    "openai-gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel",
                   dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4)),
    "gemma4": (
        "Gemma4Config", "Gemma4ForConditionalGeneration",
        dict(text_config=dict(
                 TEXT, sliding_window=WINDOW, num_hidden_layers=6, global_head_dim=16,
                 layer_types=["sliding_attention"] * 5 + ["full_attention"],
                 num_global_key_value_heads=1, hidden_size_per_layer_input=8,
                 vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=0),
             vision_config=None, audio_config=None),
    ),
    "mllama": (
        "MllamaConfig", "MllamaForConditionalGeneration",
        dict(text_config=dict(TEXT, cross_attention_layers=[1, 3], eos_token_id=2,
                              rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
             vision_config=dict(
                 hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_global_layers=1,
                 attention_heads=2, image_size=IMAGE, patch_size=8, vision_output_dim=64,
                 max_num_tiles=1, intermediate_layers_indices=[0],
                 supported_aspect_ratios=[[1, 1]])),
    ),
    "deepseek_v4": (
        "DeepseekV4Config", "DeepseekV4ForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=1, head_dim=16, qk_rope_head_dim=8,
             q_lora_rank=16, o_lora_rank=16, o_groups=2, n_routed_experts=4,
             num_experts_per_tok=2, n_shared_experts=1, index_n_heads=2, index_head_dim=16,
             index_topk=8),
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=1, head_dim=8, lru_width=32,
             attention_window_size=WINDOW, conv1d_width=4),
    ),
}  # fmt: skip


def build_odd(name: str) -> Any:
    """The model in eval mode, its weights scaled as those of tiny_models."""
    import torch
    import transformers

    config_class, model_class, fields = ODD[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**fields)
    model = getattr(transformers, model_class)(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(SCALE)
            if not parameter.any() and parameter.dim() >= 2:  # Gemma 3 projects images to zeros
                parameter.normal_(std=0.2)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def odd_inputs(name: str, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Left-padded prompts, for an encoder right-padded ones; with an image in each row where the
    model sees."""
    import torch

    batch = prompts(lengths)
    batch["input_ids"].clamp_(max=IMAGE_TOKEN - 1)
    if name in ("bigbird_pegasus", "t5gemma"):
        return {key: tensor.flip(1) for key, tensor in batch.items()}
    if name not in IMAGES:
        return batch
    ids = batch["input_ids"]
    ids[:, -TOKENS_OF_IMAGE - 2 : -2] = IMAGE_TOKEN
    generator = torch.Generator().manual_seed(3)
    return {**batch, **IMAGES[name](ids, generator)}


def _pixels(ids: Any, generator: Any) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn((len(ids), 3, IMAGE, IMAGE), generator=generator)}


def _typed_pixels(ids: Any, generator: Any) -> dict[str, Any]:
    return {**_pixels(ids, generator), "token_type_ids": (ids == IMAGE_TOKEN).long()}


def _patches(ids: Any, generator: Any) -> dict[str, Any]:
    import torch

    rows = len(ids)
    numbers = 3 * 2 * 4 * 4  # channels, frames, and a patch of 4 x 4
    return {
        "pixel_values": torch.randn((rows * 16, numbers), generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * rows),
        "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
    }


IMAGES = {
    "gemma3": _typed_pixels,
    "paligemma": _typed_pixels,
    "llava": _pixels,
    "qwen2_5_vl": _patches,
}
