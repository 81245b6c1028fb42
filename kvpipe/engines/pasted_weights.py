"""How a server's weights are stored, by the word of its command or the name of its checkpoint."""

from __future__ import annotations

import re

# Of GGUF files, those whose bytes are known: the word is the option.
GGUF_TYPES = ("q4_0", "q4_k_m", "q4_k_s", "q5_0", "q5_k_m", "q5_k_s", "q6_k", "q8_0")
# `--quantization` -> option of `weights`. The kernel that runs it (marlin) changes no byte.
_BY_WORD = {
    "fp8": "fp8",
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4",
    **{name: name for name in GGUF_TYPES},
}
# Words that read a checkpoint of their kind, which no engine makes as it loads another -> what may
# say so in its name or its `quant_method`. (fp8 and bitsandbytes are made at load.)
_KINDS = {
    "awq": ("awq", "int4"),
    "awq_marlin": ("awq", "int4"),
    "gptq": ("gptq", "int4", "int8"),
    "gptq_marlin": ("gptq", "int4", "int8"),
    "gptq_marlin_24": ("gptq", "int4", "int8"),
    "gptq_bitblas": ("gptq", "int4", "int8"),
    "mxfp4": ("mxfp4",),
    "modelopt": ("modelopt", "fp8"),
    "modelopt_fp4": ("modelopt", "nvfp4"),
    "compressed-tensors": ("compressed-tensors", "int4", "int8", "fp8", "nvfp4"),
}
_SOME_KIND = re.compile(r"quanti[sz]ed|dynamic|[-_.]quant")
# Parts of a checkpoint's name, as those who quantise name it.
_BY_NAME = (
    (r"awq", "awq"),
    (r"gptq", "gptq"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"fp8", "fp8"),
    (r"w8a8|int8|8bit", "int8"),
    (r"w4a16|int4|4bit", "int4"),
)


def weights_of(word: str | None, name: str) -> str | None:
    """The option; None where neither says any. Words that are none of ours (bitsandbytes,
    compressed-tensors) say nothing of the bytes: the name may."""
    if word is not None and (option := _BY_WORD.get(word.lower())):
        return option
    last = name.rpartition("/")[2].lower()
    for pattern, option in _BY_NAME:
        if re.search(rf"(?:^|[-_.])(?:{pattern})(?:$|[-_.])", last):
            return option
    return None


def is_read(word: str) -> bool:
    """Whether a word of `--quantization` is known here."""
    return word.lower() in _BY_WORD


def kind_needed(word: str) -> str:
    """Of which kind the checkpoint must be that a word of `--quantization` reads; "": of any."""
    return _KINDS.get(word.lower(), ("",))[0]


def is_of_kind(word: str, name: str, quantized_with: str) -> bool:
    """Whether a checkpoint of this name, quantised so ("": not, as its config says), is one that
    the word reads."""
    kinds = _KINDS[word.lower()]
    if quantized_with:
        return quantized_with.lower() in kinds
    last = name.rpartition("/")[2].lower()
    said = weights_of(None, name)
    return said in kinds or kinds[0] in last or bool(_SOME_KIND.search(last) and said is None)
