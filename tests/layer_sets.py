"""The recorded layer sets: what 58 models, draft pairs and two-model servers store, layer by layer.

facts/layer_sets.json.gz: a list of {name, max_model_len, max_encoder_tokens, block_quantum, specs,
runs}. specs: the fields of each spec, with its kind; runs: [number of a spec, layers in a row].
Blocks of attention layers beside states are as large as vLLM makes them; block_quantum says what
they were before.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvpipe.plugins import SPECS
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.mamba import StateArray

FILE = Path(__file__).parent / "facts" / "layer_sets.json.gz"


@dataclass(frozen=True, kw_only=True)
class LayerSet:
    name: str
    max_model_len: int
    max_encoder_tokens: int
    block_quantum: int | None
    layers: tuple[CacheLayer, ...]

    def limits(self, batch: int = 8192, length: int | None = None) -> RequestLimits:
        return RequestLimits(
            max_model_len=length or self.max_model_len,
            max_num_batched_tokens=batch,
            max_encoder_tokens=self.max_encoder_tokens,
        )


def _spec(fields: dict[str, Any]) -> KVCacheSpec:
    own = {key: value for key, value in fields.items() if key != "kind"}
    if "states" in own:
        own["states"] = tuple(
            StateArray(**{**state, "shape": tuple(state["shape"])}) for state in own["states"]
        )
    spec: KVCacheSpec = SPECS.get(fields["kind"])(**own)
    return spec


@cache
def layer_sets() -> dict[str, LayerSet]:
    found = {}
    for entry in json.loads(gzip.decompress(FILE.read_bytes())):
        specs = [_spec(fields) for fields in entry["specs"]]
        order = [number for number, times in entry["runs"] for _ in range(times)]
        found[entry["name"]] = LayerSet(
            name=entry["name"],
            max_model_len=entry["max_model_len"],
            max_encoder_tokens=entry["max_encoder_tokens"],
            block_quantum=entry["block_quantum"],
            layers=tuple(
                CacheLayer(name=f"layers.{i}", spec=specs[number]) for i, number in enumerate(order)
            ),
        )
    return found
