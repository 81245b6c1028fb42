"""Writes docs/peers.md: the same models through other tools, and kvpipe's column made here.

Run: python tools/peers.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "peers.md"
sys.path.insert(0, str(ROOT))

from kvpipe.front.prepared import prepared_request  # noqa: E402
from kvpipe.pipeline import execute  # noqa: E402
from kvpipe.report.accounts import split_bytes  # noqa: E402

# What the exact values assume of states: SSM states in 16 bits, delta nets' in 32.
STATES = {"qwen3_next": ["cache.mamba_ssm_cache_dtype=float32"]}
# No token of the window's own bound but those it sees, as the exact values count.
SMALL_STEP = ["scheduler.max_num_batched_tokens=16"]


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def table() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "tools" / "peers.yaml").read_text("utf-8"))
    return read


def payload_bytes(preset: str, length: int) -> int:
    """Bytes of keys, values and states that one decoding request of `length` tokens needs."""
    asked = [f"model={preset}", "device=b200", "cache.kv_cache_memory_bytes=100GiB"]
    asked += [f"scheduler.max_model_len={length}", "scheduler.max_num_seqs=1", "backend=meta"]
    asked += [*SMALL_STEP, *STATES.get(preset, [])]
    result = execute(prepared_request(asked).prepared)
    (account,) = split_bytes(result.plan, result.profile, max_num_seqs=1)
    assert account.requests_steady == 1
    return account.steady["payload"]


def ratios() -> dict[str, float]:
    """kvpipe's column: its bytes over the exact ones."""
    return {
        name: payload_bytes(preset, length) / exact
        for name, (preset, length, exact, _) in table()["models"].items()
    }


def page() -> str:
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    measured = table()
    tools, ours = measured["tools"], ratios()
    yield "# Peers"
    yield ""
    yield "Made by `python tools/peers.py` from `tools/peers.yaml`; a test keeps it current."
    yield ""
    yield "KV bytes of one request as a multiple of the exact value: 16 bit cache, context 32,768"
    yield "(Whisper 448), no rounding to pages. 1.000 is exact; REF refuses or errors. Other tools"
    yield "were measured on 2026-11-29 (Python 3.11, no GPU), each with the published config.json."
    yield ""
    yield "| model | kvpipe | " + " | ".join(tools) + " |"
    yield "|---|---:|" + "---:|" * len(tools)
    for name, (_, _, _, theirs) in measured["models"].items():
        cells = " | ".join(_cell(value) for value in theirs)
        yield f"| {name} | {ours[name]:.3f} | {cells} |"
    yield ""
    yield "| | kvpipe | " + " | ".join(tools) + " |"
    yield "|---|---:|" + "---:|" * len(tools)
    models = measured["models"].values()
    right = [sum(_is_right(row[3][i]) for row in models) for i in range(len(tools))]
    refused = [sum(row[3][i] in ("REF", "-") for row in models) for i in range(len(tools))]
    wrong = [len(models) - a - b for a, b in zip(right, refused, strict=True)]
    mine = sum(_is_right(value) for value in ours.values())
    yield f"| right | {mine} | " + " | ".join(map(str, right)) + " |"
    yield f"| silently wrong | {len(ours) - mine} | " + " | ".join(map(str, wrong)) + " |"
    yield "| refused or not run | 0 | " + " | ".join(map(str, refused)) + " |"
    yield (
        "| seconds of one estimate | see benchmarks | "
        + " | ".join(f"{seconds:.2f}" for seconds in measured["seconds"])
        + " |"
    )
    yield ""
    yield from _fleets(measured["fleets"])


def _fleets(rows: dict[str, Any]) -> Iterator[str]:
    yield "## Fleets"
    yield ""
    yield "What `python benchmarks/fleet.py PEERS` printed, in one run, on two cores that others"
    yield "used, too. A candidate is another thing to each, so the last column says what was made:"
    yield "ridgepoint's is a formula in Rust, kvpipe's a plan to the block. Vidur, which replays,"
    yield "was not run: its wheel has no profile of a card."
    yield ""
    yield "| program | made | CPU s | a second of CPU | of what |"
    yield "|---|---:|---:|---:|---|"
    for name, (made, seconds, what) in rows.items():
        yield f"| {name} | {made:,} | {seconds:.2f} | {made / seconds:,.0f} | {what} |"
    yield ""


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _is_right(value: float | str) -> bool:
    return not isinstance(value, str) and round(value, 3) == 1.0


if __name__ == "__main__":
    main()
