"""Reading a model file's geometry: `{num_kv_heads: 8, head_size: 128}` -> checked numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvpipe.errors import SpecError, did_you_mean
from kvpipe.specs.base import DTYPE_BYTES


def check_fields(
    kind: str, geometry: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """SpecError naming the first missing or unknown field of a cache of that kind."""
    needed = tuple(required)
    known = {*needed, *optional}
    if not isinstance(geometry, Mapping):
        raise SpecError(f"{kind}: fields {', '.join(needed)}", got=f"{geometry!r}")
    for name in map(str, geometry):
        if name not in known:
            raise SpecError(f"{kind}: unknown field '{name}'; {did_you_mean(name, known)}")
    for name in needed:
        if geometry.get(name) is None:
            raise SpecError(f"{kind}: missing field '{name}'; needs {', '.join(needed)}")


def listed(kind: str, geometry: Mapping[str, Any], name: str, at_most: int) -> Sequence[Any]:
    """A list of a geometry, of 1 to `at_most` entries; SpecError otherwise."""
    value = geometry[name]
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SpecError(f"{kind}: {name} must be a list", got=f"{value!r}")
    if not 1 <= len(value) <= at_most:
        raise SpecError(f"{kind}: {name} must have 1 to {at_most} entries", got=f"{len(value)}")
    return value


def count(kind: str, geometry: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive whole number of a geometry; SpecError with what was found otherwise."""
    value = geometry.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{kind}: {name} must be a whole number of at least 1", got=f"{value!r}")
    if value >= 2**31:
        raise SpecError(f"{kind}: {name} must be less than 2,147,483,648", got=f"{value}")
    return value


def dtype_of(kind: str, geometry: Mapping[str, Any], default: str) -> str:
    """The cache's own storage dtype where its geometry names one, else the run's."""
    value = geometry.get("dtype") or default
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise SpecError(f"{kind}: dtype must be one of {', '.join(DTYPE_BYTES)}", got=f"{value!r}")
    return value


def option(kind: str, options: Mapping[str, Any], name: str) -> int:
    """An option that `attention=<kind>` needs; SpecError naming its config key otherwise."""
    value = options.get(name)
    if value is None:
        raise SpecError(f"attention={kind} needs {name}, in tokens")
    return count(f"attention={kind}", options, name)
