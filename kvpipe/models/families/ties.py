"""Whether the head is the embedding in a model of parts: whose tie_word_embeddings is obeyed.

The key may stand in the file and in its text part, and classes differ in which of them they read.
Each class was built with the key in either place (tools/measure_ties.py); a type that is in no row
here reads the file's, or else its text part's.
"""

from __future__ import annotations

KEY = "tie_word_embeddings"

# Neither: the head is a matrix of its own.
_NEVER = """
audioflamingo3 cosmos3_edge kimi_linear mllama molmo2 musicflamingo nemo_speechlm nemotron_h
nemotron_h_omni omniasr qwen2_audio vibevoice_asr voxtral
"""
# The file's alone, or the default of its class.
_OF_WHOLE = """
aria aya_vision cohere2_vision cohere_compass cosmos3_omni deepseek_ocr2 deepseek_vl
deepseek_vl_hybrid ernie4_5_vl_moe exaone4_5 fun_asr_nano fuyu gemma3 gemma4 gemma4_unified glm46v
glmasr glmga got_ocr2 granite_docling granite_speech granite_speech_plus hyperclovax_vision_v2
idefics2 idefics3 internvl janus kimi_k25 lfm2_vl lighton_ocr llava_next minicpm_ocr minicpmv4_6
minicpmv4_7 mistral3 moss_transcribe_diarize ovis2 paligemma pp_chart2table qianfan_ocr qwen3_5
qwen3_5_moe qwen3_asr qwen3_omni_moe_thinker qwen2_5_omni_thinker qwen3_vl qwen3_vl_moe smolvlm
step3p7 unlimited_ocr video_llava vipllava voxtral_realtime
"""
# The text part's alone.
_OF_TEXT = "blip-2 instructblip instructblipvideo llama4 vibevoice"
# Either is enough, the default of the file's class too.
_EITHER = "hunyuan_vl paddleocr_vl"
# Either is enough, where the file says its own.
_EITHER_SAID = """
glm4v glm4v_moe glm_ocr llava llava_next_video llava_onevision minimax_m3_vl qwen2_5_vl qwen2_vl
shieldgemma2 video_llama_3
"""

_NAMES = (_NEVER, _OF_WHOLE, _OF_TEXT, _EITHER, _EITHER_SAID)
NEVER, OF_WHOLE, OF_TEXT, EITHER, EITHER_SAID = (frozenset(row.split()) for row in _NAMES)


def tie_as_built(model_type: str, said: object, text: object, default: object) -> object:
    """What the class makes of the key. said: the file's, default: its class's, text: of the text
    part with its class's default; null where no row has the type."""
    whole = default if said is None else said  # nothing at all: not tied
    if model_type in NEVER:
        return False
    if model_type in OF_WHOLE:
        return whole or False
    if model_type in OF_TEXT:
        return text
    if model_type in EITHER:
        return whole or text
    return (said or text) if model_type in EITHER_SAID else None
