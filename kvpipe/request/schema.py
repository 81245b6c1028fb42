"""A section of settings against its schema: every mistake as `key: expected, got, knob`.

pydantic finds the mistakes; here they are put into a user's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from kvpipe.errors import Problem, did_you_mean

NOTHING = "nothing"  # got, of a setting that is not there
SHOWN = 120  # characters of a wrong value that a message repeats


def check_section(
    name: str, schema: type[BaseModel], value: Any, fallback: Any = None
) -> tuple[Any, list[Problem]]:
    """A section as its schema, with every problem; None where the fallback's values, put in place
    of the wrong ones, do not make it whole."""
    if not isinstance(value, Mapping):
        return None, [
            Problem(name, "a section of settings", repr(value), f"choose {name}=<option>")
        ]
    try:
        return schema.model_validate(dict(value)), []
    except ValidationError as error:
        problems = list(_problems(name, schema, value, error))
        repaired = _repaired(value, fallback, error)
    try:
        return (schema.model_validate(repaired), problems) if repaired else (None, problems)
    except ValidationError:
        return None, problems


def _repaired(
    value: Mapping[str, Any], fallback: Any, error: ValidationError
) -> dict[str, Any] | None:
    """value with each top-level key that is wrong taken from the fallback, unknown keys dropped."""
    if not isinstance(fallback, Mapping):
        return None
    repaired = dict(value)
    for item in error.errors():
        key = item["loc"][0] if item["loc"] else None
        repaired.pop(key, None)  # type: ignore[arg-type]
        if key in fallback:
            repaired[key] = fallback[key]  # type: ignore[index]
    return repaired


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "settings",
    "model_type": "settings",
    "model_attributes_type": "settings",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of 64 bits",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "too_short": "a list with an entry",
    "list_type": "a list",
    "missing": "a value",
}


def _problems(
    section: str, schema: type[BaseModel], value: Mapping[str, Any], error: ValidationError
) -> Iterator[Problem]:
    """One Problem a key; the branches of a union (`16 or auto`) are joined into one line."""
    by_key: dict[tuple[str, ...], list[Any]] = {}
    for item in error.errors():
        by_key.setdefault(_written_path(item, value), []).append(item)
    for path, items in by_key.items():
        key = ".".join((section, *path))
        if items[0]["type"] == "extra_forbidden":
            known = list(schema.model_fields) if len(path) == 1 else []
            knob = did_you_mean(path[-1], known) if known else ""
            yield Problem(key, "a known key", f"'{path[-1]}'", knob, of_name=True)
            continue
        expected = " or ".join(dict.fromkeys(_expected(item) for item in items))
        yield Problem(key, expected, _got(items[0]))


def _written_path(item: Any, value: Any) -> tuple[str, ...]:
    """The part of an error's location that the user wrote; a union adds names of its branches."""
    path: list[str] = []
    for part in item["loc"]:
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if in_list or (isinstance(value, Mapping) and part in value):
            value = value[part]
        elif item["type"] != "missing" or part != item["loc"][-1]:
            continue
        path.append(str(part))
    return tuple(path)


def _got(item: Any) -> str:
    return NOTHING if item["type"] == "missing" else shown(item["input"])


def shown(value: Any) -> str:
    """What somebody wrote, on one line of a message: long values are cut."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def _expected(item: Any) -> str:
    """What a pydantic error wanted, in words with the bound."""
    context = item.get("ctx", {})
    if item["type"] == "literal_error":
        return str(context["expected"]).replace(" or ", ", ")
    bounds = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "more than {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "less than {lt}",
    }
    if item["type"] in bounds:
        return bounds[item["type"]].format(**context)
    return _EXPECTED.get(item["type"], str(item["msg"]).removeprefix("Value error, "))
