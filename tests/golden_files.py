"""Reading the golden cases: from the compressed copy, or from `pytest --golden-dir DIR`."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"


@cache
def golden_cases(folder: str, name: str) -> list[dict[str, Any]]:
    """The cases of `name`.json or `name`.json.gz, read once a session."""
    plain = Path(folder) / f"{name}.json"
    packed = Path(folder) / f"{name}.json.gz"
    text = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return cases
