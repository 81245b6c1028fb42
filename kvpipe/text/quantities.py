"""Sizes and lengths as people write them: "30GiB", "24GB", "30G", "32k".

GB is what a vendor sells (10**9 bytes); GiB, and G alone, is what memory is counted in (2**30).
A length of 32k is 32 * 1024 tokens, as in a model's name. What was understood is printed in full.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}iB": 2 ** (10 * (i + 1)) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}": 2 ** (10 * (i + 1)) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}B": 10 ** (3 * (i + 1)) for i, p in enumerate("KMGT")}
# At most so many digits that a float holds the number.
_SIZE = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([KMGT]?i?B?|)\s*$")
_LENGTH = re.compile(r"\s*([0-9]{1,12})\s*([kKM])\s*$")


def parse_size(value: Any) -> Any:
    """Bytes of 1024, "1024", "30GiB", "24GB" or "30G"; anything else is left for the schema."""
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        return value
    return (
        round(float(match[1]) * _UNITS[match[2]])
        if "." in match[1]
        else int(match[1]) * _UNITS[match[2]]
    )


def parse_length(value: Any) -> Any:
    """Tokens of "32k" or "1M"; anything else is left for the schema."""
    match = _LENGTH.match(value) if isinstance(value, str) else None
    return value if match is None else int(match[1]) * (2**20 if match[2] == "M" else 2**10)


def _size(value: Any) -> Any:
    size = parse_size(value)
    if isinstance(size, str):
        raise ValueError('bytes, or a size such as "30GiB"')
    return size


Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0, lt=2**63)]
Tokens = Annotated[int, BeforeValidator(parse_length), Field(ge=1, lt=2**31)]
