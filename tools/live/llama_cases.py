"""llama.cpp's contexts, in its own words and in kvpipe's: models x settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.live.cases import Named
from tools.live.gguf_models import CONTEXT, GGUF_MODELS, GgufModel
from tools.live.model_files import Model
from tools.live.models import MODELS

Json = dict[str, Any]
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class LlamaSetting:
    """sequences of `length` tokens. params: of llama_context_params; options: the same of kvpipe's
    `engine`."""

    name: str = ""
    sequences: int = 1
    length: int = 4000
    unified: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LlamaCase(Named):
    model: GgufModel
    setting: LlamaSetting

    def folder(self, scratch: Path) -> Path:
        """`scratch`, with its model in it."""
        self.model.write(scratch)
        return scratch

    def question(self, folder: Path) -> Json:
        """As llama_probe.py reads it."""
        setting = self.setting
        params = {
            "n_ctx": setting.length * setting.sequences,
            "n_seq_max": setting.sequences,
            "kv_unified": setting.unified,
            "swa_full": False,
            "flash_attn_type": 1,
            "n_ubatch": 512,
            "n_batch": 2048,
            "type_k": "f16",
            "type_v": "f16",
        }
        path = folder / f"{self.model.name}.gguf"
        return {"name": self.name, "path": str(path), "params": params | dict(setting.params)}

    def overrides(self, folder: Path) -> list[str]:
        """Of kvpipe: the same file, or the config.json that says the same."""
        setting, config = self.setting, self.model.config
        told = _as_long(config).write(folder) if config else folder / f"{self.model.name}.gguf"
        asked = {"n_parallel": setting.sequences, "kv_unified": setting.unified, **setting.options}
        return [
            "model=hf",
            f"model.path={told}",
            "device=cpu",
            "backend=meta",
            "engine=llama_cpp",
            f"scheduler.max_model_len={setting.length}",
            f"cache.kv_cache_memory_bytes={4 * GIB}",
            *(f"engine.{name}={str(value).lower()}" for name, value in asked.items()),
        ]


def _as_long(config: str) -> Model:
    """The config.json of that name, for as many tokens as the files are."""
    model = MODELS[config]
    return replace(model, config={**model.config, "max_position_embeddings": CONTEXT})


def _types(keys: str, values: str) -> LlamaSetting:
    both = {"type_k": keys, "type_v": values}
    return LlamaSetting(name=f"{keys} {values}", params=both, options=both)


_AS_IT_IS = LlamaSetting()
_SETTINGS = (
    LlamaSetting(name="4 sequences", sequences=4, length=1777),
    LlamaSetting(name="4 streams", sequences=4, length=1777, unified=False),
    LlamaSetting(
        name="3 streams, --swa-full",
        sequences=3,
        unified=False,
        params={"swa_full": True},
        options={"swa_full": True},
    ),
    LlamaSetting(name="--swa-full", params={"swa_full": True}, options={"swa_full": True}),
    LlamaSetting(name="ubatch 64", params={"n_ubatch": 64}, options={"n_ubatch": 64}),
    LlamaSetting(
        name="9 sequences, ubatch 64",
        sequences=9,
        length=400,
        params={"n_ubatch": 64},
        options={"n_ubatch": 64},
    ),
    LlamaSetting(
        name="no flash attention", params={"flash_attn_type": 0}, options={"flash_attn": False}
    ),
    *(_types(*pair) for pair in (("q8_0", "q8_0"), ("q4_0", "f16"), ("f32", "bf16"))),
    *(_types(*pair) for pair in (("q5_1", "q5_0"), ("iq4_nl", "q4_1"))),
)
_WITH_STATES = ("mamba", "jamba", "granite4", "lfm2")


def llama_cases() -> Iterator[LlamaCase]:
    for model in GGUF_MODELS.values():
        yield LlamaCase(model=model, setting=_AS_IT_IS)
    for setting in _SETTINGS:
        for name in ("llama", "gemma3"):
            yield LlamaCase(model=GGUF_MODELS[name], setting=setting)
    for setting in _SETTINGS[:2]:
        for name in (*_WITH_STATES, "gpt-oss", "deepseek2"):
            yield LlamaCase(model=GGUF_MODELS[name], setting=setting)
    most = LlamaSetting(name="256 sequences", sequences=256, length=64)
    more = LlamaSetting(name="257 sequences", sequences=257, length=64)
    bad = _types("f16", "q8_0")
    unflashed = LlamaSetting(
        name="q8_0 values, no flash attention",
        params={**bad.params, "flash_attn_type": 0},
        options={**bad.options, "flash_attn": False},
    )
    for setting in (most, more, unflashed):
        yield LlamaCase(model=GGUF_MODELS["llama"], setting=setting)
