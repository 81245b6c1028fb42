"""transformers' continuous batching, in its own words and in kvpipe's: models x settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.live.cases import MIB, Named
from tools.live.model_files import Model
from tools.live.models import MODELS

Json = dict[str, Any]
REQUEST = 512  # tokens, of the requests whose places are counted
LENGTHS, NEW = (5, 40, 100), 4  # of the prompts that are really generated, tokens each


@dataclass(frozen=True, kw_only=True)
class Setting:
    """arguments: of ContinuousBatchingConfig, which are options of kvpipe's `engine`, too."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    attention: str = "sdpa"
    memory_bytes: int = 64 * MIB


@dataclass(frozen=True, kw_only=True)
class BatchingCase(Named):
    model: Model
    setting: Setting

    def folder(self, scratch: Path) -> Path:
        """Of its model, written under `scratch`."""
        return self.model.write(scratch)

    @property
    def arguments(self) -> Json:
        return {**_ALWAYS, **self.setting.arguments}

    def question(self, folder: Path) -> Json:
        """As batching_probe.py reads it."""
        setting = self.setting
        return {
            "name": self.name,
            "folder": str(folder),
            "dtype": setting.dtype,
            "attention": setting.attention,
            "memory_bytes": setting.memory_bytes,
            "lengths": LENGTHS,
            "new": NEW,
            "request_len": REQUEST,
            "settings": {**self.arguments, "max_memory_percent": 1.0},
        }

    def overrides(self, folder: Path, memory_bytes: int | None = None) -> list[str]:
        """Of kvpipe; memory_bytes: another than the case's."""
        asked = {"flash": False, "decode_blocks": 0, "use_async_batching": False, **self.arguments}
        return [
            "model=hf",
            f"model.path={folder}",
            f"model.dtype={self.setting.dtype}",
            "device=cpu",
            "backend=meta",
            "engine=transformers",
            f"scheduler.max_model_len={REQUEST}",
            f"cache.kv_cache_memory_bytes={memory_bytes or self.setting.memory_bytes}",
            *(f"engine.{name}={str(value).lower()}" for name, value in asked.items()),
        ]


_ALWAYS: Json = {"page_size": 16, "max_batch_tokens": 128, "max_requests_per_batch": 64}
_AS_IT_IS = Setting()
_EAGER = Setting(name="eager attention", attention="eager")
_SETTINGS = (
    Setting(name="page 32", arguments={"page_size": 32}),
    Setting(name="bfloat16", dtype="bfloat16"),
    _EAGER,
    Setting(name="asynchronous", arguments={"use_async_batching": True}),
    Setting(name="batch of 512", arguments={"max_batch_tokens": 512}),
    Setting(name="8 requests", arguments={"max_requests_per_batch": 8}),
    Setting(name="more requests than tokens", arguments={"max_requests_per_batch": 500}),
    Setting(name="4 MiB", memory_bytes=4 * MIB),
)
# One of each shape of cache that it takes, and of each kind that it may refuse.
_MODELS = (
    *("llama", "llama-mqa-64", "gpt2", "opt", "gpt-neox", "mixtral"),
    *("mistral-window", "phi3-window", "gemma3-5-1", "gemma3-10-4", "gemma3-4-3"),
    *("olmo3", "cohere2", "exaone4", "gemma3n"),
    *("llama4", "deepseek-v2", "jamba", "granite4", "lfm2"),
)
_WITHOUT_SDPA = ("bloom", "gemma2", "gpt-oss", "mamba")


def batching_cases() -> Iterator[BatchingCase]:
    for name in _MODELS:
        yield BatchingCase(model=MODELS[name], setting=_AS_IT_IS)
    for name in _WITHOUT_SDPA:
        yield BatchingCase(model=MODELS[name], setting=_EAGER)
    for setting in _SETTINGS:
        for name in ("llama", "gemma3-10-4"):
            yield BatchingCase(model=MODELS[name], setting=setting)
