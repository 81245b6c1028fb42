"""Whose tie_word_embeddings a class obeys: the file's, its text part's, one of them or neither.

    python tools/measure_ties.py [TYPE ...] [--out tests/facts/transformers_ties.json.gz]

Every tiny model of tests/facts is built on the meta device with the key set in each place, and the
parameters of the part that generates are counted. A dict of type -> [[of the file, of its text
part, parameters], ...], where null is a key that is not written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from measure_towers import text_key, whole_class
from measure_types import parameters_by_part
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FACTS = Path(__file__).parents[1] / "tests" / "facts"
OUT = FACTS / "transformers_ties.json.gz"
KEY = "tie_word_embeddings"
SAID = (None, True, False)


def tied(raw: dict[str, Any], part: str | None, whole: Any, text: Any) -> dict[str, Any]:
    """The file with the key in either place, where it is not None."""
    changed = raw if whole is None else {**raw, KEY: whole}
    return changed if text is None or part is None else {**changed, part: {**raw[part], KEY: text}}


def built(raw: dict[str, Any]) -> dict[str, int]:
    """Parameters by part of the class's model."""
    values = {key: value for key, value in deepcopy(raw).items() if key != "model_type"}
    config = CONFIG_MAPPING[raw["model_type"]](**values)
    if not hasattr(config, "pad_token_id"):  # some classes ask it of the whole, which has none
        config.pad_token_id = None
    with torch.device("meta"):
        model = whole_class(config)._from_config(config, attn_implementation="eager")
    model.tie_weights()
    return parameters_by_part(model)


def settings(raw: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    part = text_key(raw["model_type"])
    part = part if isinstance(raw.get(part or ""), dict) else None
    for whole in SAID:
        for text in SAID if part else (None,):
            yield whole, text, tied(raw, part, whole, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    records = json.loads(gzip.decompress((FACTS / "transformers_types.json.gz").read_bytes()))
    table = json.loads(gzip.decompress(args.out.read_bytes())) if args.out.exists() else {}
    for name in args.types or sorted(n for n, record in records.items() if "self" in record):
        try:
            found = [[w, t, built(raw)] for w, t, raw in settings(records[name]["sparse"])]
        except Exception as error:  # each class refuses in its own way
            print("  failed", name, type(error).__name__, str(error)[:100].replace("\n", " "))
            continue
        table[name] = found
        print(name, len(found), flush=True)
    text = json.dumps(dict(sorted(table.items())), separators=(",", ":"))
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(len(table), args.out.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
