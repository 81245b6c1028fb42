"""pydantic without plugins of its own, which the command line has no use for.

pydantic reads the metadata of every installed package to find them: a tenth of a short run, with
what it imports to read it. PYDANTIC_DISABLE_PLUGINS says the same, but is looked at after that
import. So the module that asks is stood in for; a release of pydantic without it starts as before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ASKS = "pydantic.plugin._loader"


def without_plugins() -> None:
    """To be called before pydantic is used. A program that uses pydantic itself is not asked to:
    `import kvpipe` leaves its plugins alone."""
    stand_in: Any = ModuleType(_ASKS)
    stand_in.get_plugins = tuple
    sys.modules.setdefault(_ASKS, stand_in)
