"""TensorRT-LLM (PyTorch backend, the first cache manager): blocks, a pool for each window.

Source: `_util.py`, `llm_args.py` and `resource_manager.py`, read at several commits of 2026 and not
run; no release number could be attached (docs/engines.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import Self

from kvpipe.engines.planned import (
    PlannedEngine,
    PlannedOptions,
    Pools,
    Question,
    RankQuestion,
    Start,
    Step,
    free_at_start,
    halvings,
    kept_free,
    larger_shares,
    weights,
)
from kvpipe.engines.pools import BlocksOf, EnginePool
from kvpipe.engines.stored import Stored, stored
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.text.figures import GIB, count

LEAST_BATCH = 64
# Compute capabilities whose tensor cores multiply numbers of so few bits.
_FP4, _FP8 = (10, 0), (8, 9)
_CACHE_DTYPES = {
    "nvfp4": "nvfp4",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "bfloat16": "auto",
    "float16": "auto",
}


class TensorRTLLM(PlannedEngine):
    class Options(PlannedOptions):
        free_gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)]
        tokens_per_block: Annotated[int, Field(ge=1, le=1024)]
        max_num_tokens: Annotated[int, Field(ge=1, lt=2**24)]
        max_batch_size: Annotated[int, Field(ge=1, lt=2**20)]
        window_shares: list[Annotated[float, Field(gt=0, le=1)]] | None
        enable_block_reuse: bool

    options: Options
    title: ClassVar[str] = "TensorRT-LLM (2026, V1 cache)"
    source: ClassVar[str] = "its source at commits of 2026, read; not run"
    differs: ClassVar[str] = (
        "a share of what a profiled step leaves; with windows, as many bytes for each window size, "
        "whatever a request needs of it"
    )

    cache_types: ClassVar[tuple[str, ...]] = ("fp8", "nvfp4")

    def asked(self, question: Question) -> Self:
        """ConfigError also for FP4 on a card that has no arithmetic of four bits."""
        engine = super().asked(question)
        capability = question.card.compute_capability
        if question.cache_dtype == "nvfp4" and capability is not None and capability < _FP4:
            expected = (
                f"a type that {question.card.name} computes with: nvfp4 needs compute capability "
                f"{_FP4[0]}.{_FP4[1]} (inferred)"
            )
            got = f"'nvfp4' on {capability[0]}.{capability[1]}"
            knob = "cache.cache_dtype=fp8" if capability >= _FP8 else "cache.cache_dtype=auto"
            raise ConfigError(Problem("cache.cache_dtype", expected, got, knob))
        return engine

    # --- memory -> budget ---
    def budget_steps(self, question: Question, rank: RankQuestion) -> Iterator[Step]:
        tokens = question.batched_tokens or self.options.max_num_tokens
        peak = question.activations(tokens, self._requests(question))
        total = free_at_start(question, "total", "the driver's and the libraries' memory")
        free = total.num_bytes - rank.weight_bytes - peak
        yield total
        yield weights(rank)
        yield Step(
            name="peak of a step",
            num_bytes=-peak,
            how="estimated",
            mark="inferred",
            source=f"{tokens:,} tokens; the engine measures it in a profiled step",
        )
        yield kept_free(free, self.options.free_gpu_memory_fraction, "free_gpu_memory_fraction")

    def proposals(self, question: Question) -> Iterator[Sequence[Mapping[str, Any]]]:
        yield larger_shares("free_gpu_memory_fraction", self.options.free_gpu_memory_fraction)
        for name, asked in (
            ("batched_tokens", question.batched_tokens or self.options.max_num_tokens),
            ("seqs", self._requests(question)),
        ):
            yield [{f"scheduler.max_num_{name}": n} for n in halvings(asked, LEAST_BATCH)]

    def _requests(self, question: Question) -> int:
        return question.requests or self.options.max_batch_size

    # --- budget -> pools ---
    def pools(self, question: Question, rank: RankQuestion, budget: int) -> Pools:
        layers = stored(rank.layers, self.title)
        if layers.states:
            expected = "attention alone: how this engine sizes states has not been read in full"
            raise ConfigError(Problem("engine.name", expected, layers.states[0].name))
        found = tuple(self._pools(question, layers, budget))
        alone = sum(pool.demand.units(1, question.length, True) * pool.unit_bytes for pool in found)
        if any(not pool.holds(1, question.length, True) for pool in found):
            raise DoesNotFit(
                f"scheduler.max_model_len: one sequence of {question.length:,} tokens needs "
                f"{alone / GIB:.2f} GiB, and {self.title} has {budget / GIB:.2f} GiB in "
                f"{count(len(found), 'pool')}: it would shrink its windows",
                needed_bytes=(int(alone),),
                available_bytes=(budget,),
            )
        return Pools(pools=found, max_requests=self._requests(question))

    def _pools(self, question: Question, layers: Stored, budget: int) -> Iterator[EnginePool]:
        """Ascending windows; a layer that keeps every token has the longest length as its own."""
        word = question.cache_dtype
        sizes = {window: rows for window, rows in sorted(layers.windows.items())}
        widths: dict[int | None, int] = {
            window: sum(row.bytes_as(word) for row in rows) for window, rows in sizes.items()
        }
        if layers.full:
            widths[None] = sum(row.bytes_as(word) for row in layers.full)
        block = self.options.tokens_per_block
        for (window, width), share in zip(widths.items(), self._shares(len(widths)), strict=True):
            yield EnginePool(
                name="tokens" if window is None else f"window {window:,}",
                unit=f"block of {block}",
                count=int(budget * share / width // block),
                unit_bytes=width * block,
                demand=BlocksOf(size=block, window=window),
                mark="read",
                rule=f"{share:.2f} of the bytes"
                if len(widths) > 1
                else "all of the bytes, in whole blocks",
            )

    def _shares(self, windows: int) -> list[float]:
        asked = self.options.window_shares
        if asked is None:
            return [1 / windows] * windows
        if len(asked) != windows or abs(sum(asked) - 1) > 1e-6:
            expected = f"{windows} shares that add up to 1, the shortest window first"
            raise ConfigError(Problem("engine.window_shares", expected, str(asked)))
        return asked

    # --- what it prints, how it starts ---
    def printed(self, question: Question, pools: Pools) -> tuple[str, ...]:
        block = self.options.tokens_per_block
        return tuple(
            f"Allocated {pool.num_bytes / GIB:.2f} GiB for max tokens in paged KV cache "
            f"({pool.count * block})."
            for pool in pools.pools
        )

    def start(self, question: Question, pools: Pools) -> Start:
        options, lines = self.options, ["kv_cache_config:"]
        lines.append(f"  free_gpu_memory_fraction: {options.free_gpu_memory_fraction}")
        lines.append(f"  tokens_per_block: {options.tokens_per_block}")
        lines.append(f"  enable_block_reuse: {str(options.enable_block_reuse).lower()}")
        if len(pools.pools) == 1:
            lines.append(f"  max_tokens: {pools.pools[0].count * options.tokens_per_block}")
        lines.append(f"  dtype: {_CACHE_DTYPES.get(question.cache_dtype, 'auto')}")
        words = ["trtllm-serve", question.model_word, "--tp_size", str(question.tp)]
        words += ["--pp_size", str(question.pp)] if question.pp > 1 else []
        words += ["--max_seq_len", str(question.length)]
        words += ["--max_batch_size", str(self._requests(question))]
        words += ["--max_num_tokens", str(question.batched_tokens or options.max_num_tokens)]
        words += ["--extra_llm_api_options", "kv_cache.yaml"]
        text = "\n".join(lines) + "\n"
        return Start(command=shlex.join(words), mark="inferred", files={"kv_cache.yaml": text})


PLUGIN = TensorRTLLM
