"""attention=<kind>, or the window that cache.sliding_window asks for by itself."""

from __future__ import annotations

from kvpipe.errors import ConfigError, Problem
from kvpipe.plugins import SPECS
from kvpipe.request.config import RunConfig
from kvpipe.stages.validation.layers import WhatIf

NATIVE = "native"  # attention=native: the layers as published
WINDOWED = "sliding"  # the attention choice that cache.sliding_window makes by itself


def asked_what_if(config: RunConfig) -> WhatIf | None:
    """None: the layers as published. ConfigError where kind and window contradict each other."""
    attention, window = config.attention, config.cache.sliding_window
    own = {"sliding_window": window}
    if attention.spec == NATIVE:
        asked = WhatIf(spec=WINDOWED, options=own, key="cache.sliding_window")
        return asked if window else None
    takes_it = attention.spec in SPECS and SPECS.get(attention.spec).reads_cache_window
    if takes_it and window is None:
        raise ConfigError(
            Problem(
                "cache.sliding_window",
                f"a window in tokens, since attention={attention.spec}",
                "null",
                "set cache.sliding_window=4096",
            )
        )
    if window is not None and not takes_it:
        raise ConfigError(
            Problem(
                "cache.sliding_window",
                f"null, since attention={attention.spec}",
                f"{window} tokens",
                "leave one of the two out",
            )
        )
    return WhatIf(spec=attention.spec, options=attention.options, key="attention.options")
