"""How a server's weights are stored, by the word of its command or the name of its checkpoint."""

from __future__ import annotations

import re

# `--quantization` -> option of `weights`. The kernel that runs it (marlin) changes no byte.
_BY_WORD = {
    "fp8": "fp8",
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4",
}
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
