"""The header of a GGUF file: key-value pairs and the tensor table, never a weight.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian: "GGUF", version,
number of tensors, number of pairs; pairs; then name, axes, type and offset of each tensor. A file
is not ours: every length is checked against what is left of it before it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any

from kvpipe.errors import ConfigError, Problem, printable
from kvpipe.files.regular import open_regular
from kvpipe.models._values import LARGEST
from kvpipe.models.config_file import reason

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_PAIRS = 100_000
_MOST_TENSORS = 1_000_000
_MOST_AXES = 4
_DEEPEST = 4  # arrays of arrays
_LONGEST_HEADER = 2**28  # bytes; published ones have a few million
_KEPT = 20_000  # entries of an array that are kept; of a longer one (vocabularies), its length

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: Struct("<I"),
    5: Struct("<i"), 6: Struct("<f"), 7: Struct("<?"), 10: Struct("<Q"), 11: Struct("<q"),
    12: Struct("<d"),
}  # fmt: skip
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """shape: innermost axis first, as GGUF writes it. kind: number of its ggml type."""

    shape: tuple[int, ...]
    kind: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """pairs: key -> value; an array too long to keep is `Length`. tensors: by name."""

    pairs: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Length:
    """An array whose entries were passed over."""

    entries: int


class _Cut(Exception):
    """The file ends within its header, or says what cannot be."""


class _Bytes:
    """What is left of a header."""

    def __init__(self, content: mmap) -> None:
        self.content, self.at, self.size = content, 0, len(content)

    def scalar(self, kind: Struct) -> Any:
        end = self.at + kind.size
        if end > self.size:
            raise _Cut(f"the end of the file at byte {self.size:,}")
        (value,) = kind.unpack_from(self.content, self.at)
        self.at = end
        return value

    def skip(self, size: int) -> None:
        if size > self.size - self.at:
            raise _Cut(f"the end of the file at byte {self.size:,}")
        self.at += size
        if self.at > _LONGEST_HEADER:
            raise _Cut(f"a header of more than {_LONGEST_HEADER:,} bytes")

    def text(self) -> str:
        size = self.scalar(_U64)
        start = self.at
        self.skip(size)
        return self.content[start : self.at].decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        """Vocabularies have hundreds of thousands: the one loop that counts."""
        content, at, unpack = self.content, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(content, at)[0]
        except StructError as error:
            raise _Cut(f"the end of the file at byte {self.size:,}") from error
        self.skip(at - self.at)


def read_header(file: Path) -> Header:
    """ConfigError where it is no GGUF file, of another version, or cut."""
    try:
        with open_regular(file) as stream:
            if not stream.read(1):
                raise _Cut("an empty file")
            # Mapped, so that of many GB only the pages of the header are read.
            with mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
                return _parsed(_Bytes(content))
    except _Cut as error:
        raise _wrong(file, "a whole GGUF header", str(error)) from error
    except (OSError, ValueError) as error:
        raise _wrong(file, "a file that can be read", reason(error)) from error


def _parsed(data: _Bytes) -> Header:
    magic = data.content[:4]
    if magic != MAGIC:
        raise _Cut("a file without the letters GGUF in front")
    data.skip(4)
    version = data.scalar(_U32)
    if version not in _VERSIONS:
        raise _Cut(f"version {version}")
    num_tensors, num_pairs = data.scalar(_U64), data.scalar(_U64)
    if num_tensors > _MOST_TENSORS or num_pairs > _MOST_PAIRS:
        raise _Cut(f"{num_tensors:,} tensors and {num_pairs:,} keys")
    pairs = {data.text(): _value(data, data.scalar(_U32)) for _ in range(num_pairs)}
    tensors = {data.text(): _tensor(data) for _ in range(num_tensors)}
    return Header(pairs=pairs, tensors=tensors)


def _value(data: _Bytes, kind: int, depth: int = 0) -> Any:
    if kind == _STRING:
        return data.text()
    if kind == _ARRAY and depth < _DEEPEST:
        return _array(data, depth)
    if kind not in _SCALARS:
        raise _Cut(f"a value of type {kind}")
    return data.scalar(_SCALARS[kind])


def _array(data: _Bytes, depth: int) -> Any:
    kind, count = data.scalar(_U32), data.scalar(_U64)
    if count > data.size:
        raise _Cut(f"an array of {count:,}")
    if kind in _SCALARS and count > _KEPT:
        data.skip(count * _SCALARS[kind].size)
        return Length(count)
    if kind == _STRING and count > _KEPT:
        data.skip_texts(count)
        return Length(count)
    return [_value(data, kind, depth + 1) for _ in range(count)]


def _tensor(data: _Bytes) -> Tensor:
    axes = data.scalar(_U32)
    if axes > _MOST_AXES:
        raise _Cut(f"a tensor of {axes:,} axes")
    shape = tuple(data.scalar(_U64) for _ in range(axes))
    if any(size > LARGEST for size in shape):
        raise _Cut(f"a tensor of {max(shape):,} in one axis")
    kind = data.scalar(_U32)
    data.scalar(_U64)  # offset
    return Tensor(shape=shape, kind=kind)


def _wrong(file: Path, expected: str, got: str) -> ConfigError:
    knob = "download the file again, or name another"
    return ConfigError(Problem(f"model.path ({file})", expected, printable(got), knob))
