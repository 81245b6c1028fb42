"""Architectures that a release of vLLM was the last to serve.

vLLM 0.33, model_executor/models/registry.py, names them with that release. Those that transformers
has a class for may still run through its backend, and are not here.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.engines.versions import parse_version

LAST_SERVED = {
    **dict.fromkeys(
        (
            "InternLMForCausalLM",
            "QWenLMHeadModel",
            "XverseForCausalLM",
            "MiniMaxText01ForCausalLM",
            "MiniMaxM1ForCausalLM",
            "MiniMaxVL01ForConditionalGeneration",
            "BaiChuanForCausalLM",
            "BaichuanForCausalLM",
        ),
        "0.23.0",
    ),
    "AquilaModel": "0.24.0",
    "AquilaForCausalLM": "0.24.0",
    "TeleChatForCausalLM": "0.25.0",
}


def last_served(architectures: Iterable[str], version: str) -> tuple[str, str] | None:
    """Of these, one that the release no longer serves, and the last that did."""
    for name in architectures:
        last = LAST_SERVED.get(name)
        if last is not None and parse_version(version) > parse_version(last):
            return name, last
    return None
