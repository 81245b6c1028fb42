"""`binding=transformers`: a real model generates through the cache, and must not notice.

The model is built from the run's own config.json with random weights, generates once with
transformers' own cache and once through the bound pages, and every token and logit is compared.
Pages are those that were planned and allocated, where they hold what transformers stores; where an
engine stores a state otherwise (one column less of a convolution), the model gets a plan of its own
in the same memory, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.backends.base import Backend
from kvpipe.cache.buffers import KVBuffers
from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.binding.base import (
    AttentionLayer,
    Binding,
    BindingRequest,
    BoundCache,
    VerifyReport,
)
from kvpipe.stages.binding.context import bind_layer
from kvpipe.stages.binding.order import add_kv_sharing_layers, runner_order


class TransformersBinding(Binding):
    class Options(BaseModel):
        """mode: how the model reads pages; auto: direct where it can. prompt_tokens: of each row.
        inject: a fault that the comparison must find. See conf/binding/transformers.yaml."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        mode: Literal["auto", "gather", "direct"]
        prompt_tokens: list[int] = Field(min_length=1, max_length=64)
        new_tokens: int = Field(ge=1, le=4096)
        weight_scale: float = Field(gt=0)
        seed: int
        max_parameters: int = Field(ge=1)
        inject: Literal["none", "swap", "lost", "alias", "window", "state"]

    def __init__(self, options: Options) -> None:
        self.options = options

    @property
    def takes_scratch(self) -> bool:
        return self.options.mode != "direct"

    def run(self, request: BindingRequest, backend: Backend) -> BoundCache:
        """ConfigError for a missing extra, a model without a config.json or of too many parameters,
        and a fault that the model has no place for."""
        from kvpipe.models.probe.releases import require_transformers

        require_transformers()
        if request.num_ranks > 1:
            raise ConfigError(
                Problem(
                    "binding",
                    "one rank: transformers runs the whole model",
                    f"{request.num_ranks} ranks",
                    "parallel=single",
                )
            )
        context = {name: AttentionLayer(name=name) for name in request.layer_names}
        for name in request.layer_names:
            bind_layer(context, name, request.buffers)
        report, buffers, notes = self._generate(request, backend)
        shared = dict(request.buffers.addresses.shared_layers)
        groups = [group.layer_names for group in request.config.groups]
        order = runner_order(request.layer_names, 1)
        return BoundCache(
            forward_context=context,
            groups=tuple(map(tuple, add_kv_sharing_layers(groups, shared.items()))),
            runner_kv_caches=tuple((name, context[name].kv_cache) for name in order),
            runner_only=tuple(shared),
            prefill_layers=request.layer_names,
            buffers=buffers,
            verify=report,
            notes=notes,
        )

    def _generate(
        self, request: BindingRequest, backend: Backend
    ) -> tuple[VerifyReport, KVBuffers, tuple[str, ...]]:
        """The proof, the memory that the model ran in, and what the user should know."""
        if not backend.owns_memory:
            return VerifyReport(reason="no memory"), request.buffers, ()
        from kvpipe.stages.binding.transformers_cache.reference import (
            load_config,
            parameter_count,
            quiet_and_small,
        )

        if request.model_config is None:
            raise ConfigError(
                Problem(
                    "binding",
                    "a model with a config.json for transformers",
                    "a preset, which has geometry only",
                    "kvpipe ./folder binding=transformers, or model=hf model.path=...",
                )
            )
        config = load_config(request.model_config)
        with quiet_and_small(0):
            count = parameter_count(config)
        if count > self.options.max_parameters:
            raise ConfigError(
                Problem(
                    "binding.max_parameters",
                    f"a model of at most {self.options.max_parameters:,} parameters",
                    f"{count:,}",
                    "raise it, or shrink the config: random weights are made and run",
                )
            )
        with quiet_and_small(count):
            return self._run_twice(config, request, backend)

    def _run_twice(
        self, config: Any, request: BindingRequest, backend: Backend
    ) -> tuple[VerifyReport, KVBuffers, tuple[str, ...]]:
        from kvpipe.models.probe.as_transformers import needs_of
        from kvpipe.stages.binding.transformers_cache import reference
        from kvpipe.stages.binding.transformers_cache.bind import choose_mode
        from kvpipe.stages.binding.transformers_cache.bound import bind_needs
        from kvpipe.stages.binding.transformers_cache.faults import inject

        options = self.options
        device = request.buffers.buffers[0].data.device if request.buffers.buffers else "cpu"
        model = reference.random_model(
            config, request.model_dtype, options.seed, options.weight_scale
        ).to(device)
        needs = needs_of(model)
        planned, buffers, notes = _pages(request, needs, backend, len(options.prompt_tokens))
        asked, uses_scratch = self._mode(request.model_dtype), any(planned.config.scratch)
        mode = choose_mode(model, needs, asked, uses_scratch)
        lengths, new_tokens = self._lengths(planned.limits)
        chunk = planned.limits.max_num_batched_tokens
        chunked = chunk if max(lengths) > chunk else None
        inputs = reference.random_inputs(model, lengths, options.seed)
        storage = _storage(planned, needs)
        with reference.users_file("a config.json with which transformers generates"):
            own = reference.generate(
                model, inputs, new_tokens, chunked,
                reference.own_cache(needs, model.config, storage),
            )  # fmt: skip
        cache = bind_needs(model, needs, planned, mode=mode, buffers=buffers, shuffle=options.seed)
        try:
            if options.inject != "none":
                inject(cache, options.inject)
            found = reference.generate(model, inputs, new_tokens, chunked, cache)
        finally:
            cache.bound.unbind()
        backend.check()
        result = reference.compare(own, found, reference.bound_for(model.dtype))
        held = f"; {cache.peak_bytes_held:,} bytes of pages held at the peak"
        why = f" ({mode.reason})" if mode.reason else ""
        notes += (f"transformers: mode {mode.name}{why}{held}",)
        layers = sum(len(group.layer_names) for group in planned.config.groups)
        return _report(result, layers, mode.name, options.inject), buffers, notes

    def _mode(self, dtype: str) -> str:
        """In 16 bits the order of additions alone changes the text, so that only gathered K and V,
        which are added in the model's own order, can be held to equal tokens."""
        if dtype == "float32" or self.options.mode == "gather":
            return self.options.mode
        if self.options.mode == "direct":
            raise ConfigError(
                Problem(
                    "binding.mode",
                    "gather, whose tokens must be equal in any dtype",
                    f"direct in {dtype}, where rounding alone changes tokens",
                    "model.dtype=float32",
                )
            )
        return "gather"

    def _lengths(self, limits: RequestLimits) -> tuple[list[int], int]:
        """Prompts and new tokens, cut to what one request may have."""
        new_tokens = min(self.options.new_tokens, limits.max_model_len - 1)
        longest = limits.max_model_len - new_tokens
        return [max(1, min(n, longest)) for n in self.options.prompt_tokens], new_tokens


def _pages(
    request: BindingRequest, needs: Sequence[Any], backend: Backend, num_rows: int
) -> tuple[Any, KVBuffers, tuple[str, ...]]:
    """What the model binds to: the run's own plan and memory where they hold what it stores, else a
    plan of its own, at most as large."""
    from kvpipe.models.probe.as_transformers import cache_layers
    from kvpipe.stages.binding.transformers_cache.bound import allocate
    from kvpipe.stages.binding.transformers_cache.match import PlannedCache, disagreements
    from kvpipe.stages.grouping.planning import plan

    planned = PlannedCache(
        config=request.config,
        limits=request.limits,
        shared_layers=request.buffers.addresses.shared_layers,
    )
    differ = list(disagreements(needs, planned))
    if not differ:
        return planned, request.buffers, ()
    layers = cache_layers(needs, min(g.spec.block_size for g in request.config.groups))
    wanted = 2 * num_rows * sum(layer.spec.max_memory_bytes(request.limits) for layer in layers)
    memory = min(request.config.size_bytes, wanted + (1 << 20))
    limits = replace(request.limits, mamba_cache_mode="none")
    scratch = any(request.config.scratch)
    own = PlannedCache.of(
        plan(
            layers,
            limits,
            memory,
            fit=True,
            compared=(),
            prefix_caching=not scratch,
            scratch=scratch,
        )
    )
    first = differ[0]
    note = (
        f"{len(differ)} of the model's caches differ from the engine's plan; transformers ran in a "
        f"plan of its own of {own.config.num_blocks:,} blocks. First: {first.key}: transformers "
        f"stores {first.expected}, the plan {first.got}"
    )
    return own, allocate(own, backend), (note,)


def _storage(planned: Any, needs: Sequence[Any]) -> str | None:
    """The fp8 dtype of the K and V pages, or None where they hold the model's own dtype."""
    arrays = (
        array
        for group in planned.config.groups
        for name in group.layer_names
        for array in group.layer_spec(name).page_arrays()
    )
    return next((a.dtype for a in arrays if a.per_token and a.dtype.startswith("fp8")), None)


def _report(result: Any, num_layers: int, mode: str, fault: str) -> VerifyReport:
    off = f", largest logit difference {result.max_difference:.2g} (bound {result.bound:.2g})"
    if result.different:
        said = f"{result.different:,} of {result.tokens:,} generated tokens differ from"
    else:
        said = f"{result.tokens:,} generated tokens equal those of"
    injected = "" if fault == "none" else f", with inject={fault}"
    return VerifyReport(
        layers=num_layers,
        tokens=result.tokens,
        rows=result.tokens,
        mismatches=result.different,
        digest=result.digest,
        digest_of="generated tokens",
        inject=fault,
        summary=f"{said} transformers' own cache (mode {mode}){off}{injected}",
    )


PLUGIN = TransformersBinding
