"""Full attention: every token of the request stays (Vaswani et al., arXiv:1706.03762).

The tutorial of this folder: a spec is a frozen dataclass, a `kind`, the answers in which it differs
from its base (none here), and `PLUGIN`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpipe.specs._attention import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """K and V of every token, H heads of D (V may be narrower)."""

    kind: ClassVar[str] = "full"


PLUGIN = FullAttentionSpec
