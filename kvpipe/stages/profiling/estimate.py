"""Device, model, batch budget -> bytes without the device: weights exactly, the rest as ranges.

The best values make the plan; low and high stand beside them. Utilization is a share of the whole
card: what other processes hold of it is taken off the same share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kvpipe.engines.defaults import all_ranks_sample, graphs_reserved, others_charged
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.specs.base import DTYPE_BYTES
from kvpipe.stages.profiling._weights import adapters, rank_weights
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    demanded,
    device_total,
)
from kvpipe.stages.profiling.estimate_notes import estimate_notes
from kvpipe.stages.profiling.estimates import Estimate, activations, context, graphs
from kvpipe.text.figures import GIB
from kvpipe.text.quantities import Bytes, parse_size


class EstimateProfiling:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        weights_bytes: Bytes | Literal["auto"]
        enforce_eager: bool
        other_instances_bytes: Annotated[int, BeforeValidator(parse_size), Field(ge=0, lt=2**63)]

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        if request.device.type == "cpu":
            raise ConfigError(
                Problem(
                    "device",
                    "an accelerator, since profiling=estimate is about one",
                    "cpu",
                    "choose device=h100_80gb, or profiling=auto",
                )
            )
        here = request.ranks or range(request.parallel.tp * request.parallel.pp)
        kinds = {rank: _kind(rank, request) for rank in here}
        by_kind = {
            (stage, samples): self.rank_memory(stage, request, samples)
            for stage, samples in dict.fromkeys(kinds.values())
        }
        ranks = [replace(by_kind[kind], rank=rank) for rank, kind in kinds.items()]
        _refuse_empty(ranks)
        notes = estimate_notes(
            request,
            available=min(rank.available_kv_bytes for rank in ranks),
            is_eager=self.options.enforce_eager,
            held_by_others=self.options.other_instances_bytes,
        )
        return MemoryProfile(plugin=self.options.name, ranks=tuple(ranks), notes=tuple(notes))

    def beside_set_by_hand(
        self, profile: MemoryProfile, request: ProfilingRequest
    ) -> MemoryProfile:
        """The same weights, activations, context and graphs, beside a size that the user set; as it
        is on a CPU, and where nothing says how large the weights are."""
        model = request.model
        unknown = self.options.weights_bytes == "auto" and not (
            model.parameter_count or model.weight_bytes
        )
        if request.device.type == "cpu" or unknown:
            return profile
        ranks = tuple(self._beside(rank, request) for rank in profile.ranks)
        return replace(profile, ranks=ranks)

    def _beside(self, memory: RankMemory, request: ProfilingRequest) -> RankMemory:
        stage, samples = _kind(memory.rank, request)
        own = (self.weights(stage, request), *adapters(request))
        charged = (*own, *self.ranges(stage, request, samples))
        num_bytes = memory.available_kv_bytes + sum(item.num_bytes for item in charged)
        source = f"{memory.available_kv.source} and everything beside it"
        requested = MemoryItem(
            name="requested", num_bytes=num_bytes, how="estimated", source=source
        )
        return replace(memory, charged=charged, requested=requested)

    def rank_memory(
        self, stage: int, request: ProfilingRequest, samples: bool = True
    ) -> RankMemory:
        """The account of one rank of a pipeline stage. samples: it runs the sampler, where the
        stage does."""
        total, share = device_total(request.device), request.gpu_memory_utilization
        requested = MemoryItem(
            name="requested",
            num_bytes=ceil(total.num_bytes * share),
            how=total.how,
            source=f"total x cache.gpu_memory_utilization={share}, a share of the whole card",
        )
        _refuse_without_room(requested, total, self.options.other_instances_bytes, request)
        own = (self.weights(stage, request), *adapters(request))
        charged = (*own, *self.ranges(stage, request, samples))
        item = MemoryItem(
            name="KV cache",
            num_bytes=requested.num_bytes - sum(item.num_bytes for item in charged),
            how="estimated",
            source="requested - everything above",
            low_bytes=max(0, requested.num_bytes - sum(item.at_most for item in charged)),
            high_bytes=requested.num_bytes - sum(item.at_least for item in charged),
        )
        return RankMemory(
            rank=stage, total=total, requested=requested, charged=charged, available_kv=item
        )

    def ranges(self, stage: int, request: ProfilingRequest, samples: bool) -> list[MemoryItem]:
        """What loading makes of the weights, activations, context, graphs where this release
        reserves them, other processes where it counts them."""
        options, model, tp = self.options, request.model, request.parallel.tp
        last = stage == request.parallel.pp - 1
        peak = activations(
            model,
            batched_tokens=request.max_num_batched_tokens,
            max_num_seqs=request.max_num_seqs,
            tp=tp,
            has_head=last and samples,
            is_packed=is_packed(model, request.served_dtype),
        )
        items = [_item(peak), _item(context(tp, request.device.total_bytes))]
        if options.weights_bytes == "auto":
            items.insert(0, loading(self.weights(stage, request), request))
        if not options.enforce_eager and graphs_reserved(request.engine_version):
            layers = request.stage_layers[stage] if request.stage_layers else model.num_layers
            items.append(_item(graphs(model, num_layers=layers, max_num_seqs=request.max_num_seqs)))
        if options.other_instances_bytes and others_charged(request.engine_version):
            items.append(
                MemoryItem(
                    name="other instances",
                    num_bytes=options.other_instances_bytes,
                    how="set",
                    source="profiling.other_instances_bytes: of the same share of the card",
                )
            )
        return items

    def weights(self, stage: int, request: ProfilingRequest) -> MemoryItem:
        if self.options.weights_bytes != "auto":
            return MemoryItem(
                name="weights",
                num_bytes=self.options.weights_bytes,
                how="set",
                source="profiling.weights_bytes",
            )
        return rank_weights(stage, request)


def _refuse_empty(ranks: Sequence[RankMemory]) -> None:
    """DoesNotFit where a rank's cache would have nothing; told of the first such rank."""
    for memory in ranks:
        if memory.available_kv_bytes > 0:
            continue
        requested, charged, total = memory.requested, memory.charged, memory.total
        raise DoesNotFit(
            _nothing_left(requested, charged, total),
            available_bytes=(memory.available_kv_bytes,),
            demand=demanded(requested, charged, total, rank=memory.rank),
            most_bytes=tuple(max(0, each.available_kv.at_most) for each in ranks),
        )


def _kind(rank: int, request: ProfilingRequest) -> tuple[int, bool]:
    """Its pipeline stage, and whether it samples where its stage does."""
    tp = request.parallel.tp
    return rank // tp, rank % tp == 0 or all_ranks_sample(request.engine_version)


def is_packed(model: ModelGeometry, served_dtype: str) -> bool:
    """Whether the checkpoint has fewer bytes than its numbers take in the served dtype."""
    whole = (model.parameter_count or 0) * DTYPE_BYTES[served_dtype]
    return model.weight_bytes is not None and model.weight_bytes < 0.9 * whole


def loading(weights: MemoryItem, request: ProfilingRequest) -> MemoryItem:
    """What an engine makes of the file's bytes: padded vocabularies and buffers; of packed weights
    also alignment, copies and what is unpacked for good."""
    packed = is_packed(request.model, request.served_dtype)
    best, high = (0.015, 0.10) if packed else (0.0, 0.006)
    return MemoryItem(
        name="loading",
        num_bytes=int(weights.num_bytes * best),
        how="estimated",
        source="engines hold 1.4% to 8.6% more than a packed file has (three logs)"
        if packed
        else "padding and buffers: 0 to 0.5% of the weights in four logs",
        low_bytes=0,
        high_bytes=int(weights.num_bytes * high),
    )


def _item(estimate: Estimate) -> MemoryItem:
    return MemoryItem(
        name=estimate.name,
        num_bytes=estimate.best,
        how="estimated",
        source=f"{estimate.formula}; {estimate.source}",
        low_bytes=estimate.low,
        high_bytes=estimate.high,
    )


def _refuse_without_room(
    requested: MemoryItem, total: MemoryItem, held: int, request: ProfilingRequest
) -> None:
    """Releases that do not count what others hold ask for their whole share at the start."""
    free = total.num_bytes - held
    if not held or others_charged(request.engine_version) or requested.num_bytes <= free:
        return
    share = floor(100 * max(0, free) / total.num_bytes) / 100
    way = f"No share above {share:.2f} can be asked for"
    raise DoesNotFit(
        f"cache.gpu_memory_utilization: {requested.num_bytes / GIB:.2f} GiB must be free when vLLM "
        f"{request.engine_version} starts, and {max(0, free) / GIB:.2f} GiB are, beside the "
        f"{held / GIB:.2f} GiB of other processes. {way}",
        needed_bytes=(requested.num_bytes,),
        available_bytes=(max(0, free),),
    )


def _nothing_left(requested: MemoryItem, charged: tuple[MemoryItem, ...], total: MemoryItem) -> str:
    parts = " + ".join(
        f"{item.name} {item.num_bytes / GIB:.2f} GiB" for item in charged if item.num_bytes
    )
    needed = sum(item.num_bytes for item in charged) / total.num_bytes
    share = ceil(1000 * needed) / 1000  # rounded to the safe side
    way = f"The first block needs more than {share:.3f} of the card" if share < 1 else ""
    return (
        f"cache.gpu_memory_utilization: {requested.num_bytes / GIB:.2f} GiB requested of the whole "
        f"card, {parts} leave nothing for the KV cache. {way}".rstrip()
    )


PLUGIN = EstimateProfiling
