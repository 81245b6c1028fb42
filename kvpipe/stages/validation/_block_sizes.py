"""Block sizes: which ones a user may set, and which ones attention layers need beside states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from kvpipe.engines.base import EngineRules
from kvpipe.engines.defaults import (
    block_size_on_a_cpu,
    kernel_block_on_a_cpu,
    state_block_takes_kernel_block,
    window_takes_kernel_block,
)
from kvpipe.errors import ConfigError, Problem, SpecError
from kvpipe.layouts.base import Layout, LayoutChoice
from kvpipe.models.base import CacheGeometry
from kvpipe.notes import Note
from kvpipe.request.config import CacheConfig
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.validation.layers import (
    Layer,
    map_attention,
    map_states,
    padded_to,
    with_block_size,
)
from kvpipe.stages.validation.state_blocks import share_pool

DEFAULT_BLOCK_SIZE = 16
COMPRESSED_BLOCK_SIZE = 256  # the only one of vLLM's kernels for rows that stand for many tokens
LATENT_BLOCK_SIZE = 64  # vLLM's platforms/cuda.py: FlashMLA's, wherever nobody sets another


def default_block_size(
    rules: EngineRules, device_type: str, caches: Collection[CacheGeometry]
) -> int:
    """Tokens of a block if nobody sets it, for a model with these caches."""
    if any("tokens_per_state" in cache.fields for cache in caches):
        return COMPRESSED_BLOCK_SIZE
    kinds = {cache.spec for cache in caches}
    if device_type == "cpu" and rules.version:
        return block_size_on_a_cpu(rules.version, kinds)
    if device_type == "cuda" and rules.version and "mla" in kinds and "mamba" not in kinds:
        return LATENT_BLOCK_SIZE
    return DEFAULT_BLOCK_SIZE


# Tokens the state kernels take at once, where neither the model's file nor the user says: that of
# every Mamba-2 model with a published figure that kvpipe knows.
STATE_CHUNK_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """default: tokens, where none are set. kernel_block: tokens that a device's kernel of attention
    takes at least, where that is known."""

    cache: CacheConfig
    rules: EngineRules
    layout: LayoutChoice
    default: int = DEFAULT_BLOCK_SIZE
    kernel_block: int | None = None

    @property
    def asked(self) -> int | None:
        """Tokens, where the user set them."""
        return None if self.cache.block_size == "auto" else self.cache.block_size

    def check_rows(self, caches: Collection[CacheGeometry]) -> None:
        """A block holds whole rows, where a row stands for several tokens."""
        tokens = lcm(*(cache.whole("tokens_per_state", 1) for cache in caches))
        compressed = any("tokens_per_state" in cache.fields for cache in caches)
        if compressed and self.rules.version and self.asked not in (None, COMPRESSED_BLOCK_SIZE):
            expected = (
                f"{COMPRESSED_BLOCK_SIZE} tokens, the only block of vLLM's kernels for such rows"
            )
            raise ConfigError(Problem("cache.block_size", expected, f"{self.asked} tokens"))
        if self.asked and self.asked % tokens:
            expected = f"a multiple of the {tokens} tokens that one row of this model stands for"
            got, knob = f"{self.asked} tokens", f"auto is {self.default}"
            raise ConfigError(Problem("cache.block_size", expected, got, knob))

    def check(self, attention: Sequence[KVCacheSpec]) -> None:
        """What a user may set for attention layers on a GPU; derived sizes are exempt."""
        asked, legal = self.asked, self.rules.cuda_block_sizes
        if asked is None or asked in legal:
            return
        if legal:
            expected = f"one of {', '.join(map(str, legal))} tokens on CUDA"
            expected += f" under engine={self.rules.name}"
            raise ConfigError(Problem("cache.block_size", expected, f"{asked} tokens"))
        multiple = self._multiple(attention, lambda layout: layout.kernel_block_multiple)
        if asked % multiple:
            raise ConfigError(
                Problem(
                    "cache.block_size",
                    f"a multiple of {multiple} tokens, the kernel block of the layout",
                    f"{asked} tokens",
                    f"nearest: {max(1, round(asked / multiple)) * multiple}",
                )
            )

    def on_a_cpu(self, layers: list[Layer]) -> list[Layer]:
        """The layers at the blocks that vLLM's kernel runs there: windows choose their own, by the
        release the kernel's or the largest that the asked one holds. ConfigError where a layer's
        block is asked for and, once pages are alike, is none of the kernel's."""
        rows = [spec for _, spec in layers if not (spec.is_state or spec.is_latent)]
        has_states = any(spec.is_state for _, spec in layers)  # their pages decide there
        version, asked = self.rules.version, self.asked
        if not version or not rows or has_states:
            return layers
        own = step = kernel_block_on_a_cpu(version)
        if any(spec.is_latent for _, spec in layers) and self.default % step:
            expected = f"an accelerator: on a CPU vLLM {version} has no block for latent rows "
            expected += f"({self.default} tokens) that attention beside them takes ({step})"
            raise ConfigError(Problem("device", expected, "cpu", "choose device=h100_80gb"))
        if not window_takes_kernel_block(version):
            if asked is None:
                return layers
            own = max(step, asked // step * step)
        chosen = map_attention(
            layers, lambda spec: with_block_size(spec, own) if spec.is_plain_window else spec
        )
        if asked is not None:
            self._check_on_a_cpu([spec for _, spec in chosen if not spec.is_latent], step)
        return chosen

    def _check_on_a_cpu(self, rows: Sequence[KVCacheSpec], step: int) -> None:
        """Smaller pages become as large as the largest by more tokens a block."""
        widest, asked = max(spec.page_size_bytes for spec in rows), self.asked or 0
        if any(spec.block_size * (widest // spec.page_size_bytes) % step for spec in rows):
            raise self._no_kernel_block(step, asked)

    def _no_kernel_block(self, step: int, asked: int) -> ConfigError:
        expected = f"a multiple of {step} tokens, the kernel's block on a CPU"
        expected += f" in vLLM {self.rules.version}"
        nearest = f"nearest: {max(1, round(asked / step)) * step}"
        return ConfigError(Problem("cache.block_size", expected, f"{asked} tokens", nearest))

    def beside_states(
        self, layers: list[Layer], chunk_size: int | None
    ) -> tuple[list[Layer], list[Note]]:
        """The layers with the blocks and padded pages that sharing a pool with states asks for.

        chunk_size: tokens the model's state kernels take at once, where its file says.
        """
        states = [spec for _, spec in layers if spec.is_state]
        attention = [spec for _, spec in layers if not spec.is_state]
        padded, notes = self.cache.mamba_page_size_padded, list[Note]()
        if states and attention:
            step = self._kernel_step(attention)
            rounds = step > 1 and state_block_takes_kernel_block(self.rules.version)
            pool = share_pool(
                attention,
                states,
                asked=self.asked,
                default=self.default,
                alignment=self._alignment(attention),
                mode=self._state_mode(),
                chunk_size=self.cache.mamba_block_size or chunk_size or STATE_CHUNK_SIZE,
                kernel_block=step if rounds else 1,
            )
            if pool.block_size % step:
                raise self._no_kernel_block(step, pool.block_size)
            if pool.derived and self.rules.groups == "equal":  # slots have blocks of their own
                text = f"block_size is {pool.block_size} tokens, so that an attention page"
                text += f" holds a state of {pool.state_bytes:,} bytes"
                notes.append(Note(text=text, knob="cache.mamba_ssm_cache_dtype"))
            layers = map_attention(layers, lambda spec: with_block_size(spec, pool.block_size))
            if (size := pool.state_block_size) is not None:
                layers = map_states(layers, lambda spec: with_block_size(spec, size))
                notes += self._unread(size)
            padded = padded or pool.page_size_bytes
        try:
            return map_states(layers, lambda spec: padded_to(spec, padded)), notes
        except SpecError as error:
            key, knob = "cache.mamba_page_size_padded", "leave it null for no padding"
            raise ConfigError(Problem(key, error.expected, error.got, knob)) from None

    def _kernel_step(self, attention: Sequence[KVCacheSpec]) -> int:
        """Tokens that their blocks must be multiples of; of latent rows another kernel's."""
        return 1 if all(spec.is_latent for spec in attention) else self.kernel_block or 1

    def _unread(self, size: int) -> list[Note]:
        """A block size of states that the mode overrules."""
        said = self.cache.mamba_block_size
        if said is None or said == size or self._state_mode() != "align":
            return []
        text = f"cache.mamba_block_size={said:,} is not read: in mode align states are kept at the "
        text += f"blocks' own boundaries, of {size:,} tokens"
        return [Note(text=text, knob="cache.mamba_cache_mode", is_warning=True)]

    def quantum(self, specs: Iterable[KVCacheSpec]) -> int | None:
        """Tokens that a block is a multiple of where `beside_states` made it hold a state; None
        where it did not, or where pages are padded by hand and stay as they are."""
        kinds = {spec.is_state for spec in specs}
        if len(kinds) < 2 or self.cache.mamba_page_size_padded is not None:
            return None
        return self.asked or self.default

    def _multiple(self, attention: Sequence[KVCacheSpec], tokens: Callable[[Layout], int]) -> int:
        """What every attention layer's layout asks for, together."""
        layouts = self.layout.candidates()
        return lcm(*(next((tokens(y) for y in layouts if not y.refuses(s)), 1) for s in attention))

    def _alignment(self, attention: Sequence[KVCacheSpec]) -> int:
        """Tokens a block is a multiple of where attention shares its pages with states."""
        of_layouts = self._multiple(attention, lambda layout: layout.state_alignment)
        if self.rules.state_alignment == "set_block_size":
            return max(of_layouts, self.asked or self.default)
        return of_layouts

    def _state_mode(self) -> str:
        """The cache mode of states, as the engine reads it."""
        mode = self.cache.mamba_cache_mode
        return "none" if mode == "all" and self.rules.mamba_mode_all == "as_none" else mode
