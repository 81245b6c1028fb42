"""How wide text may be: the terminal's width within bounds, 80 columns in a pipe."""

from __future__ import annotations

import shutil

WIDEST, NARROWEST = 100, 72  # columns: longer lines are hard to read, tables need the others


def terminal_width() -> int:
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))
