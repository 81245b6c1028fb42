"""The KV-cache dtype that a quantised checkpoint declares.

compressed-tensors writes `kv_cache_scheme`, ModelOpt `kv_cache_quant_algo` or the same scheme,
older ModelOpt in hf_quant_config.json; in some of its files the scheme is a name. vLLM 0.17, 0.28
and 0.32 take it where the cache dtype is auto (model_executor/layers/attention/attention.py,
utils/torch_utils.py), 0.17 whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.models._values import Values, unreadable
from kvpipe.models.base import CacheGeometry

SCALE_BYTES = 4
FP8, NVFP4 = "fp8_e4m3", "nvfp4"
_ALGORITHMS = {"fp8": FP8, "fp8_e4m3": FP8, "nvfp4": NVFP4}
_KNOB = "the checkpoint's own serving notes say what stores such a cache"


def declared_kv_dtype(quantization: Values | None) -> str | None:
    """None where nothing is declared; ConfigError for a scheme that no cache here stores."""
    if quantization is None:
        return None
    for key in _by_name(quantization):
        algorithm = quantization.word(key).lower()
        if algorithm not in _ALGORITHMS:
            raise quantization.wrong(key, "FP8 or NVFP4", algorithm)
        return _ALGORITHMS[algorithm]
    scheme = quantization.section("kv_cache_scheme")
    if not scheme.raw:
        return None
    bits, kind = scheme.number("num_bits"), scheme.word("type")
    if (bits, kind) == (4, "float") and quantization.word("quant_method").startswith("modelopt"):
        return NVFP4
    if (bits, kind) != (8, "float"):
        name = scheme.where.rstrip(".")
        raise unreadable(name, "8 bits of type float", f"{bits} of type '{kind}'", _KNOB)
    return FP8


def _by_name(quantization: Values) -> list[str]:
    """Keys under which an algorithm is named: some ModelOpt files name it where others describe."""
    said = [] if not quantization.word("kv_cache_quant_algo") else ["kv_cache_quant_algo"]
    is_named = isinstance(quantization.get("kv_cache_scheme"), str)
    return [*said, *(["kv_cache_scheme"] if is_named else [])]


def kv_scale_bytes(quantization: Values, caches: Iterable[CacheGeometry]) -> int:
    """Of the scales of an FP8 cache, as engines hold them (vLLM, quantization/kv_cache.py): a
    float32 for K and one for V of each layer, or of each head; none where they are computed as it
    runs."""
    named = isinstance(quantization.get("kv_cache_scheme"), str)
    scheme = Values({}) if named else quantization.section("kv_cache_scheme")
    if scheme.flag("dynamic") or declared_kv_dtype(quantization) != FP8:
        return 0
    by_head = scheme.word("strategy") == "attn_head"
    own = [c for c in caches if c.shares_with is None and "num_kv_heads" in c.fields]
    return sum(2 * SCALE_BYTES * (c.fields["num_kv_heads"] if by_head else 1) for c in own)


def has_kv_scheme(quantization: Values | None) -> bool:
    """Whether it is compressed-tensors that declares one: 0.17 lets it replace what was set."""
    if quantization is None or _by_name(quantization):
        return False
    return bool(quantization.section("kv_cache_scheme").raw) and (
        quantization.word("quant_method") == "compressed-tensors"
    )
