#!/usr/bin/env python
"""The text that a running vLLM printed, given to `kvpipe doctor` as it is: no setting beside it.

python tools/live/logs.py vllm-0.32.0 [WORDS OF A CASE]      # of the answers kept by matrix.py

Every figure that the engine printed must be reproduced. Exit 1: some log is not explained.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kvpipe.commands.base import Command  # noqa: E402
from kvpipe.errors import KvpipeError  # noqa: E402
from kvpipe.front.prepared import prepared_request  # noqa: E402
from kvpipe.front.words import words_to_overrides  # noqa: E402
from tools.live.cases import cases  # noqa: E402
from tools.live.matrix import answers_kept  # noqa: E402
from tools.live.models import MODELS  # noqa: E402

REPRODUCED = "printed and reproduced by the rules of vllm"
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")


def explained(path: Path, also: str = "") -> str:
    """ "" or why the log is not: `kvpipe doctor FILE`, in this process. also: words that must be
    said, too."""
    try:
        prepared = prepared_request(words_to_overrides(["doctor", str(path)])).prepared
        command = prepared.config.plugins["command"].make(Command)
        text = " ".join(line.text.strip() for line in command.run(prepared, None).lines(10_000))
    except KvpipeError as error:
        return error.lines()[0]
    if REPRODUCED not in text or also not in text:
        return f"not reproduced: {text[:200]}"
    return ""


def of_answers(answers: dict[str, Any], only: str) -> Iterator[tuple[str, str]]:
    """(case, "" or why its log is not explained), of those that printed their capacity."""
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        for case in cases():
            log = answers.get(case.name, {}).get("log", "")
            if only not in case.name or not _TOKENS.search(log):
                continue
            folder = MODELS[case.model.name].write(Path(scratch))
            MODELS[case.model.name].write_draft(Path(scratch))
            path = Path(scratch) / "engine.log"
            # The model's folder is gone since: it is named where it is now.
            path.write_text(re.sub(rf"/\S*?/{case.model.name}(?=(-draft)?['\s])", str(folder), log))
            yield case.name, explained(path)


def main(argv: Sequence[str]) -> int:
    if not argv:
        print("engine: expected one such as vllm-0.32.0, got none")
        return 2
    found = list(of_answers(answers_kept(argv[0]), " ".join(argv[1:])))
    for name, why in found:
        if why:
            print(f"{name}: {why}")
    good = sum(not why for _, why in found)
    print(f"{argv[0]}: {good} of {len(found)} logs explained without a setting")
    return 0 if good == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
