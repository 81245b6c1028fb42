"""Plain values -> JSON that every reader takes: RFC 8259 has neither NaN nor infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def strict_json(document: Mapping[str, Any], indent: int | None = None) -> str:
    """With a final newline. A NaN or an infinity is our mistake and raises."""
    return json.dumps(document, indent=indent, allow_nan=False) + "\n"


def plain_settings(value: Any) -> Any:
    """Settings as they were composed, with numbers that JSON lacks as YAML writes them: ".inf"."""
    if isinstance(value, Mapping):
        return {key: plain_settings(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_settings(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    return value
