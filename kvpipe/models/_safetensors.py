"""Headers of safetensors files: 8 bytes of length, then JSON of every tensor's dtype and shape.

https://github.com/huggingface/safetensors. Only headers are read, never a weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kvpipe.errors import ConfigError, Problem

TensorTable = Mapping[str, tuple[str, tuple[int, ...]]]

_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_PLAIN = {"F32", "F16", "BF16", "F64"}
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit


@dataclass(frozen=True, kw_only=True)
class StoredTensors:
    """num_elements of all tensors, and the bytes they take as stored. is_plain: floats alone, so
    that elements are parameters and their bytes follow from the served dtype."""

    num_elements: int
    num_bytes: int
    is_plain: bool


def summarize(table: TensorTable) -> StoredTensors:
    sizes = [(dtype, prod(shape)) for dtype, shape in table.values()]
    for dtype, _ in sizes:
        if dtype not in _BITS:
            raise ConfigError(
                Problem("model.safetensors", f"a dtype of {', '.join(_BITS)}", f"'{dtype}'")
            )
    return StoredTensors(
        num_elements=sum(size for _, size in sizes),
        num_bytes=sum(size * _BITS[dtype] // 8 for dtype, size in sizes),
        is_plain=all(dtype in _PLAIN for dtype, _ in sizes),
    )


def read_tensor_table(folder: Path) -> TensorTable | None:
    """Tensors of all *.safetensors files of a folder; None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    return {name: info for file in files for name, info in _read_header(file).items()}


def _read_header(file: Path) -> TensorTable:
    """ConfigError where the file is no safetensors file (a Git LFS pointer, for example)."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if length <= _LONGEST_HEADER else b""
        header = json.loads(text)
        return {
            name: (tensor["dtype"], tuple(tensor["shape"]))
            for name, tensor in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            Problem(
                str(file),
                "a safetensors header",
                f"{type(error).__name__}",
                "fetch the real file (git lfs pull), or move it away: config.json is enough",
            )
        ) from error
