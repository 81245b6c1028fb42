"""How figures are written: bytes in powers of two with their unit, counts with commas, one form."""

from __future__ import annotations

from functools import lru_cache

MIB, GIB = 2**20, 2**30
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@lru_cache(maxsize=1024)  # pictures and tables say the same sizes again and again
def size(num_bytes: float) -> str:
    """`1.00 GiB`, `576 B`: three significant digits or more; 2**30 bytes are a GiB."""
    value, unit = float(num_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{value:,.0f} B" if value == int(value) else f"{value:,.1f} B"
    digits = 2 if abs(value) < 100 else 1
    # 1,023.999 KiB would round to 1,024.0 KiB: say 1.00 MiB instead.
    if round(abs(value), digits) >= 1024 and unit < len(_UNITS) - 1:
        value, unit, digits = value / 1024, unit + 1, 2
    return f"{value:,.{digits}f} {_UNITS[unit]}"


def ends_of(num_bytes: float, low_bytes: float, high_bytes: float) -> str:
    """`1.10 to 3.90`, beside a size; both ends say their unit where one is another."""
    low, high, unit = size(low_bytes), size(high_bytes), f" {size(num_bytes).rpartition(' ')[2]}"
    if low.endswith(unit) and high.endswith(unit):
        low, high = low.removesuffix(unit), high.removesuffix(unit)
    return f"{low} to {high}"


def count(number: int, noun: str) -> str:
    """`1 block`, `511 blocks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(part: float, whole: float) -> str:
    """A share with one decimal; "0.0%" only for nothing at all, "<0.1%" for little."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"
