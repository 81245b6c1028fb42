"""Settings in the words of the line that a user typed, so that advice can be put into it.

`kvpipe llama --on 8xh100 --context 32k` is told `--on 16xh100` and `--context 15536`; where Hydra's
words were used, or none, it is told those: `parallel.tensor_parallel_size=16`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

TP = "parallel.tensor_parallel_size"
RANKS = (TP, "parallel.pipeline_parallel_size", "parallel.data_parallel_size")


@dataclass(frozen=True, kw_only=True)
class Typed:
    """said: setting -> the word that said it (`--context`, `tp`, or the key itself). card: the
    device as it was typed, without a count; is_counted: whether it had one."""

    said: Mapping[str, str] = field(default_factory=dict)
    card: str = ""
    is_counted: bool = False

    def words(self, changes: Mapping[str, Any], ranks: Mapping[str, int]) -> str:
        """changes: settings by key. ranks: those of RANKS, as they are now."""
        after = {**ranks, **{key: changes[key] for key in RANKS if key in changes}}
        written, done = [], set()
        if self._counts(changes) or "device" in changes:
            cards = f"{prod(after.values())}x" if self._counts(changes) or self.is_counted else ""
            written.append(self._written("device", f"{cards}{changes.get('device', self.card)}"))
            done = {"device"} if TP in self.said else {"device", TP}
        written += [self._written(k, value) for k, value in changes.items() if k not in done]
        return " ".join(written)

    def override(self, composed: str) -> str:
        """`scheduler.max_model_len=8k` by the word that said it, as one word: `--context=8k`."""
        key, _, value = composed.partition("=")
        return f"{self.said.get(key, key)}={value}"

    def _counts(self, changes: Mapping[str, Any]) -> bool:
        """Whether the ranks are changed by saying how many cards there are."""
        if self.is_counted:
            return any(key in changes for key in RANKS)
        return TP in changes and TP not in self.said and self.said.get("device") == "--on"

    def _written(self, key: str, value: Any) -> str:
        word, shown = self.said.get(key, key), "null" if value is None else f"{value}"
        if not word.startswith("--"):
            return f"{word}={shown}"
        from shlex import quote

        return f"{word} {quote(shown)}"


PLAIN = Typed()
