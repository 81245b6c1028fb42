"""Types that transformers generates with and kvpipe does not read, each with the reason.

What such a type keeps is not K, V or a state for each token of the text under keys of its file, or
how an engine stores it is not known. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_CACHE = "its class keeps no cache, and reads the whole text in every step"
_SPEECH = "it makes a waveform at once, not token by token, and keeps no cache"
_PARTS = "several decoders, one after another, each with a cache of its own"

_DRAFT = "a draft that reads the cache of the model it drafts for, and keeps none"

REASONS: Mapping[str, str] = {
    "bark": _PARTS,
    "bert-generation": "its decoder keeps K and V only as a part of an encoder-decoder",
    "blt": "decoders of bytes and of patches, whose number depends on the text",
    "cpmant": "a learned prompt of prompt_length tokens stands before every text, in the cache too",
    "fastspeech2_conformer_with_hifigan": _SPEECH,
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "glm5_next_text": "an indexer that pools keys (index_kpool); how engines store them is unknown",
    "gradium_phonon_tts": _PARTS,
    "idefics": "image layers whose keys depend on the images of a request",
    "musicgen_melody_decoder": "chroma_length rows of melody and one for each token of a text "
    "prompt, of which no key says how many, stand before the sound in its cache",
    "openai-gpt": _NO_CACHE,
    "pi0": "actions made by flow matching beside a vision-language model's cache",
    "pix2struct_text_model": "cross attention to patches, of which its file does not say how many",
    "pocket_tts": _PARTS,
    "qwen4_exp_text": "an indexer of averaged keys and states of n-grams; how engines store them "
    "is unknown",
    "reformer": "hashed buckets of hidden states, not K and V",
    "vits": _SPEECH,
    "xlm": _NO_CACHE,
    "xlnet": "hidden states of mem_len tokens (mems), not K and V",
    "xlstm": "matrix states whose shapes no published engine stores",
}
