"""A tiny Whisper with the files that its processor reads: an encoder-decoder, whose cross attention
keeps the encoder's output."""

from __future__ import annotations

from typing import Any

from tools.live.model_files import Model

TARGET = 448  # tokens that a transcript may have
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"),
)
END = SPECIAL[0]


def whisper() -> Model:
    """A processor cannot be made without its tokenizer: it is the one model that keeps it."""
    ids = {word: 256 + number for number, word in enumerate(SPECIAL)}
    return Model(
        name="whisper",
        kind="encoder-decoder: full and cross",
        config=_config(ids),
        engine={"max_model_len": TARGET, "skip_tokenizer_init": False},
        overrides=(f"scheduler.max_model_len={TARGET}",),
        files={
            "tokenizer.json": _tokenizer(ids),
            "tokenizer_config.json": {
                "tokenizer_class": "WhisperTokenizer",
                "processor_class": "WhisperProcessor",
                **{f"{kind}_token": END for kind in ("unk", "bos", "eos", "pad")},
                "additional_special_tokens": list(SPECIAL[1:]),
            },
            "preprocessor_config.json": _features(),
            "vocab.json": _vocabulary() | ids,
            "merges.txt": "#version: 0.2\n",
        },
    )


def _config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "vocab_size": 512,
        "num_mel_bins": 80,
        "d_model": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_layers": 3,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 128,
        "num_hidden_layers": 2,
        "max_source_positions": 1500,
        "max_target_positions": TARGET,
        "activation_function": "gelu",
        "scale_embedding": False,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        **{f"{kind}_token_id": ids[END] for kind in ("bos", "eos", "pad")},
        "torch_dtype": "float32",
    }


def _vocabulary() -> dict[str, int]:
    """A word for each byte, as byte-level tokenizers write it: what prints stands for itself, the
    others for characters from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    words = [*map(chr, printed), *(chr(256 + i) for i in range(256 - len(printed)))]
    return {word: number for number, word in enumerate(words)}


def _tokenizer(ids: dict[str, int]) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": word, "special": True, **plain}
            for word, number in ids.items()
        ],
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "vocab": _vocabulary() | ids, "merges": [], "unk_token": END},
    }


def _features() -> dict[str, Any]:
    """Half a minute of sound, as every checkpoint has it: 3,000 frames, 1,500 after the encoder."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": 80,
        "chunk_length": 30,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "sampling_rate": 16000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
