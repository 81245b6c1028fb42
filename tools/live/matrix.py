#!/usr/bin/env python
"""Real engines against kvpipe: every case through both, and docs/live.md with what differed.

python tools/live/matrix.py vllm-0.32.0 [--only gemma3] [--answers FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.cases import Case, cases  # noqa: E402
from tools.live.compare import differences  # noqa: E402
from tools.live.engines import ask  # noqa: E402
from tools.live.environments import ENVIRONMENTS, missing  # noqa: E402
from tools.live.said import said  # noqa: E402

Json = dict[str, Any]
ALWAYS = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True}


def question(case: Case, folder: Path, draft: Path | None, memories: Sequence[int]) -> Json:
    """What the engine is asked: the same settings in its own words."""
    arguments = {
        **ALWAYS,
        "model": str(folder),
        "kv_cache_memory_bytes": case.memory_bytes,
        **case.arguments,
    }
    if draft is not None:
        arguments["speculative_config"] = {**arguments["speculative_config"], "model": str(draft)}
    return {"name": case.name, "arguments": arguments, "memories": memories, "usage": "server"}


def run(name: str, only: str) -> list[Json]:
    """One record a case: what kvpipe said, what the engine did, and where they differ."""
    environment, version = ENVIRONMENTS[name], name.removeprefix("vllm-")
    chosen = [case for case in cases() if only in case.name]
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        folders = {case.model.name: case.model.write(Path(scratch)) for case in chosen}
        drafts = {case.model.name: case.model.write_draft(Path(scratch)) for case in chosen}
        ours = {case.name: said(case, folders[case.model.name], version) for case in chosen}
        theirs: dict[str, Json] = {}
        for processes in sorted({case.setting.processes for case in chosen}):
            asked = [
                question(
                    case,
                    folders[case.model.name],
                    drafts[case.model.name],
                    ours[case.name]["memories"],
                )
                for case in chosen
                if case.setting.processes == processes
            ]
            theirs |= ask(environment, asked, processes)
    return [
        {
            "case": case.name,
            "kind": case.model.kind,
            "kvpipe": ours[case.name],
            "engine": theirs[case.name],
            "differences": differences(ours[case.name], theirs[case.name]),
        }
        for case in chosen
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("engines", nargs="+", choices=[n for n in ENVIRONMENTS if "vllm" in n])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--answers", type=Path, help="a folder to keep every answer in")
    asked = parser.parse_args(argv)
    if command := missing(asked.engines):
        print(f"make the environment first: {command}")
        return 2
    for name in asked.engines:
        records = run(name, asked.only)
        if asked.answers:
            asked.answers.mkdir(parents=True, exist_ok=True)
            (asked.answers / f"{name}.json").write_text(json.dumps(records, indent=1))
        for record in records:
            print(f"{name}: {record['case']}: {'; '.join(record['differences']) or 'equal'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
