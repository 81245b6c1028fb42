"""A figure of a log line, with the rounding it was printed with.

A figure printed as "3.81 GiB" stands for any number of bytes from 3.805 to 3.815 GiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from kvpipe.text.figures import GIB

LARGEST = 2**63  # bytes, blocks or tokens: what is printed as more is no figure
_NUMBER = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{0,30})?|-?\.[0-9]{1,30}")
_WHOLE = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,19}")


def number(text: str) -> float:
    """A decimal number of a log line; ValueError for what only looks like one."""
    if not _NUMBER.fullmatch(text) or abs(float(text)) >= LARGEST:
        raise ValueError(text)
    return float(text)


def whole_number(text: str) -> int:
    """A count of a log line, with or without commas; ValueError for what only looks like one."""
    digits = text.rstrip(",")  # of the sentence
    if not _WHOLE.fullmatch(digits) or (value := int(digits.replace(",", ""))) >= LARGEST:
        raise ValueError(text)
    return value


@dataclass(frozen=True, kw_only=True, order=True)
class Figure:
    """num_bytes: as printed. low, high: the least and the most it can stand for, in bytes."""

    num_bytes: int
    low: int
    high: int

    @classmethod
    def printed(cls, text: str, unit: int = GIB) -> Figure:
        """Of the digits of a log line: half a unit of the last digit either way. ValueError for
        what only looks like a number."""
        if abs(number(text)) * unit >= LARGEST:
            raise ValueError(text)
        value = Decimal(text)
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        half = Decimal(1).scaleb(exponent) / 2 if exponent or unit > 1 else Decimal(0)
        return cls(
            num_bytes=round(value * unit),
            low=-round(-(value - half) * unit),
            high=round((value + half) * unit),
        )

    @classmethod
    def exact(cls, num_bytes: int) -> Figure:
        return cls(num_bytes=num_bytes, low=num_bytes, high=num_bytes)

    @classmethod
    def sum(cls, parts: list[Figure]) -> Figure:
        """What several figures add up to; their roundings add up, too."""
        return cls(
            num_bytes=sum(part.num_bytes for part in parts),
            low=sum(part.low for part in parts),
            high=sum(part.high for part in parts),
        )
