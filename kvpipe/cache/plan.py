"""The plan: layers in groups, groups in tensors, and what the memory holds. What grouping hands on.

The results keep the field's names: KVCacheTensor, KVCacheGroupSpec, KVCacheConfig.
Sizes in bytes, lengths in tokens. Everything is frozen and free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvpipe.cache.load import most_running, running
from kvpipe.cache.scratch import GroupScratch
from kvpipe.notes import Note
from kvpipe.specs.base import KVCacheSpec, RequestLimits


@dataclass(frozen=True, kw_only=True)
class LayerPages:
    """Where the pages of one layer lie in a tensor: page of block b at offset + b * block_stride.

    head_stride: set where a page is not one run of bytes but one a head, that far apart (placements
    with heads outside layers or blocks); each run is then page / heads bytes.
    layer_stride: bytes to the next layer of the same spec in the same group (0: none was planned).
    """

    layer: str
    offset: int
    block_stride: int
    layer_stride: int = 0
    head_stride: int | None = None

    @classmethod
    def one_a_block(cls, layer: str, page: int) -> LayerPages:
        """Pages one after the other from byte 0. Fills the frozen instance at once: field by field
        takes a quarter of the planning time of a model whose layers are alike."""
        made = cls.__new__(cls)
        fields = made.__dict__
        fields["layer"], fields["offset"], fields["block_stride"] = layer, 0, page
        fields["layer_stride"], fields["head_stride"] = 0, None
        return made


@dataclass(frozen=True, kw_only=True)
class KVCacheTensor:
    """One allocation, in bytes, and the layers that share it (at most one of each group a byte)."""

    size_bytes: int
    pages: tuple[LayerPages, ...]

    @classmethod
    def each_alone(
        cls, layers: Sequence[str], pages: Sequence[int], num_blocks: int
    ) -> tuple[KVCacheTensor, ...]:
        """One a layer, its pages one after the other from byte 0. The frozen instances are filled
        at once: field by field takes a quarter of the planning time of a model of like layers."""
        tensors, new = [], object.__new__
        for layer, page in zip(layers, pages, strict=True):
            alone = new(LayerPages)
            fields = alone.__dict__
            fields["layer"], fields["offset"], fields["block_stride"] = layer, 0, page
            fields["layer_stride"], fields["head_stride"] = 0, None
            tensor = new(cls)
            fields = tensor.__dict__
            fields["size_bytes"], fields["pages"] = page * num_blocks, (alone,)
            tensors.append(tensor)
        return tuple(tensors)

    @property
    def shared_by(self) -> tuple[str, ...]:
        return tuple(page.layer for page in self.pages)


@dataclass(frozen=True, kw_only=True)
class KVCacheGroupSpec:
    """Layers with one block table. spec: their common spec, or a UniformTypeKVCacheSpecs that holds
    one a layer. `layer_spec(name)` is the spec of a single layer.

    blocks_per_slot: above 1 the table's blocks are so many equal parts of a block of the pool,
    which then counts for this group alone (sub-slots): `spec` is what a whole block of the pool
    holds, by which capacity is counted, `block_spec` what one entry of the table names."""

    layer_names: tuple[str, ...]
    spec: KVCacheSpec
    blocks_per_slot: int = 1

    def layer_spec(self, name: str) -> KVCacheSpec:
        return self.spec.of_layer(name)

    @cached_property
    def block_spec(self) -> KVCacheSpec:
        if self.blocks_per_slot == 1:
            return self.spec
        return self.spec.with_block_size(self.spec.block_size // self.blocks_per_slot)


@dataclass(frozen=True, kw_only=True)
class KVCacheConfig:
    """What one rank allocates. bytes_per_block: one block id across the whole pool of this rank.
    scratch: one a group, where prefill chunks keep in scratch what does not survive them (None: a
    group that keeps all; (): every group does)."""

    num_blocks: int
    tensors: tuple[KVCacheTensor, ...]
    groups: tuple[KVCacheGroupSpec, ...]
    bytes_per_block: int
    scratch: tuple[GroupScratch | None, ...] = ()

    @cached_property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class EngineCapacity:
    """The two numbers an engine prints; None where it prints none. Computed as that engine does,
    wrong for hybrid models where it is wrong there. refused: why that engine would not start."""

    engine: str
    num_tokens: int | None
    max_concurrency: float | None
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One rank's config and its accounts. available_bytes was given; required_bytes is what
    admission compares with it (one request of max_model_len); stranded_bytes: blocks this rank
    could hold beyond the num_blocks of the poorest rank; printed: the engine's line for it."""

    config: KVCacheConfig
    available_bytes: int
    required_bytes: int
    printed: EngineCapacity
    stranded_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupDemand:
    """Blocks one request takes from the pool for one group."""

    kind: str
    peak_blocks: int
    steady_blocks: int


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What the plan really holds: bytes a request, blocks a request takes for each group, requests
    that fit, longest request that fits, two-parameter cost. usable_blocks excludes the null block.

    request_len: tokens the figures are for (max_model_len). demands: one a group. Bytes are those
    of the rank with the most bytes a block. scratch_blocks: at a request's peak, beside those of
    the groups: its step's own. requests_at_peak: all prefilling at once;
    requests_steady: all decoding at request_len. longest_request: tokens, up to request_len.
    bytes_fixed + bytes_per_token * length is never below the steady bytes of one request.
    """

    usable_blocks: int
    request_len: int
    demands: tuple[GroupDemand, ...]
    peak_bytes: int
    steady_bytes: int
    requests_at_peak: int
    requests_steady: int
    longest_request: int
    bytes_fixed: int
    bytes_per_token: float
    scratch_blocks: int = 0

    @property
    def requests_running(self) -> int:
        """Requests of request_len in a running server (load.py)."""
        return most_running(self.usable_blocks, self.peak_blocks, self.steady_blocks)

    def blocks_of(self, requests: int) -> int:
        """Blocks of a running load of that many requests of request_len: the tokens of one step
        are prompts, wherever they belong."""
        return running(requests, self.request_len).units(self.peak_blocks, self.steady_blocks)

    @property
    def peak_blocks(self) -> int:
        """Of one request, over all groups, with its step's own."""
        return sum(demand.peak_blocks for demand in self.demands) + self.scratch_blocks

    @property
    def steady_blocks(self) -> int:
        """Of one request, over all groups."""
        return sum(demand.steady_blocks for demand in self.demands)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Layers of memory charged for but not used, because a bucket does not fill its groups."""

    num_layers: int
    percent: float


@dataclass(frozen=True, kw_only=True)
class SlotFacts:
    """What is known of groups in equal slots: every block of every table is one slot.

    rule: how they were found. never_worse_than: engines under which no request, of whatever length,
    decoding or reading its prompt, takes fewer bytes. prefix_grain: tokens of a step in which
    prefixes are shared (0: they cannot be). bound_bytes: steady bytes of one request of the longest
    length in the smallest blocks without any padding; no plan goes below. compared: (engine, block
    tables, steady bytes of that request) of other plans of the same layers."""

    rule: str
    never_worse_than: tuple[str, ...]
    prefix_grain: int
    bound_bytes: int
    compared: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer: a config a rank, the length it is for, and its capacity.

    slots: of groups in equal slots (None: groups of another rule, or one group). shared_layers:
    (layer, target) pairs that own no bytes. True capacity and what each named engine
    would print stand side by side in `capacity` and `printed` (the run's engine first).
    """

    engine: str
    limits: RequestLimits  # max_model_len is the planned length, after auto-fit
    requested_len: int
    ranks: tuple[RankPlan, ...]
    shared_layers: tuple[tuple[str, str], ...]
    padding: tuple[Padding, ...]
    capacity: Capacity | None  # None when there is nothing to store
    printed: Sequence[EngineCapacity]  # as a tuple; a line is worked out when it is read
    notes: tuple[Note, ...] = ()
    slots: SlotFacts | None = None

    @property
    def num_blocks(self) -> int:
        return self.ranks[0].config.num_blocks

    @property
    def groups(self) -> tuple[KVCacheGroupSpec, ...]:
        return self.ranks[0].config.groups
