"""llama.cpp (llama-server): a context of cells, as many as its sequences need.

Source: ggml-org/llama.cpp@0c1e57098, read; its cells, windows, types and rows of states were held
against contexts of b64739e, started on a CPU (docs/engines.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from kvpipe.engines.llama_cpp_printed import CachePrinted, StatesPrinted, lines
from kvpipe.engines.llama_cpp_sizes import MOST_SEQUENCES, Context, context_of
from kvpipe.engines.llama_cpp_types import BLOCK_BYTES, CacheType, is_quantised, row_bytes, stores
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
    weights,
)
from kvpipe.engines.pools import Demand, EnginePool, EveryToken, LastTokens, PerRequest
from kvpipe.engines.stored import Stored, StoredRow, stored
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.specs.edges import largest
from kvpipe.text.figures import GIB
from kvpipe.text.quantities import Bytes

MARGIN = GIB  # that automatic fitting leaves on a device
LOGIT_BYTES = 4


class LlamaCpp(PlannedEngine):
    """Options: flags of llama-server; auto sequences: as many as fit."""

    class Options(PlannedOptions):
        type_k: CacheType
        type_v: CacheType
        n_parallel: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | Literal["auto"]
        n_ubatch: Annotated[int, Field(ge=1, lt=2**20)]
        kv_unified: bool
        swa_full: bool
        flash_attn: bool
        compute_buffer_bytes: Bytes | Literal["auto"]

    options: Options
    title: ClassVar[str] = "llama.cpp 0c1e57098"
    source: ClassVar[str] = "contexts of b64739e, started on a CPU; 0c1e57098, read"
    differs: ClassVar[str] = (
        "a context of cells, allocated whole at the start for a fixed number of sequences; its own "
        "default is 4 of them, the plan has as many as fit"
    )
    smaller_weights = ("q8_0", "q4_k_m")
    more_cards = ("pipeline_parallel_size",)

    cache_types: ClassVar[tuple[str, ...]] = tuple(filter(is_quantised, BLOCK_BYTES))

    def asked(self, question: Question) -> Self:
        """cache.cache_dtype=q8_0 is both of its types."""
        super().asked(question)
        word = question.cache_dtype
        if word not in self.cache_types:
            return self
        return type(self)(self.options.model_copy(update={"type_k": word, "type_v": word}))

    # --- memory -> budget ---
    def budget_steps(self, question: Question, rank: RankQuestion) -> Iterator[Step]:
        asked = self.options.compute_buffer_bytes
        yield free_at_start(question, "free", "the driver's memory")
        yield weights(rank, "inferred", "; a GGUF of another type has its own size")
        yield Step(
            name="compute buffers",
            num_bytes=-(self._compute_bytes(question) if asked == "auto" else asked),
            how="estimated" if asked == "auto" else "set",
            mark="inferred",
            source=f"at least the logits of {self.options.n_ubatch} tokens; the log prints them "
            "(engine.compute_buffer_bytes)",
        )
        yield Step(
            name="margin",
            num_bytes=-MARGIN,
            how="exact",
            mark="read",
            source="what automatic fitting leaves on a device",
        )

    def _compute_bytes(self, question: Question) -> int:
        """The logits are the least of it; at worst the widest layer's arrays live beside them."""
        tokens = self.options.n_ubatch
        logits = tokens * question.model.vocab_size * LOGIT_BYTES
        return logits + (question.activations(tokens, 1) if question.end == "low" else 0)

    def proposals(self, question: Question) -> Iterator[Sequence[Mapping[str, Any]]]:
        kinds = [kind for kind in ("q8_0", "q4_0") if kind != self.options.type_k]
        yield [{"engine.type_k": kind, "engine.type_v": kind} for kind in kinds]
        if self.options.n_parallel != "auto":
            yield [{"engine.n_parallel": n} for n in halvings(self.options.n_parallel)]

    # --- budget -> pools ---
    def pools(self, question: Question, rank: RankQuestion, budget: int) -> Pools:
        layers = stored(rank.layers, self.title)
        self._check(question, layers)
        context = self._context(question, layers, budget)
        found = [*self._cells(layers, context), *_states(layers, context)]
        return Pools(
            pools=tuple(found),
            max_requests=context.sequences,
            context=context.cells,
            notes=(f"context: {context.n_ctx:,} cells for {context.sequences:,} sequences",),
        )

    def _check(self, question: Question, layers: Stored) -> None:
        options, problems = self.options, []
        if question.tp > 1:
            problems.append(
                Problem(
                    "parallel.tensor_parallel_size",
                    "1 (llama.cpp splits layers over devices: parallel.pipeline_parallel_size)",
                    str(question.tp),
                )
            )
        if question.cache_dtype.startswith("fp8"):
            problems.append(
                Problem(
                    "cache.cache_dtype",
                    "auto: llama.cpp has no fp8 cache",
                    f"'{question.cache_dtype}'",
                    "set cache.cache_dtype=q8_0 (or engine.type_k and engine.type_v)",
                )
            )
        if is_quantised(options.type_v) and not options.flash_attn:
            problems.append(
                Problem("engine.flash_attn", f"true, since type_v={options.type_v}", "false")
            )
        problems += self._unstorable([*layers.full, *_flat(layers)])
        if problems:
            raise ConfigError(problems)

    def _unstorable(self, rows: Sequence[StoredRow]) -> Iterator[Problem]:
        """Widths that a type cannot store, each once; rows that are no numbers of the model."""
        seen: set[tuple[str, int]] = set()
        for row in rows:
            for array in row.arrays:
                key = "engine.type_v" if array.name == "v" else "engine.type_k"
                name = self._type(array.name)
                if array.dtype == "uint8":
                    yield Problem("engine.name", "K, V or latent rows (llama.cpp)", row.name)
                    return
                if not stores(array.width, name) and (key, array.width) not in seen:
                    seen.add((key, array.width))
                    yield Problem(
                        key, f"f16, bf16 or f32 for heads of {array.width} numbers", f"'{name}'"
                    )

    def _type(self, array: str) -> str:
        return self.options.type_v if array == "v" else self.options.type_k

    def _row(self, row: StoredRow) -> int:
        return sum(row_bytes(a.num_heads * a.width, self._type(a.name)) for a in row.arrays)

    def _context(self, question: Question, layers: Stored, budget: int) -> Context:
        """As many sequences as fit, or those that were set."""
        asked = self.options.n_parallel
        if asked == "auto" and question.requests is not None:
            asked = min(question.requests, MOST_SEQUENCES)
        if asked != "auto":
            context = self._for(asked, question, layers)
            if self._bytes(layers, context) > budget:
                raise self._too_small(context, layers, budget)
            return context

        def fits(sequences: int) -> bool:
            return self._bytes(layers, self._for(sequences, question, layers)) <= budget

        most = largest(1, MOST_SEQUENCES, fits)
        if most is None:
            raise self._too_small(self._for(1, question, layers), layers, budget)
        return self._for(most, question, layers)

    def _for(self, sequences: int, question: Question, layers: Stored) -> Context:
        return context_of(
            sequences,
            question.length,
            tuple(layers.windows),
            unified=self.options.kv_unified,
            ubatch=self.options.n_ubatch,
            whole=self.options.swa_full,
        )

    def _bytes(self, layers: Stored, context: Context) -> int:
        pools = [*self._cells(layers, context), *_states(layers, context)]
        return sum(pool.num_bytes for pool in pools)

    def _too_small(self, context: Context, layers: Stored, budget: int) -> DoesNotFit:
        needed = self._bytes(layers, context)
        return DoesNotFit(
            f"engine.n_parallel: {context.sequences:,} sequences need {needed / GIB:.2f} GiB of "
            f"cells in llama.cpp, {budget / GIB:.2f} GiB are left",
            needed_bytes=(needed,),
            available_bytes=(budget,),
        )

    def _cells(self, layers: Stored, context: Context) -> Iterator[EnginePool]:
        how = "one stream" if context.unified else f"{context.streams:,} streams"
        if layers.full:
            yield EnginePool(
                name="cells",
                unit="cell",
                count=context.n_ctx,
                unit_bytes=sum(map(self._row, layers.full)),
                demand=_demand(context, context.cells, EveryToken()),
                mark="checked",
                rule=f"n_ctx in {how}, padded to 256; K {self.options.type_k}, V "
                f"{self.options.type_v}",
            )
        for window, rows in layers.windows.items():
            cells = context.windows[window]
            whole = EveryToken() if self.options.swa_full else LastTokens(window=window)
            yield EnginePool(
                name=f"window {window:,}",
                unit="cell",
                count=cells * context.streams,
                unit_bytes=sum(map(self._row, rows)),
                demand=_demand(context, cells, whole),
                mark="checked",
                rule="every cell (--swa-full)"
                if self.options.swa_full
                else f"windows of the sequences and {self.options.n_ubatch} tokens in flight",
            )

    # --- what it prints, how it starts ---
    def printed(self, question: Question, pools: Pools) -> tuple[str, ...]:
        """Of all devices together, as it does. States are counted by the rows of every layer."""
        layers = stored(question.layers, self.title)
        context = self._for(pools.max_requests or 1, question, layers)
        caches = [(context.cells, layers.full)] if layers.full else []
        caches += [(context.windows[window], rows) for window, rows in layers.windows.items()]
        found = [self._cache(context, cells, rows) for cells, rows in caches]
        return lines([*found, *_states_printed(layers, context, question.model.num_layers)])

    def _cache(self, context: Context, cells: int, rows: Sequence[StoredRow]) -> CachePrinted:
        arrays = [array for row in rows for array in row.arrays]
        width = {"k": 0, "v": 0}
        for array in arrays:
            width["v" if array.name == "v" else "k"] += row_bytes(
                array.num_heads * array.width, self._type(array.name)
            )
        held = cells * context.streams
        return CachePrinted(
            cells=cells,
            layers=len(rows),
            sequences=context.sequences,
            streams=context.streams,
            type_k=self.options.type_k,
            type_v=self.options.type_v,
            keys=held * width["k"],
            values=held * width["v"],
        )

    def start(self, question: Question, pools: Pools) -> Start:
        options, sequences = self.options, pools.max_requests or 1
        cells = pools.context or question.length
        n_ctx = cells if options.kv_unified else cells * sequences
        words = ["llama-server", *_file(question), "--ctx-size", str(n_ctx)]
        words += ["--parallel", str(sequences)]
        words += ["--kv-unified" if options.kv_unified else "--no-kv-unified"]
        words += ["--ubatch-size", str(options.n_ubatch), "--gpu-layers", "999"]
        words += ["--cache-type-k", options.type_k, "--cache-type-v", options.type_v]
        words += ["--flash-attn", "on" if options.flash_attn else "off"]
        words += ["--swa-full"] if options.swa_full else []
        return Start(command=shlex.join(words), mark="read")


def _file(question: Question) -> list[str]:
    """The file, the repository of files, or a name that such a file might have."""
    word = question.model_word
    if word.endswith(".gguf"):
        return ["--model", word]
    if word.partition(":")[0].lower().endswith("gguf") and word.count("/") == 1:
        return ["--hf-repo", word]
    return ["--model", f"{question.model.name.rpartition('/')[2]}.gguf"]


def _demand(context: Context, cells: int, shared: Demand) -> Demand:
    """A sequence of its own stream has all of its cells."""
    return shared if context.unified else PerRequest(each=cells)


def _flat(layers: Stored) -> list[StoredRow]:
    return [row for rows in layers.windows.values() for row in rows]


def _states_printed(layers: Stored, context: Context, num_layers: int) -> Iterator[StatesPrinted]:
    if layers.states:
        yield StatesPrinted(
            rows=context.sequences,
            layers=num_layers,
            convolution=context.sequences * 4 * sum(s.conv_numbers for s in layers.states),
            scan=context.sequences * 4 * sum(s.numbers - s.conv_numbers for s in layers.states),
        )


def _states(layers: Stored, context: Context) -> Iterator[EnginePool]:
    if layers.states:
        yield EnginePool(
            name="states",
            unit="row",
            count=context.sequences,
            unit_bytes=sum(state.numbers for state in layers.states) * 4,
            demand=PerRequest(),
            mark="checked",
            rule="one row a sequence, in float32",
        )


PLUGIN = LlamaCpp
