"""Fixed-size states: Mamba 1 (arXiv:2312.00752) and 2 (arXiv:2405.21060), gated delta nets, short
convolutions. A page is all states of one layer at one point of the request, whatever block_size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError, did_you_mean
from kvpipe.specs._geometry import check_fields, count, dtype_of, listed
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec, PageArray, RequestLimits, SpecContext, cdiv
from kvpipe.specs.rhythm import CONSTANT, Rhythm, rhythm
from kvpipe.specs.runs import Runs, joined, num_indices

MOST_AXES, MOST_STATES = 8, 64
MODES = ("none", "align", "all")


@dataclass(frozen=True, kw_only=True)
class StateArray:
    """One state: name ("conv", "ssm", ...), shape and storage dtype. The first dimension is the one
    that tensor parallelism splits.

    Of its rows, `group_rows` belong to `num_groups` groups (B and C of Mamba 2: 2 * groups *
    d_state rows of the convolution), which are replicated when there are more ranks than groups.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    group_rows: int = 0
    num_groups: int = 0

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise SpecError(f"state {self.name}: shape must be positive", got=f"{list(self.shape)}")
        if self.dtype not in DTYPE_BYTES:
            raise SpecError(f"state {self.name}: unknown dtype '{self.dtype}'")
        if bool(self.group_rows) != bool(self.num_groups) or self.group_rows > self.shape[0]:
            raise SpecError(f"state {self.name}: group_rows and num_groups go together")

    def shard(self, tp: int) -> StateArray:
        rows, groups = self.shape[0] - self.group_rows, self.num_groups or tp
        if rows % tp or (groups % tp and tp % groups):
            legal = ", ".join(map(str, self._legal_tps()))
            groups_too = f" and {self.num_groups} groups" if self.num_groups else ""
            why = f"state {self.name}: {rows} rows{groups_too} are split"
            raise SpecError(f"one of {legal} ({why})", got=f"{tp}", why=why)
        kept = max(1, groups // tp)
        group_rows = self.group_rows // groups * kept
        return replace(
            self,
            shape=(rows // tp + group_rows, *self.shape[1:]),
            group_rows=group_rows,
            num_groups=kept if self.num_groups else 0,
        )

    def _legal_tps(self) -> list[int]:
        rows, groups = self.shape[0] - self.group_rows, self.num_groups
        return [
            n
            for n in range(1, 129)
            if not rows % n and (not groups or not groups % n or not n % groups)
        ]

    @classmethod
    def from_geometry(cls, fields: Mapping[str, Any], context: SpecContext) -> StateArray:
        """{name: conv, shape: [8192, 3]}; dtype defaults to the run's conv or SSM state dtype."""
        check_fields("state", fields, ("name", "shape"), ("dtype",))
        name = str(fields["name"])
        default = context.conv_dtype if name.startswith("conv") else context.ssm_dtype
        sizes = listed("state", fields, "shape", at_most=MOST_AXES)
        shape = tuple(count("state", {"shape": size}, "shape") for size in sizes)
        return cls(name=name, shape=shape, dtype=dtype_of("state", fields, default))


def with_drafts(states: tuple[StateArray, ...], num_tokens: int) -> tuple[StateArray, ...]:
    """Drafted tokens are convolved before they are accepted: a column more for each (vLLM:
    model_executor/layers/mamba/mamba_utils.py; Mamba 1 keeps its own)."""
    return tuple(
        replace(state, shape=(*state.shape[:-1], state.shape[-1] + num_tokens))
        if state.name.startswith("conv")
        else state
        for state in states
    )


def with_groups(states: tuple[StateArray, ...], num_groups: int) -> tuple[StateArray, ...]:
    """Mamba 2: the rows of the convolution (first state) beyond the heads * head_size channels of
    the SSM state (last state) are B and C of num_groups groups."""
    conv, ssm = states[0], states[-1]
    group_rows = conv.shape[0] - prod(ssm.shape[:2])
    if len(states) < 2 or group_rows < 1 or group_rows % num_groups:
        raise SpecError(
            f"mamba: {num_groups} groups do not fit {conv.shape[0]} convolution channels and "
            f"{prod(ssm.shape[:2])} channels of heads"
        )
    return (replace(conv, group_rows=group_rows, num_groups=num_groups), *states[1:])


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """states: the arrays of one page. block_size: tokens between two states that may be kept.

    What an engine reserves follows its mode (limits.mamba_cache_mode): none: one running state;
    align: also the state at the last block boundary; all: one at every boundary. Plus a state for
    each speculative token (none and align). What a request holds (`resident`) is less: a step reads
    the state of the last token only.
    """

    kind: ClassVar[str] = "mamba"
    is_state: ClassVar[bool] = True

    states: tuple[StateArray, ...]
    mamba_type: str = "mamba1"
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0
    num_prefill_checkpoint_blocks: int = 0

    def __post_init__(self) -> None:
        if not self.states:
            raise SpecError("a state cache needs at least one state")
        if self.mamba_cache_mode not in MODES:
            hint = did_you_mean(self.mamba_cache_mode, MODES)
            raise SpecError(f"unknown mamba_cache_mode '{self.mamba_cache_mode}'; {hint}")
        super().__post_init__()

    @classmethod
    def from_geometry(cls, geometry: Mapping[str, Any], context: SpecContext) -> Self:
        """{states: [{name: conv, shape: [10240, 3]}, {name: ssm, shape: [128, 64, 128]}],
        mamba_type: mamba2, num_groups: 8}: shapes of the whole model, num_groups for Mamba 2 only.
        """
        check_fields(cls.kind, geometry, ("states",), ("mamba_type", "num_groups"))
        described = listed(cls.kind, geometry, "states", at_most=MOST_STATES)
        states = tuple(StateArray.from_geometry(fields, context) for fields in described)
        if geometry.get("mamba_type", "mamba1") != "mamba1":
            states = with_drafts(states, context.num_speculative_blocks)
        if geometry.get("num_groups") is not None:
            states = with_groups(states, count(cls.kind, geometry, "num_groups"))
        return cls(
            block_size=context.mamba_block_size or context.max_model_len,
            page_size_padded=context.mamba_page_size_padded,
            states=states,
            mamba_type=str(geometry.get("mamba_type", "mamba1")),
            mamba_cache_mode=context.mamba_cache_mode,
            num_speculative_blocks=context.num_speculative_blocks,
            num_prefill_checkpoint_blocks=(
                context.mamba2_checkpoint_blocks if geometry.get("mamba_type") == "mamba2" else 0
            ),
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        states = (StateArray(name="ssm", shape=(4, 2), dtype="float32"),)
        sizes = ((3, 0), (4, 2), (16, 1))
        return [cls(block_size=b, states=states, num_speculative_blocks=s) for b, s in sizes]

    def visible(self, query: int, limits: RequestLimits) -> Runs:
        """The state after the token before it: which lies in block 0, where only one runs."""
        if limits.mamba_cache_mode == "none":
            return joined(range(min(1, query)))
        return joined(range(max(0, query - 1), query))

    def page_arrays(self) -> tuple[PageArray, ...]:
        return tuple(
            PageArray(name=s.name, dtype=s.dtype, per_token=False, shape=s.shape)
            for s in self.states
        )

    def with_block_size(self, block_size: int) -> Self:
        """The page of a state does not depend on its block size, and keeps its padding."""
        return replace(self, block_size=block_size)

    def shard(self, tp: int) -> Self:
        return replace(self, states=tuple(state.shard(tp) for state in self.states))

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("mamba", self.num_speculative_blocks)

    def max_blocks(self, limits: RequestLimits) -> int:
        if limits.mamba_cache_mode == "all":
            return cdiv(limits.max_model_len, self.block_size)
        is_aligned = limits.mamba_cache_mode == "align"
        boundary = 1 + self.num_prefill_checkpoint_blocks if is_aligned else 0
        return 1 + boundary + self.num_speculative_blocks

    def peak_blocks(self, limits: RequestLimits) -> int:
        """none: the engine's bound. Else the state that a step starts from, in the block before
        those it writes, unless the request ends in its first block."""
        if limits.mamba_cache_mode == "none":
            return self.max_blocks(limits)
        beyond = max(0, limits.max_model_len - self.block_size)
        if limits.mamba_cache_mode == "all":
            return 1 + cdiv(min(limits.tokens_in_flight, beyond), self.block_size)
        return 1 + min(1, beyond) + self.num_speculative_blocks

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return num_indices(self.resident(num_tokens - 1, 1, limits)) if num_tokens else 0

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        """The step that passes a boundary holds the states on both sides of it."""
        if limits.mamba_cache_mode == "all":
            return min(2, self.max_blocks(limits)), 0.0
        return self.peak_blocks(limits), 0.0

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm:
        """none: one state. Else the states on both sides of a boundary, in the step that passes it;
        at the peak those of all boundaries that the tokens in flight pass (all), or one more."""
        size = self.block_size
        if limits.mamba_cache_mode == "none":
            return CONSTANT
        if not in_flight:
            return rhythm((1, size), (2, size), edges=((1, size), (2, size)))
        if limits.mamba_cache_mode == "all":
            flight = size + limits.tokens_in_flight
            return rhythm((1, 1), (size, size), (flight, size), edges=((1, size),))
        return rhythm((1, 1), (size + 1, 1))

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        """none: the running state and the speculative ones, from index 0. Else the state that the
        step starts from, and those it writes: all, one at every boundary it passes; align, the one
        it ends in and the speculative ones after it (a prefill step that skips boundaries
        speculates not). Earlier boundaries stay findable as cached blocks that nobody holds.
        """
        if limits.mamba_cache_mode == "none":
            return (range(1 + self.num_speculative_blocks),)
        end = cdiv(computed + new, self.block_size)
        if not end:
            return ()
        source = max(0, computed - 1) // self.block_size
        if limits.mamba_cache_mode == "all":
            return (range(source, end),)
        if not computed or source >= end - 2:
            return (range(source if computed else end - 1, end + self.num_speculative_blocks),)
        return range(source, source + 1), range(end - 1, end)

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        """all: a state for every token's block; else only the state that the step ends in (none: in
        block 0, where it stays)."""
        if limits.mamba_cache_mode == "all" or not new:
            return range(computed, computed + new)
        if limits.mamba_cache_mode == "none":
            return range(1)
        return range(computed + new - 1, computed + new)

    def hit_length(self, cached: Sequence[bool]) -> int:
        """One state is enough: the last cached boundary."""
        last = max((i for i, hit in enumerate(cached) if hit), default=-1)
        return (last + 1) * self.block_size


PLUGIN = MambaSpec
