"""Headers of safetensors files: 8 bytes of length, then JSON of every tensor's dtype and shape.

https://github.com/huggingface/safetensors. Only headers are read, never a weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.regular import open_regular
from kvpipe.models._values import LARGEST, is_whole, shown
from kvpipe.models.config_file import reason

TensorTable = Mapping[str, tuple[str, tuple[int, ...]]]

_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_PLAIN = {"F32", "F16", "BF16", "F64"}
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
_MOST_AXES = 16


@dataclass(frozen=True, kw_only=True)
class StoredTensors:
    """num_elements of all tensors, and the bytes they take as stored. is_plain: floats alone, so
    that elements are parameters and their bytes follow from the served dtype."""

    num_elements: int
    num_bytes: int
    is_plain: bool


def summarize(table: TensorTable) -> StoredTensors:
    sizes = [(dtype, prod(shape)) for dtype, shape in table.values()]
    return StoredTensors(
        num_elements=sum(size for _, size in sizes),
        num_bytes=sum(size * _BITS[dtype] // 8 for dtype, size in sizes),
        is_plain=all(dtype in _PLAIN for dtype, _ in sizes),
    )


def read_header(file: Path) -> TensorTable:
    """Its tensors; ConfigError where it is no safetensors file (a Git LFS pointer, for example)."""
    try:
        with open_regular(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if length <= _LONGEST_HEADER else b""
        header = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        got = reason(error) if isinstance(error, OSError) else type(error).__name__
        raise _wrong(str(file), "a safetensors header", got) from error
    if not isinstance(header, dict):
        raise _wrong(str(file), "a safetensors header", f"a {type(header).__name__}")
    tensors = {name: info for name, info in header.items() if name != "__metadata__"}
    return checked_table(str(file), tensors)


def checked_table(origin: str, tensors: Mapping[str, Any]) -> TensorTable:
    """Tensor name -> (dtype, shape) of `{"dtype": ..., "shape": [...]}`, each of them checked."""
    table: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, info in tensors.items():
        if not isinstance(info, Mapping):
            raise _wrong(origin, f"dtype and shape of tensor '{name}'", shown(info))
        dtype, shape = info.get("dtype"), info.get("shape")
        if not isinstance(dtype, str) or dtype not in _BITS:
            expected = f"a dtype of {', '.join(_BITS)} for tensor '{name}'"
            raise _wrong(origin, expected, shown(dtype))
        if not isinstance(shape, (list, tuple)) or not _is_shape(shape):
            raise _wrong(origin, f"a shape for tensor '{name}', a list of sizes", shown(shape))
        table[name] = (dtype, tuple(shape))
    return table


def _is_shape(shape: Sequence[Any]) -> bool:
    return len(shape) <= _MOST_AXES and all(is_whole(n) and 0 <= n <= LARGEST for n in shape)


def _wrong(origin: str, expected: str, got: str) -> ConfigError:
    knob = "fetch the real file (git lfs pull), or move it away: config.json is enough"
    return ConfigError(Problem(origin, expected, got, knob))
