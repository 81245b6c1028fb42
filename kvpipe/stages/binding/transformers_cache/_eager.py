"""What a compiled model leaves its graph for: the block manager is Python on the host."""

from __future__ import annotations

from typing import Any

import torch.compiler

# As Any: torch does not type it.
eager: Any = torch.compiler.disable
