#!/usr/bin/env python
"""Kept answers of the engines that are planned only -> tests/facts/live_answers.json.gz.

python tools/live/record.py        # after `python tools/live/matrix.py transformers llama-cpp`
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.matrix import answers_kept  # noqa: E402
from tools.live.planned_matrix import PLANNED  # noqa: E402

RECORDED = ROOT / "tests" / "facts" / "live_answers.json.gz"


def main() -> int:
    found = {name: answers for name in PLANNED if (answers := answers_kept(name))}
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))
    print("; ".join(f"{len(answers)} of {name}" for name, answers in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
