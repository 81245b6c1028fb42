"""Dense 16-bit tensor operations a second of cards, as their makers' data sheets give them (without
sparsity). A card that is not listed has no bound by computing: only what is read counts there.

Of GeForce cards those that accumulate in 16 bits, twice as many as in 32: there are kernels that do
(llama.cpp's), and a bound must hold for them."""

from __future__ import annotations

from collections.abc import Mapping

TERA = 1e12
DENSE_16_BIT: Mapping[str, float] = {
    "a10": 125 * TERA,
    "a100_40gb": 312 * TERA,
    "a100_80gb": 312 * TERA,
    "a30": 165 * TERA,
    "a40": 150 * TERA,
    "b200": 2250 * TERA,
    "b300": 2250 * TERA,
    "gb200": 2500 * TERA,
    "gh200_96gb": 990 * TERA,
    "h100_80gb": 990 * TERA,
    "h100_pcie": 756 * TERA,
    "h20": 148 * TERA,
    "h200": 990 * TERA,
    "l4": 121 * TERA,
    "l40s": 362 * TERA,
    "mi300x": 1307 * TERA,
    "mi325x": 1307 * TERA,
    "rtx_3090": 142 * TERA,
    "rtx_4090": 330 * TERA,
    "rtx_5090": 420 * TERA,
    "rtx_6000_ada": 364 * TERA,
    "rtx_a6000": 155 * TERA,
    "rtx_pro_6000": 504 * TERA,
    "t4": 65 * TERA,
    "v100_16gb": 125 * TERA,
    "v100_32gb": 125 * TERA,
}


def peak_of(device: str, bytes_a_weight: float) -> float | None:
    """Operations a second. Narrower weights may be computed with narrower numbers, each half of
    which doubles the figure on the cards that can: on the others the bound holds all the more."""
    peak = DENSE_16_BIT.get(device)
    if peak is None:
        return None
    return peak * (1 if bytes_a_weight >= 1.5 else 2 if bytes_a_weight >= 0.8 else 4)
