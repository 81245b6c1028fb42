"""Writes kvpipe/schemas/<document>.json: a JSON Schema for what each command writes and prints.

    python tools/schemas.py

The types are those of real documents of many requests; the descriptions of plan.json's keys are
those of docs/plan_schema.md. A key that every document has is required. Lists may be folded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kvpipe
from kvpipe.commands.base import Command
from kvpipe.commands.run import answer_of
from kvpipe.commands.serve_page import served_document
from kvpipe.errors import KvpipeError
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.plugins import COMMANDS
from kvpipe.report.base import Answer
from kvpipe.report.json_ import failure_document
from kvpipe.report.of_run import report_input

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "kvpipe" / "schemas"
# Objects whose keys are names of things, not keys of ours.
MAPS = re.compile(
    r"(config|backend|seconds|log|bytes\.causes|.*\.(fields|peak|steady|changes)|advice\[\]"
    r"|.*\.?files|notes\[\]\.changes.*|findings\[\]\.value)"
)
REPEAT = {
    "type": "object",
    "description": "a run of items: the first, how many, and what grows from one to the next",
    "required": ["$repeat", "first"],
    "properties": {"$repeat": {"type": "integer", "minimum": 2}, "first": {}, "step": {}},
    "additionalProperties": False,
}
CHOSEN = ["want.caches=[fp8]", "want.batches=[4096]", "want.seqs=[64]"]
TRACED = ("trace=synthetic", "trace.max_requests=30", "trace.requests_per_second=20")
SMALL = ("device=cpu", "cache.kv_cache_memory_bytes=1GiB", "trace=synthetic")
SMALL += ("trace.max_requests=9", "scheduler.max_model_len=4096")
PARTED = ("grouping.subslots=on", "parallel.tensor_parallel_size=4")
STOPS = ("command.lengths=[8192]", "command.cards=[1,2]")
RUNS: Mapping[str, Sequence[Sequence[str]]] = {
    "plan": (
        ["model=llama", "cache=sliding", "backend=host", "cache.kv_cache_memory_bytes=256MiB"],
        ["model=gemma3_27b", "device=h200", "backend=meta", "parallel=pp2", "cache=fp8"],
        ["model=gemma3_27b", "device=h100", "backend=meta", "layout=flashinfer_nhd"],
        ["model=jamba", "device=h200", "backend=meta", "parallel.tensor_parallel_size=4"],
        ["model=whisper_large_v3", "device=cpu", "backend=meta"],
        ["model=deepseek_v3_2", "device=h200", "backend=meta", "parallel.tensor_parallel_size=16"],
        ["model=longformer", "device=cpu", "backend=meta"],
        [
            "model=gemma3_27b",
            "device=h200",
            "backend=meta",
            "grouping.scratch=on",
            "cache.enable_prefix_caching=false",
            "scheduler.max_model_len=32768",
        ],
        ["model=qwen3_next", "device=h200", "backend=meta", *PARTED],
    ),
    "find": (
        ["model=llama", "device=h100", "want.requests=16", "want.length=8192"],
        ["model=llama3_70b", "device=l4", "want.requests=16", "want.length=8192"],
        ["model=llama", "device=cpu", "want.requests=4", "want.length=1024"],
        ["model=llama", "device=h100", "engine=vllm_0_33", "want.requests=1", "want.length=512"],
    ),
    "replay": (
        ["model=llama", "device=h100", "trace=synthetic", "trace.max_requests=20"],
        ["model=llama", "device=cpu", "trace=mooncake_sample", "trace.max_requests=20"],
        ["model=llama", "device=cpu", "trace=azure_code_sample", "engine=vllm_0_33"],
        ["model=jamba", *SMALL, "grouping.subslots=auto"],
        ["model=llama", *SMALL, "grouping.subslots=auto"],
        ["model=gpt_oss_20b", "device=h100", "trace=mooncake_sample", "trace.max_requests=9"],
    ),
    "doctor": (["sample"],),
    "fit_speed": (
        ["sample", "model=llama", "device=h100"],
        ["sample", "model=llama", "device=h200", "parallel.tensor_parallel_size=2"],
    ),
    "explain": ([], ["peak"]),
    "compare": (
        ["model=llama", "device=h100", "scheduler.max_model_len=8192"],
        ["model=jamba", "device=b300", "scheduler.max_model_len=8192", "engines=[sglang,kvpipe]"],
        ["model=llama4_scout", "device=cpu", "cache.kv_cache_memory_bytes=30GiB"],
    ),
    "fleet": (
        ["model=llama", "want.device=[h100,l4]", "want.requests=64", "want.length=8192"],
        ["model=llama", "want.device=[t4]", "want.length=131072", "want.token_ms=5"],
        ["model=llama", "want.device=[a10]", "want.length=4096", "want.prices={a10:1}"],
        ["model=llama", "want.device=[h100]", "want.length=4096", *CHOSEN],
    ),
    "traced_fleet": (
        ["model=llama", "want.device=[h100,l4]", *TRACED, "want.first_token_ms=900"],
        ["model=llama", "want.device=[t4]", *TRACED, "want.token_ms=5"],
        ["model=llama", "want.device=[h100]", *TRACED, "want.prices={h100:1}", "want.wait_ms=9"],
        ["model=llama", "want.device=[l4]", *TRACED, "cache.kv_cache_memory_bytes=1GiB"],
        ["model=llama", "want.device=[h100]", *TRACED, *CHOSEN],
    ),
    "engine_plan": (
        ["model=llama", "device=h100", "engine=sglang", "scheduler.max_model_len=8192"],
        ["model=gpt_oss_20b", "device=h100", "engine=tensorrt_llm", "scheduler.max_num_seqs=8"],
        ["model=gemma3_27b", "device=h200", "engine=llama_cpp", "scheduler.max_model_len=8192"],
    ),
    "page": (
        ["model=llama", "device=h100", "command.lengths=[1024,131072]", "command.cards=[1,2]"],
        ["model=llama3_70b", "device=l4", "command.lengths=[8192]", "command.caches=[auto,fp8]"],
        ["model=gemma3_27b", "device=h200", *STOPS, "command.engines=[kvpipe,vllm,sglang]"],
        ["model=llama", "device=cpu", "command.lengths=[1024]"],
    ),
    "served": ([],),
    "failure": (
        ["model=llama3_70b", "device=l4"],
        ["model=llama", "cache.block_size=abc"],
    ),
}


# Documents that are not named as the command that writes them.
ANSWERED_BY = {"engine_plan": "run", "fleet": "find", "traced_fleet": "find"}


def answer_of_command(words: Sequence[str]) -> Answer:
    prepared = prepared_request(words_to_overrides(words)).prepared
    return prepared.config.plugins["command"].make(Command).run(prepared, None)


def documents(name: str) -> Iterator[Any]:
    """Whole documents, as they are before they are folded."""
    for overrides in RUNS[name]:
        if name == "served":  # which it is until somebody stops it
            yield served_document("http://127.0.0.1:8765/")
            continue
        try:
            if command := name if name in COMMANDS else ANSWERED_BY.get(name):
                yield answer_of_command([command, *overrides]).document
                continue
            result = kvpipe.run(overrides)
            if name == "plan":
                yield answer_of(report_input(result), full=True).document
        except KvpipeError as error:
            yield failure_document(error)


def schema_of(name: str, found: Sequence[Any], texts: Mapping[str, str]) -> dict[str, Any]:
    plain = [json.loads(json.dumps(document)) for document in found]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvpipe {name}",
        **_schema(plain, "", texts),
        "$defs": {"repeat": REPEAT},
    }


def _schema(values: Sequence[Any], path: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Of values that stand in one place."""
    types = sorted({_type(value) for value in values})
    if "number" in types and "integer" in types:
        types.remove("integer")
    found: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if words := texts.get(path):
        found["description"] = words
    objects = [value for value in values if isinstance(value, dict)]
    if objects and not MAPS.fullmatch(path):
        keys = dict.fromkeys(key for value in objects for key in value)
        found["required"] = [key for key in keys if all(key in value for value in objects)]
        found["properties"] = {
            key: _schema(
                [value[key] for value in objects if key in value],
                f"{path}.{key}".lstrip("."),
                texts,
            )
            for key in keys
        }
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        found["items"] = {"anyOf": [_schema(items, f"{path}[]", texts), {"$ref": "#/$defs/repeat"}]}
    return found


def _type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def descriptions() -> dict[str, str]:
    page = (ROOT / "docs" / "plan_schema.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", page, re.MULTILINE)
    return {key: text for key, text in rows}


def main() -> None:
    SCHEMAS.mkdir(exist_ok=True)
    for name in RUNS:
        texts = descriptions() if name == "plan" else {}
        text = json.dumps(schema_of(name, list(documents(name)), texts), indent=1) + "\n"
        (SCHEMAS / f"{name}.json").write_text(text, encoding="utf-8")
        print(name, len(text))


if __name__ == "__main__":
    main()
