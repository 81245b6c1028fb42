"""What fails -> the smallest part of it that still fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

TRIES = 500


def smallest(settings: Mapping[str, Any], fails: Callable[[Mapping[str, Any]], bool]) -> Any:
    """Settings are left out one by one, and numbers halved, as long as it still fails; in at most
    TRIES, so that what was found is said while somebody waits."""
    kept, tries = dict(settings), 0
    changed = True
    while changed:
        changed = False
        for key in list(kept):
            for smaller in _smaller(kept, key):
                tries += 1
                if tries > TRIES:
                    return kept
                if _still(fails, smaller):
                    kept, changed = smaller, True
                    break
    return kept


def shortest(words: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """The words of a command line, and then their characters, as few as still fail."""
    kept = list(words)
    for n in range(len(kept) - 1, -1, -1):
        if _still(fails, fewer := kept[:n] + kept[n + 1 :]):
            kept = fewer
    for n in range(len(kept)):
        before, after = kept[:n], kept[n + 1 :]
        kept[n] = fewest(kept[n], lambda word, b=before, a=after: fails([*b, word, *a]))
    return kept


def fewest(text: Any, fails: Callable[[Any], bool]) -> Any:
    """The characters of a text, or the bytes of a file, as few as still fail; in at most TRIES."""
    size, tries = max(1, len(text) // 2), 0
    while size:
        start = 0
        while start < len(text) and tries < TRIES:
            tries += 1
            shorter = text[:start] + text[start + size :]
            if _still(fails, shorter):
                text = shorter
            else:
                start += size
        size //= 2
    return text


def _smaller(kept: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    without = {name: value for name, value in kept.items() if name != key}
    value = kept[key]
    if isinstance(value, int) and not isinstance(value, bool) and value > 1:
        return [without, {**kept, key: value // 2}, {**kept, key: value - 1}]
    return [without]


def _still(fails: Callable[[Any], bool], candidate: Any) -> bool:
    try:
        return fails(candidate)
    except Exception:
        return True  # a crash is a failure, too
