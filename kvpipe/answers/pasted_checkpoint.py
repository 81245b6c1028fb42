"""Whether a pasted `--quantization` can read the checkpoint that its line names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpipe.engines.pasted import Pasted
from kvpipe.engines.pasted_weights import is_of_kind, kind_needed
from kvpipe.errors import ConfigError
from kvpipe.pipeline import prepare
from kvpipe.request.confdir import shipped_option


def unmet_word(raw: Mapping[str, Any], command: Pasted | None) -> str:
    """The word of a line whose checkpoint is of another kind than the word needs, by its name and
    its config; "" where it is of that kind. raw: the request of the model that the line names."""
    name = (command.model if command is not None else None) or ""
    word = str(command.settings.get("weights", "")) if command is not None else ""
    if not kind_needed(word):
        return ""
    try:
        model = prepare({**raw, "weights": shipped_option("weights", "published")}).resolved.model
    except ConfigError:  # told by whoever plans it
        return ""
    return "" if is_of_kind(word, name, model.quantized_with) else word
