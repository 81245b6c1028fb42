"""RunConfig -> ResolvedRun: decides everything that is "auto" and refuses what cannot be.

What vLLM's platform check decides (a concrete block size, dtypes) and what else would only show
later: heads under tensor parallelism, lengths against the model, pages against their content. All
problems are collected and raised once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from kvpipe.notes import Hint, Note, Proposal
from kvpipe.plugins import SPECS
from kvpipe.request.config import RunConfig
from kvpipe.specs.base import RequestLimits, SpecContext
from kvpipe.stages.validation._block_sizes import BlockSizes, default_block_size
from kvpipe.stages.validation._dtypes import ResolvedDtypes, packed_dtype, resolve_dtypes
from kvpipe.stages.validation._engine_defaults import StepSizes, resolve_sizes
from kvpipe.stages.validation._experts import check_experts
from kvpipe.stages.validation._scaled_rows import row_notes, row_problems, scaled_rows
from kvpipe.stages.validation.base import ResolvedDevice, ResolvedParallel, ResolvedRun
from kvpipe.stages.validation.device import resolve_backend, resolve_device
from kvpipe.stages.validation.layers import Layer, WhatIf, as_released, build_layers, to_ranks

T = TypeVar("T")
NATIVE = "native"  # attention=native: the layers as published
WINDOWED = "sliding"  # the attention choice that cache.sliding_window makes by itself


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
        config = self.config
        model = self.attempt(lambda: self.model())
        # Only backends that run on GPUs have an index (backends/base.py).
        gpu_index: int = getattr(config.plugins["backend"].options, "gpu_index", 0)
        device = self.attempt(lambda: resolve_device(config.device, gpu_index))
        self.attempt(self.check_parallel)
        what_if = self.attempt(self.what_if)
        backend = None
        if device is not None:
            here = device
            name = config.plugins["backend"].name
            backend = self.attempt(lambda: resolve_backend(name, here))
        if model is None or device is None:
            raise ConfigError(self.problems)
        self.attempt(lambda: check_experts(config, model))
        sizes = resolve_sizes(config, device, self.max_model_len(model))
        lengths = self.attempt(lambda: self.lengths(model, sizes))
        dtypes = resolve_dtypes(
            config.plugins["model"].options.dtype,
            model,
            config.cache,
            device,
            self.rules.version,
        )
        self.notes += [*map(_note, model.notes), *dtypes.notes, *sizes.notes]
        length = lengths.max_model_len if lengths else model.context_length
        layers = self.attempt(lambda: self.layers(model, device, dtypes, what_if, length))
        ranks = self.attempt(lambda: to_ranks(model, layers or [], config.parallel))
        self.problems += refused_arguments(
            Arguments(
                max_num_batched_tokens=sizes.max_num_batched_tokens,
                max_num_seqs=sizes.max_num_seqs,
                dtype=config.plugins["model"].options.dtype,
                compute_capability=device.compute_capability,
                latent_dtype=dtypes.cache if _stores_latent(layers or []) else "",
                only_packed=model.kv_dtype == "fp8_ds_mla",
                tp=config.parallel.tensor_parallel_size,
                dcp=config.parallel.decode_context_parallel_size,
                heads=model.num_attention_heads,
                kv_heads=0 if _stores_latent(layers or []) else _kv_heads(model),
            ),
            self.rules.version,
        )
        if self.problems or lengths is None or backend is None or ranks is None:
            raise ConfigError(self.problems)
        self.advise(model, what_if)
        return ResolvedRun(
            model=model,
            served_dtype=dtypes.served,
            cache_dtype=dtypes.cache,
            device=device,
            backend=backend[0],
            backend_reason=backend[1],
            parallel=self.parallel(),
            ranks=ranks,
            limits=lengths,
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

    def model(self) -> ModelGeometry:
        """The model as the planned release reads it, its weights as they are to be stored."""
        plugins = self.config.plugins
        published = plugins["model"].make(ModelReader).read()
        path = getattr(plugins["model"].options, "path", None)
        self.problems += _taken_for_flags({"model.name": published.name, "model.path": path})
        stored = plugins["weights"].make(WeightFormat).stored(published)
        return as_released(stored, self.rules.version)

    # --- parallel, lengths, what-if ---------------------------------------------------------------
    def parallel(self) -> ResolvedParallel:
        parallel = self.config.parallel
        return ResolvedParallel(
            tp=parallel.tensor_parallel_size,
            pp=parallel.pipeline_parallel_size,
            dcp=parallel.decode_context_parallel_size,
            dp=parallel.data_parallel_size,
            expert_parallel=parallel.enable_expert_parallel,
        )

    def check_parallel(self) -> None:
        parallel = self.parallel()
        if parallel.tp % parallel.dcp:
            raise ConfigError(
                Problem(
                    "parallel.decode_context_parallel_size",
                    f"a divisor of tensor_parallel_size {parallel.tp}, whose ranks it shares",
                    str(parallel.dcp),
                )
            )
        sizes, ranks = self.config.parallel.rank_memory_bytes, parallel.tp * parallel.pp
        if sizes is not None and len(sizes) != ranks:
            raise ConfigError(
                Problem(
                    "parallel.rank_memory_bytes",
                    f"one size for each of {ranks} ranks",
                    f"{len(sizes)} sizes",
                )
            )

    def max_model_len(self, model: ModelGeometry) -> int:
        asked = self.config.scheduler.max_model_len
        return model.context_length if asked == "auto" else asked

    def lengths(self, model: ModelGeometry, sizes: StepSizes) -> RequestLimits:
        scheduler, length = self.config.scheduler, self.max_model_len(model)
        if length > model.context_length:
            raise ConfigError(
                Problem(
                    "scheduler.max_model_len",
                    f"at most the model's context of {model.context_length:,} tokens",
                    f"{length:,} tokens",
                )
            )
        encoder = scheduler.max_encoder_tokens
        if encoder == "auto":
            encoder = self.rules.encoder_tokens(model.encoder_tokens, sizes.max_num_batched_tokens)
        return RequestLimits(
            max_model_len=length,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_encoder_tokens=encoder,
            max_concurrent_batches=sizes.max_concurrent_batches,
            num_lookahead_tokens=scheduler.num_speculative_tokens,
            dcp=self.config.parallel.decode_context_parallel_size,
            mamba_cache_mode=self.config.cache.mamba_cache_mode,
        )

    def what_if(self) -> WhatIf | None:
        """attention=<kind>, or the window that cache.sliding_window asks for by itself."""
        attention, window = self.config.attention, self.config.cache.sliding_window
        own = {"sliding_window": window}
        if attention.spec == NATIVE:
            asked = WhatIf(spec=WINDOWED, options=own, key="cache.sliding_window")
            return asked if window else None
        takes_it = attention.spec in SPECS and SPECS.get(attention.spec).reads_cache_window
        if takes_it and window is None:
            raise ConfigError(
                Problem(
                    "cache.sliding_window",
                    f"a window in tokens, since attention={attention.spec}",
                    "null",
                    "set cache.sliding_window=4096",
                )
            )
        if window is not None and not takes_it:
            raise ConfigError(
                Problem(
                    "cache.sliding_window",
                    f"null, since attention={attention.spec}",
                    f"{window} tokens",
                    "leave one of the two out",
                )
            )
        return WhatIf(spec=attention.spec, options=attention.options, key="attention.options")

    # --- layers and their block sizes -------------------------------------------------------------
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

    # --- advice -----------------------------------------------------------------------------------
    def advise(self, model: ModelGeometry, what_if: WhatIf | None) -> None:
        cache = self.config.cache
        if what_if is not None:
            self.notes.append(
                Note(text=f"what-if: layers are planned as {what_if.spec}, not as published")
            )
        if what_if is not None and (cache.sliding_window or 0) >= model.context_length:
            self.notes.append(
                Note(
                    text=f"the window of {cache.sliding_window:,} tokens covers the whole context "
                    f"of {model.context_length:,}: it frees nothing",
                    knob="cache.sliding_window",
                    is_warning=True,
                )
            )
        if cache.gpu_memory_utilization == 1.0:
            self.notes.append(
                Hint(
                    about="a share of the whole card",
                    text="utilization 1.0 leaves nothing for what is not accounted for: expect "
                    "out-of-memory errors",
                    proposals=(Proposal(changes={"cache.gpu_memory_utilization": 0.95}),),
                    is_warning=True,
                )
            )


def _stores_latent(layers: list[Layer]) -> bool:
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
