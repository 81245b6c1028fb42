"""What a cache stores, as an engine's rules see it: nobody compares names of kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stores:
    """What an engine's rules tell caches apart by. latent: compressed rows instead of K and V.
    every_token: each token stays until its request ends."""

    latent: bool = False
    every_token: bool = False

    def __str__(self) -> str:
        rows = "latent rows" if self.latent else "K and V"
        return f"{rows} of every token" if self.every_token else rows
