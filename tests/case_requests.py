"""Requests over the models of the cases, which lie beside the shipped ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Prepared
from kvpipe.request.confdir import CONF_DIR

CONF = Path(__file__).parent / "cases" / "conf"


def _models(folder: Path) -> set[str]:
    return {f"model={path.stem}" for path in (folder / "model").glob("*.yaml")}


OF_THE_CASES = _models(CONF) - _models(CONF_DIR)


def prepared_case(words: Sequence[str]) -> Prepared:
    """The cases' folder is searched where a word names one of its models: others compose faster."""
    needed = OF_THE_CASES.intersection(words)
    return prepared_request(words, config_dir=str(CONF) if needed else None).prepared
