"""The published JSON Schemas are those of what the commands write, whole and folded."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import kvpipe
from kvpipe.commands.base import Command
from kvpipe.commands.run import answer_of
from kvpipe.commands.serve_page import served_document
from kvpipe.errors import KvpipeError
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.plugins import COMMANDS
from kvpipe.report.folded import folded
from kvpipe.report.json_ import failure_document
from kvpipe.report.of_run import report_input

SCHEMAS = Path(kvpipe.__file__).parent / "schemas"
TYPES: dict[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}

TRACED = ("trace=synthetic", "trace.max_requests=40", "trace.requests_per_second=9")


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return loaded


def wrong(value: Any, rule: dict[str, Any], root: dict[str, Any], at: str = "") -> str:
    """The first place that breaks a rule; the keywords that tools/schemas.py writes, no others."""
    if "$ref" in rule:
        rule = root["$defs"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        found = [wrong(value, each, root, at) for each in rule["anyOf"]]
        return "" if "" in found else found[0]
    names = rule.get("type", list(TYPES))
    names = [names] if isinstance(names, str) else names
    if not any(isinstance(value, TYPES[name]) for name in names):
        return f"{at}: {value!r:.40} is no {names}"
    if isinstance(value, bool) and not {"boolean"} & set(names):
        return f"{at}: {value} is no {names}"
    if isinstance(value, dict):
        for key in rule.get("required", ()):
            if key not in value:
                return f"{at}.{key} is missing"
        for key, part in value.items():
            if key in rule.get("properties", {}):
                if said := wrong(part, rule["properties"][key], root, f"{at}.{key}"):
                    return said
            elif "properties" in rule:
                return f"{at}.{key} is not described"
    if isinstance(value, list) and "items" in rule:
        return next(filter(None, (wrong(i, rule["items"], root, f"{at}[]") for i in value)), "")
    return ""


def check(name: str, document: Any) -> None:
    plain = json.loads(json.dumps(document))
    for form in (plain, folded(plain)):
        assert wrong(form, schema(name), schema(name)) == ""


@pytest.mark.parametrize(
    "request_",
    [
        ["model=mistral_7b", "device=h100", "engine=vllm_0_33"],
        ["model=qwen3_next", "device=h200", "parallel.tensor_parallel_size=4", "weights=fp8"],
        ["model=llama4_scout", "device=b300", "attention=chunked", "weights=q4_k_m"],
    ],
)
def test_a_plan_is_as_its_schema_says(request_):
    result = kvpipe.run([*request_, "backend=meta"])
    check("plan", answer_of(report_input(result), full=True).document)
    assert wrong(json.loads(json.dumps(result.to_json())), schema("plan"), schema("plan")) == ""


@pytest.mark.parametrize(
    ("command", "request_"),
    [
        ("find", ["model=qwen3_8b", "device=a100_40gb", "want.requests=4", "want.length=4096"]),
        ("replay", ["model=qwen3_8b", "device=h100", "trace=synthetic", "trace.max_requests=9"]),
    ],
)
def test_a_document_says_of_what_it_is_and_is_as_its_schema_says(command, request_):
    document = getattr(kvpipe, command)(request_).to_json()
    check(command, document)
    assert document["schema"] == f"kvpipe.{command}" and document["model"] == "Qwen/Qwen3-8B"
    assert document["device_bytes"] > 2**35 and document["tensor_parallel_size"] == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("compare", ["compare", "model=qwen3_8b", "device=l4", "scheduler.max_model_len=4096"]),
        ("compare", ["compare", "model=llama4_scout", "device=b300", "weights=fp8"]),
        ("explain", ["explain", "steady"]),
        ("fleet", ["find", "model=qwen3_8b", "want.device=[l4,h200]", "want.requests=90"]),
        ("traced_fleet", ["find", "model=qwen3_8b", "want.device=[l4,h200]", *TRACED]),
        ("engine_plan", ["run", "model=qwen3_next", "device=h200", "tp=4", "engine=sglang"]),
        ("engine_plan", ["run", "model=gemma3_27b", "device=h200", "engine=transformers"]),
    ],
)
def test_engines_side_by_side_are_as_their_schema_says(name, words):
    prepared = prepared_request(words_to_overrides(words)).prepared
    document = prepared.config.plugins["command"].make(Command).run(prepared, None).document
    check(name, document)
    assert document["schema"] == f"kvpipe.{'explanation' if name == 'explain' else name}"


STOPS = ("command.lengths=[2048,8192]", "command.batches=[2048]", "command.cards=[1]")


@pytest.mark.parametrize(
    "words",
    [
        ["model=qwen3_8b", "device=l4", *STOPS],
        ["model=mixtral", "device=l4", *STOPS, "command.caches=[fp8]"],  # which never fits
        ["model=qwen3_8b", "device=a100_80gb", *STOPS, "command.engines=[vllm,llama_cpp]"],
    ],
)
def test_a_page_is_as_its_schema_says(words):
    prepared = prepared_request(words_to_overrides(["page", *words])).prepared
    document = prepared.config.plugins["command"].make(Command).run(prepared, None).document
    check("page", document)
    assert document["schema"] == "kvpipe.page" and document["subjects"][0]["positions"]


@pytest.mark.full
def test_a_page_of_a_sweep_is_as_its_schema_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = ["model=qwen3_8b,jamba", "device=l4", "scheduler.max_model_len=2048", "report=none"]
    assert run(["-m", *jobs, "hydra.sweep.dir=jobs"]) == 1  # jamba is too large
    assert run(["page", "command.folder=jobs", "report=none", "hydra.run.dir=out"]) == 0
    document = json.loads((tmp_path / "out/page.json").read_text())
    check("page", document)
    assert document["kind"] == "sweep"


def test_every_command_publishes_a_schema_of_its_document():
    named = {"run": "plan", "serve_page": "served"}
    published = {path.stem for path in SCHEMAS.glob("*.json")}
    assert {named.get(name, name) for name in COMMANDS.names()} <= published
    check("served", served_document("http://127.0.0.1:1/"))


@pytest.mark.parametrize(
    "request_", [["model=qwen3_32b", "device=t4"], ["model=llama", "device=nothing", "tp=x"]]
)
def test_a_refusal_is_as_its_schema_says(request_):
    with pytest.raises(KvpipeError) as refused:
        kvpipe.run(request_)
    check("failure", failure_document(refused.value))


def test_what_find_answers_is_a_number_with_a_unit():
    document = kvpipe.find(["model=llama", "device=h100", "want.requests=4", "want.length=4096"])
    values = {f["unit"]: f["value"] for f in document.to_json()["findings"]}
    assert values["bytes"] == (4 * 256 + 1) * 2**21  # and the null block
    assert values["status"] == document.to_json()["status"] == "fits"
    assert values["ranks"] == 1 and 0 < values["share of the device"] < 1


def test_the_schema_tells_a_wrong_document():
    document = json.loads(
        json.dumps(answer_of(report_input(kvpipe.run(["backend=meta"])), full=True).document)
    )
    without, other = deepcopy(document), deepcopy(document)
    del without["plan"]["num_blocks"]
    other["capacity"]["usable_blocks"] = "many"
    assert wrong(without, schema("plan"), schema("plan")) == ".plan.num_blocks is missing"
    assert "usable_blocks" in wrong(other, schema("plan"), schema("plan"))
