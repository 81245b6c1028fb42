"""What a line that starts a server calls the model."""

from __future__ import annotations

from pathlib import Path

from kvpipe.pipeline import Prepared

CONFIG = "config.json"


def served_name(prepared: Prepared) -> str:
    """A model read from a path is served from it: its name alone would be looked for on the Hub.
    Servers take the folder of a config.json, not the file."""
    path = getattr(prepared.config.plugins["model"].options, "path", None)
    if not path:
        return prepared.resolved.model.name
    file = Path(path)
    if file.name != CONFIG or file.is_dir():
        return str(path)
    folder = str(file.parent)
    # A bare word may be a name on the Hub.
    return folder if folder.startswith((".", "/", "~")) else f"./{folder}"
