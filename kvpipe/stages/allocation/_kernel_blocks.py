"""How many tokens an attention kernel calls a block: a divisor of the manager's block size."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import Layout, kernel_page_bytes
from kvpipe.specs.base import KVCacheSpec


@dataclass(frozen=True)
class KernelBlocks:
    """Tokens of a kernel block: as configured, or the largest supported divisor of the block.
    apart: blocks of neighbouring pages may lie apart."""

    configured: int | None
    any_size: bool
    apart: bool = True

    def of(self, layer: str, spec: KVCacheSpec, layout: Layout, stride: int | None) -> int:
        """stride: bytes from one page to the next, which a kernel block has to divide where a page
        is split (None: pages lie side by side, any divisor does; 0: no page can be split)."""
        block = spec.block_size
        if stride is not None and not self.apart:
            stride = 0
        if self.configured is not None:
            splittable = _may_split(spec, self.configured, stride)
            self._check(layer, block, layout, splittable)
            return self.configured
        if self.any_size:
            return block
        divisors = (n for n in range(block, 0, -1) if not block % n)
        fits = (
            n
            for n in divisors
            if layout.supports_kernel_block(n) and (n == block or _may_split(spec, n, stride))
        )
        if (best := next(fits, None)) is None:
            whole = "" if stride is None else " (its pages cannot be split: padded or interleaved)"
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


def _may_split(spec: KVCacheSpec, size: int, stride: int | None) -> bool:
    """Whether blocks of so many tokens are whole rows, and as many of them as one likes reach from
    one page to the next."""
    if size % spec.page_arrays()[0].tokens_per_row:
        return False
    return stride is None or (stride > 0 and not stride % kernel_page_bytes(spec, size))
