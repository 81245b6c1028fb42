"""RunConfig -> ResolvedRun: decides everything that is "auto" and refuses what cannot be.

What vLLM's platform check decides (a concrete block size, dtypes) and what else would only show
later: heads under tensor parallelism, lengths against the model, pages against their content. All
problems are collected and raised once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from kvpipe.engines.arguments import Arguments, refused_arguments
from kvpipe.engines.base import Engine, EngineRules
from kvpipe.engines.defaults import kernel_block_on_a_cpu
from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import LayoutChoice
from kvpipe.models.base import ModelGeometry, ModelReader
from kvpipe.models.formats.base import WeightFormat
from kvpipe.notes import Note
from kvpipe.request.config import RunConfig
from kvpipe.specs.base import SpecContext
from kvpipe.stages.validation._advice import advice
from kvpipe.stages.validation._block_sizes import BlockSizes, default_block_size
from kvpipe.stages.validation._dtypes import ResolvedDtypes, packed_dtype, resolve_dtypes
from kvpipe.stages.validation._engine_defaults import StepSizes, resolve_sizes
from kvpipe.stages.validation._experts import check_experts
from kvpipe.stages.validation._lengths import max_model_len, request_limits
from kvpipe.stages.validation._parallel import check_parallel, resolved_parallel
from kvpipe.stages.validation._scaled_rows import row_notes, row_problems, scaled_rows
from kvpipe.stages.validation._what_if import asked_what_if
from kvpipe.stages.validation.base import ResolvedDevice, ResolvedRun
from kvpipe.stages.validation.device import resolve_backend, resolve_device
from kvpipe.stages.validation.layers import Layer, WhatIf, as_released, build_layers, to_ranks

T = TypeVar("T")


class PlatformValidation:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, config: RunConfig) -> ResolvedRun:
        """The resolved request; ConfigError with every problem."""
        return _Resolution(config).resolve()


@dataclass
class _Resolution:
    """The problems found so far, while the parts of one request are resolved one after another."""

    config: RunConfig

    def __post_init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[Note] = []
        self.block_quantum: int | None = None

    @property
    def rules(self) -> EngineRules:
        """Of the engine that is planned for; of one that is planned only, kvpipe's own."""
        return self.config.plugins["engine"].make(Engine).rules

    def resolve(self) -> ResolvedRun:
        config, parallel = self.config, self.config.parallel
        model = self.attempt(self.model)
        # Only backends that run on GPUs have an index (backends/base.py).
        gpu_index: int = getattr(config.plugins["backend"].options, "gpu_index", 0)
        device = self.attempt(lambda: resolve_device(config.device, gpu_index))
        self.attempt(lambda: check_parallel(parallel))
        what_if = self.attempt(lambda: asked_what_if(config))
        backend = self.backend(device) if device is not None else None
        if model is None or device is None:
            raise ConfigError(self.problems)
        self.attempt(lambda: check_experts(config, model))
        sizes = resolve_sizes(config, device, max_model_len(config.scheduler, model))
        limits = self.attempt(lambda: request_limits(config, self.rules, model, sizes))
        dtypes = resolve_dtypes(self.asked_dtype, model, config.cache, device, self.rules.version)
        self.notes += [*map(_note, model.notes), *dtypes.notes, *sizes.notes]
        length = limits.max_model_len if limits else model.context_length
        layers = self.attempt(lambda: self.layers(model, device, dtypes, what_if, length)) or []
        ranks = self.attempt(lambda: to_ranks(model, layers, parallel))
        arguments = self.arguments(model, device, dtypes, sizes, layers)
        self.problems += refused_arguments(arguments, self.rules.version)
        if self.problems or limits is None or backend is None or ranks is None:
            raise ConfigError(self.problems)
        self.notes += advice(config, model, what_if)
        return ResolvedRun(
            model=model,
            served_dtype=dtypes.served,
            cache_dtype=dtypes.cache,
            device=device,
            backend=backend[0],
            backend_reason=backend[1],
            parallel=resolved_parallel(parallel),
            ranks=ranks,
            limits=limits,
            fit=config.scheduler.max_model_len == "auto",
            max_num_seqs=sizes.max_num_seqs,
            gpu_memory_utilization=sizes.gpu_memory_utilization,
            notes=tuple(self.notes),
            block_quantum=self.block_quantum,
        )

    def attempt(self, step: Callable[[], T]) -> T | None:
        """The step's answer, or None with its problems kept; what two checks find is said once."""
        try:
            return step()
        except ConfigError as error:
            known = {(problem.key, problem.got) for problem in self.problems}
            self.problems += [p for p in error.problems if (p.key, p.got) not in known]
            return None

    @property
    def asked_dtype(self) -> str:
        dtype: str = self.config.plugins["model"].options.dtype
        return dtype

    def backend(self, device: ResolvedDevice) -> tuple[str, str] | None:
        """Its name and why it was taken."""
        name = self.config.plugins["backend"].name
        return self.attempt(lambda: resolve_backend(name, device))

    def model(self) -> ModelGeometry:
        """The model as the planned release reads it, its weights as they are to be stored."""
        plugins = self.config.plugins
        published = plugins["model"].make(ModelReader).read()
        path = getattr(plugins["model"].options, "path", None)
        self.problems += _taken_for_flags({"model.name": published.name, "model.path": path})
        stored = plugins["weights"].make(WeightFormat).stored(published)
        return as_released(stored, self.rules.version)

    def arguments(
        self,
        model: ModelGeometry,
        device: ResolvedDevice,
        dtypes: ResolvedDtypes,
        sizes: StepSizes,
        layers: Sequence[Layer],
    ) -> Arguments:
        """What the planned engine would be started with, as far as it may refuse it."""
        is_latent, parallel = _stores_latent(layers), self.config.parallel
        return Arguments(
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_num_seqs=sizes.max_num_seqs,
            dtype=self.asked_dtype,
            compute_capability=device.compute_capability,
            latent_dtype=dtypes.cache if is_latent else "",
            only_packed=model.kv_dtype == "fp8_ds_mla",
            tp=parallel.tensor_parallel_size,
            dcp=parallel.decode_context_parallel_size,
            heads=model.num_attention_heads,
            kv_heads=0 if is_latent else _kv_heads(model),
        )

    def layers(
        self,
        model: ModelGeometry,
        device: ResolvedDevice,
        dtypes: ResolvedDtypes,
        what_if: WhatIf | None,
        length: int,
    ) -> list[Layer]:
        cache, parallel = self.config.cache, self.config.parallel
        rules = self.rules
        rows = scaled_rows(dtypes.cache, self.config.plugins["engine"])
        default = default_block_size(rules, device.type, model.caches)
        block_size = default if cache.block_size == "auto" else cache.block_size
        # Modes that keep states at block boundaries need a boundary: the block's, unless set.
        boundary = None if cache.mamba_cache_mode == "none" else block_size
        context = SpecContext(
            block_size=block_size,
            dtype=dtypes.kv,
            cache_dtype=dtypes.cache,
            model_dtype=dtypes.served,
            conv_dtype=dtypes.conv,
            ssm_dtype=dtypes.ssm,
            max_model_len=length,
            mamba_block_size=cache.mamba_block_size or boundary,
            mamba_cache_mode=cache.mamba_cache_mode,
            scaled_rows=rows,
            num_speculative_blocks=self.config.scheduler.num_speculative_tokens,
            mamba2_checkpoint_blocks=rules.mamba2_checkpoint_blocks,
        )
        layout = self.config.plugins["layout"].make(LayoutChoice)
        on_a_cpu = device.type == "cpu" and rules.version
        blocks = BlockSizes(
            cache=cache,
            rules=rules,
            layout=layout,
            default=default,
            kernel_block=kernel_block_on_a_cpu(rules.version) if on_a_cpu else None,
        )
        blocks.check_rows(model.caches)
        layers = build_layers(model, context, what_if, parallel.tensor_parallel_size)
        self.check_latent_dtype(layers)
        self.problems += packed_dtype(
            dtypes.cache, cache.cache_dtype, self.config.plugins["engine"]
        )
        if rows:
            self.problems += row_problems(rows, layers, device, rules.version)
            self.notes += row_notes(rows, rules.version)
        attention = [spec for _, spec in layers if not spec.is_state]
        if device.type == "cpu":
            layers = blocks.on_a_cpu(layers)
        elif attention:
            self.attempt(lambda: blocks.check(attention))
        layers, notes = blocks.beside_states(layers, model.state_chunk_size)
        self.notes += notes
        self.block_quantum = blocks.quantum(spec for _, spec in layers)
        return layers

    def check_latent_dtype(self, layers: list[Layer]) -> None:
        """fp8_ds_mla is a format of latent rows (656 bytes a token); K and V have no such form."""
        wrong = [
            cache.name
            for cache, spec in layers
            if any(array.per_token and array.name != "latent" for array in spec.page_arrays())
        ]
        if self.config.cache.cache_dtype == "fp8_ds_mla" and wrong:
            self.problems.append(
                Problem(
                    "cache.cache_dtype",
                    "a dtype of K and V (fp8_ds_mla is for latent rows, as DeepSeek's)",
                    f"'fp8_ds_mla' for {len(wrong)} layers such as {wrong[0]}",
                    "set cache.cache_dtype=fp8",
                )
            )


def _stores_latent(layers: Sequence[Layer]) -> bool:
    arrays = (array for _, spec in layers for array in spec.page_arrays())
    return any(array.name == "latent" for array in arrays)


def _kv_heads(model: ModelGeometry) -> int:
    """Of a layer that keeps every token; 0 where none does."""
    return max((cache.whole("num_kv_heads", 0) for cache in model.caches), default=0)


def _taken_for_flags(names: Mapping[str, str | None]) -> list[Problem]:
    """Names that begin with a dash: in a line that starts a server they would be flags of it."""
    return [
        Problem(key, "a name that no server takes for a flag", f"'{name}'", "begin with a letter")
        for key, name in names.items()
        if name is not None and str(name).startswith("-")
    ]


def _note(text: str) -> Note:
    return Note(text=text)


PLUGIN = PlatformValidation
