"""How many tokens an attention kernel calls a block: a divisor of the manager's block size."""

from __future__ import annotations

from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import Layout
from kvpipe.specs.base import KVCacheSpec


class KernelBlocks:
    """Tokens of a kernel block: as configured, or the largest supported divisor of the block."""

    def __init__(self, configured: int | None, any_size: bool) -> None:
        self.configured, self.any_size = configured, any_size

    def of(self, layer: str, spec: KVCacheSpec, layout: Layout, splittable: bool) -> int:
        block = spec.block_size
        if self.configured is not None:
            row = spec.page_arrays()[0].tokens_per_row
            self._check(layer, block, layout, splittable and not self.configured % row)
            return self.configured
        if self.any_size:
            return block
        row = spec.page_arrays()[0].tokens_per_row
        divisors = range(block, 0, -row) if splittable else (block,)
        fits = (n for n in divisors if not block % n and layout.supports_kernel_block(n))
        if (best := next(fits, None)) is None:
            whole = "" if splittable else " (its pages cannot be split: padded or interleaved)"
            raise ConfigError(
                Problem(
                    "cache.block_size",
                    f"{layout.kernel_block_choices()} tokens to divide it (layout={layout.name})",
                    f"{block} tokens in {layer}{whole}",
                    "change it, the layout, or device=cpu, which takes any",
                )
            )
        return best

    def _check(self, layer: str, block: int, layout: Layout, splittable: bool) -> None:
        size, wrong = self.configured or block, ""
        if block % size:
            wrong = f"{size}, which does not divide {block} of {layer}"
        elif not self.any_size and not layout.supports_kernel_block(size):
            wrong = f"{size}, but {layout.name} takes {layout.kernel_block_choices()}"
        elif size != block and not splittable:
            wrong = f"{size}, but pages of {layer} (block {block}) are padded or interleaved"
        if wrong:
            raise ConfigError(
                Problem(
                    "layout.kernel_block_size", "tokens that divide the block", wrong, "use auto"
                )
            )
