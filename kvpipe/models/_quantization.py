"""Bytes of a quantised checkpoint, from `quantization_config`: numbers, scales and zero points.

Quantisers convert the linear layers (`Weight.linear`) but for those that the config names; the rest
stays in the file's dtype. Sizes of one matrix [rows, columns] = [out, in]:

fp8              1 byte a number, float32 scales: one a block, or one a matrix
awq              b bits a number, float16 scale and b-bit zero a group of columns
gptq             as awq, and an int32 group index a column
mxfp4            4 bits a number, one byte of exponent a group of 32
fp8, experts fp4 experts as mxfp4, and the scales of the rest are exponents of one byte
nvfp4            4 bits a number, one fp8 scale a group of 16, two float32 a matrix
compressed-tensors  by num_bits, type and strategy of its first group; scales in the file's dtype
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatch

from kvpipe.models._values import LARGEST, Values
from kvpipe.models.families.base import Weight
from kvpipe.specs.base import cdiv

MatrixBytes = Callable[[int, int], int]
_WIDTHS = (2, 3, 4, 5, 6, 7, 8)  # bits of one number in awq and gptq checkpoints


def quantized_bytes(
    weights: Iterable[Weight], quantization: Values, dtype_bytes: int
) -> int | None:
    """Bytes of all weights as stored; None for a method whose layout is not known here."""
    scheme = _scheme(quantization, dtype_bytes)
    if scheme is None:
        return None
    skipped = _skipped(quantization)
    experts = _mxfp4 if has_fp4_experts(quantization) else scheme
    return sum(
        weight.count * (experts if weight.count > 1 else scheme)(*weight.shape)
        if weight.linear and not is_skipped(weight, skipped)
        else weight.num_parameters * dtype_bytes
        for weight in weights
    )


def has_fp4_experts(quantization: Values) -> bool:
    """DeepSeek-V4's way, told beside a method of 8 bits."""
    return quantization.word("expert_dtype") == "fp4"


def _skipped(quantization: Values) -> list[str]:
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    patterns = [(key, pattern) for key in keys for pattern in quantization.words(key) or ()]
    for key, pattern in patterns:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except (re.error, RecursionError, OverflowError) as error:
            raise quantization.wrong(key, f"regular expressions ({error})", pattern) from error
    return [pattern for _, pattern in patterns]


def is_skipped(weight: Weight, patterns: Iterable[str]) -> bool:
    """Patterns are parts of a module's name, globs ("*"), or regular expressions ("re:...")."""
    module = f"model.layers.{weight.layer}.{weight.name}".removesuffix(".weight")
    return any(_matches(module, pattern) for pattern in patterns)


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    if "*" in pattern:
        return fnmatch(module, pattern) or fnmatch(module, f"{pattern}.*")
    return f".{pattern}." in f".{module}."


# --- schemes ---------------------------------------------------------------------------------
def _scheme(quantization: Values, dtype_bytes: int) -> MatrixBytes | None:
    method = quantization.word("quant_method").lower()
    algorithm = quantization.word("quant_algo").upper()
    schemes: dict[str, Callable[[], MatrixBytes | None]] = {
        "fp8": lambda: _fp8(quantization),
        "awq": lambda: _grouped(quantization, index=False),
        "gptq": lambda: _grouped(quantization, index=True),
        "mxfp4": lambda: _mxfp4,
        "modelopt": lambda: {"NVFP4": _nvfp4, "FP8": _fp8_static}.get(algorithm),
        "compressed-tensors": lambda: _compressed(quantization, dtype_bytes),
    }
    return schemes[method]() if method in schemes else None


def _fp8(quantization: Values) -> MatrixBytes:
    """weight_block_size [rows, columns], or a scale a matrix (and one of its input, if static)."""
    block = quantization.numbers("weight_block_size")
    if block:
        if len(block) != 2 or 0 in block:
            raise quantization.wrong("weight_block_size", "[rows, columns] of a block", block)
        wide = 1 if has_fp4_experts(quantization) else 4  # bytes of a scale
        return lambda rows, columns: (
            rows * columns + wide * cdiv(rows, block[0]) * cdiv(columns, block[1])
        )
    scales = 2 if quantization.word("activation_scheme") == "static" else 1
    return lambda rows, columns: rows * columns + 4 * scales


def _fp8_static(rows: int, columns: int) -> int:
    return rows * columns + 2 * 4


def _mxfp4(rows: int, columns: int) -> int:
    return rows * (columns // 2 + columns // 32)


def _nvfp4(rows: int, columns: int) -> int:
    return rows * (columns // 2 + columns // 16) + 2 * 4


def _grouped(quantization: Values, *, index: bool) -> MatrixBytes:
    bits = quantization.choice("bits", _WIDTHS) or quantization.choice("w_bit", _WIDTHS) or 4
    key = "q_group_size" if quantization.get("group_size") is None else "group_size"
    size = _group_size(quantization, key, 128)

    def matrix_bytes(rows: int, columns: int) -> int:
        groups = cdiv(columns, size or columns)
        numbers, zeros = columns * rows * bits // 8, groups * rows * bits // 8
        return numbers + zeros + groups * rows * 2 + (columns * 4 if index else 0)

    return matrix_bytes


def _group_size(quantization: Values, key: str, default: int | None = None) -> int | None:
    """Columns of a group; None for -1, a whole row."""
    return None if quantization.get(key) == -1 else quantization.count(key, default or LARGEST)


def _compressed(quantization: Values, scale_bytes: int) -> MatrixBytes | None:
    groups = quantization.section("config_groups")
    first = groups.section(next(iter(groups.raw), ""))
    kind = first.section("weights")
    bits, strategy = kind.number("num_bits"), kind.word("strategy")
    if bits == 4 and kind.word("type") == "float":
        return _nvfp4
    if bits == 4 and kind.word("type") == "int" and kind.flag("symmetric", True):
        return _packed_int4(_group_size(kind, "group_size"), scale_bytes)
    scales: dict[str, MatrixBytes] = {
        "channel": lambda rows, columns: rows,
        "tensor": lambda rows, columns: 1,
    }
    if bits != 8 or strategy not in scales:
        return None
    count = scales[strategy]
    return lambda rows, columns: rows * columns + scale_bytes * count(rows, columns)


def _packed_int4(group_size: int | None, scale_bytes: int) -> MatrixBytes:
    """Numbers packed in int32, one scale a group, and the original shape as two int64."""

    def matrix_bytes(rows: int, columns: int) -> int:
        groups = cdiv(columns, group_size or columns)
        return rows * (columns // 2 + groups * scale_bytes) + 16

    return matrix_bytes
