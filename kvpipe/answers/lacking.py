"""Fewer users than were asked for, in words: the same for every command."""

from __future__ import annotations

from kvpipe.text.figures import count


def fewer_users(asked: int, running: int, length: int, whose: str = "", more: str = "") -> str:
    """asked, running: requests of length tokens at once, on all copies. whose: ` under vllm`. more:
    what is to be said of it."""
    were = "was" if asked == 1 else "were"
    run = "runs" if running == 1 else "run"
    line = (
        f"want.requests: {count(asked, 'request')} of {count(length, 'token')} at once {were} "
        f"asked for, {running:,} {run}{whose}"
    )
    return line + more


def not_one(length: int, cannot: str) -> str:
    """cannot: what a request of length tokens does not do, and where."""
    return f"scheduler.max_model_len: not one request of {count(length, 'token')} {cannot}"
