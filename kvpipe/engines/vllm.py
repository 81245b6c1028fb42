"""Any vLLM release: engine=vllm engine.version=0.21.0 picks rows of the table in `_versions`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kvpipe.engines.base import EngineRules
from kvpipe.engines.versions import parse_version, rules_of


def _three_parts(value: Any) -> str:
    """0.21 and 0.10 arrive as numbers, and 0.10 as 0.1: which release was meant is lost."""
    if not isinstance(value, str):
        raise ValueError("a release in three parts, such as 0.21.0 or 0.10.0 (two are a number)")
    parse_version(value)
    return value


class VllmByVersion:
    """The rules of the release that the options name."""

    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        version: Annotated[str, BeforeValidator(_three_parts)]
        layers_per_group: Annotated[int, Field(ge=1)] | None = None

    def __call__(self, options: Options) -> EngineRules:
        return replace(rules_of(options.version), layers_per_group=options.layers_per_group)


PLUGIN = VllmByVersion()
