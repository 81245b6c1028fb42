"""Keys of prefix content: a chain of sha256, so that one key names everything before it too.

    root  = H("kvpipe.prefix.v1", salt, whole-request keys such as a LoRA adapter)
    key i = H(key i-1, tokens of granule i as little-endian uint32, media that overlap granule i)

A granule is the gcd of the groups' block sizes: a block of any group ends at a granule's end, and
its key is the chain's there. Extra keys are encoded with type and length, so that no two different
ones give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import error as struct_error
from struct import iter_unpack, pack
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.errors import BlockError

Scalar = None | bool | int | str | bytes
Key = bytes | int  # of content: bytes of a hash, or a number where content is named already
MAX_TOKEN_ID = 2**32 - 1
_BAD_TOKEN = f"token ids are integers from 0 to {MAX_TOKEN_ID}"


@dataclass(frozen=True, kw_only=True)
class MediaRange:
    """Tokens [start, stop) of the prompt stand for a multimodal input identified by key (its hash):
    the token ids there are placeholders and say nothing about the content."""

    start: int
    stop: int
    key: bytes


@dataclass(frozen=True, kw_only=True)
class PrefixIdentity:
    """What besides the tokens decides whether two prefixes have the same content.

    salt: keeps tenants apart. extra: keys that hold for the whole request (LoRA adapter name).
    media: multimodal inputs, by position.
    """

    salt: str = ""
    extra: tuple[Scalar, ...] = ()
    media: tuple[MediaRange, ...] = ()


def canonical(value: Scalar | Sequence[Scalar]) -> bytes:
    """Injective bytes of a value: a type letter, the length of the content, the content."""
    if value is None:
        tag, content = b"n", b""
    elif isinstance(value, bool):  # before int: True is an int, but not the key 1
        tag, content = b"t", bytes([value])
    elif isinstance(value, int):
        tag, content = b"i", str(value).encode()
    elif isinstance(value, str):
        tag, content = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        tag, content = b"b", value
    elif isinstance(value, Sequence):
        tag, content = b"l", b"".join(map(canonical, value))
    else:
        raise BlockError(f"an extra key is None, bool, int, str or bytes, got {value!r}")
    return tag + len(content).to_bytes(8, "little") + content


def token_bytes(tokens: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """4 bytes a token; BlockError where an id does not fit."""
    if isinstance(tokens, list):
        try:
            return pack(f"<{len(tokens)}I", *tokens)  # five times as fast as numpy for a list
        except struct_error:
            raise BlockError(_BAD_TOKEN) from None
    given = np.asarray(tokens)
    if not given.size:
        return b""
    if given.dtype.kind not in "iu" or given.min() < 0 or given.max() > MAX_TOKEN_ID:
        raise BlockError(_BAD_TOKEN)
    return given.astype("<u4").tobytes()


class Chain(Protocol):
    """Names of everything before the end of each granule of one request: two are equal exactly
    where all before them is. num_tokens: as many as are known."""

    granule: int  # tokens
    num_tokens: int

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Append tokens."""
        ...

    def keys_at(self, granules: range, group: int = 0) -> Sequence[Key]:
        """A cache group's keys at the ends of these whole granules: the same tokens have another
        content in another group's layers."""
        ...

    def copy(self) -> Chain: ...


@dataclass
class PrefixChain:
    """The keys of one request, granule by granule, as its tokens become known (a `Chain`)."""

    granule: int
    identity: PrefixIdentity = field(default_factory=PrefixIdentity)
    keys: list[bytes] = field(default_factory=list)
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self._pending = b""  # bytes of the tokens after the last whole granule
        self._root = sha256(
            canonical(("kvpipe.prefix.v1", self.identity.salt)) + canonical(self.identity.extra)
        ).digest()

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Append tokens; every granule that they complete gets its key."""
        raw = self._pending + token_bytes(tokens)
        self.num_tokens += len(tokens)
        size = 4 * self.granule
        whole = len(raw) // size * size
        keys, media = self.keys, self.identity.media
        key = keys[-1] if keys else self._root
        pieces = iter_unpack(f"{size}s", raw[:whole]) if whole != size else ((raw[:size],),)
        for (tokens_of_one,) in pieces:
            content = key + tokens_of_one
            if media:
                content += self._media_bytes(len(keys) * self.granule)
            key = sha256(content).digest()
            keys.append(key)
        self._pending = raw[whole:]

    def keys_at(self, granules: range, group: int = 0) -> Sequence[Key]:
        keys = self.keys[granules.start : granules.stop : granules.step]
        if not group:  # the first group's are the shorter ones
            return keys
        suffix = group.to_bytes(2, "little")
        return [key + suffix for key in keys]

    def _media_bytes(self, first_token: int) -> bytes:
        """The inputs that overlap the granule at first_token, and which part of each."""
        stop = first_token + self.granule
        return b"".join(
            canonical((item.key, item.start - first_token))
            for item in self.identity.media
            if item.start < stop and item.stop > first_token
        )

    def copy(self) -> PrefixChain:
        twin = PrefixChain(self.granule, self.identity, list(self.keys), self.num_tokens)
        twin._pending = self._pending
        return twin
