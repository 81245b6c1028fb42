"""transformers 5.24 continuous batching: sectors, of which every attention type takes whole ones.

Source: the wheel, run against these rules (docs/engines.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvpipe.engines.planned import (
    PlannedEngine,
    PlannedOptions,
    Pools,
    Question,
    RankQuestion,
    Start,
    Step,
    halvings,
    kept_free,
    weights,
)
from kvpipe.engines.pools import BlocksOf, EnginePool, Shared
from kvpipe.engines.stored import Stored, StoredRow, stored
from kvpipe.engines.transformers_sizes import SPARE_SECTORS, Batch, Sector, num_sectors, sector_of
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.specs.base import DTYPE_BYTES, CacheLayer
from kvpipe.text.figures import GIB

LEAST_BATCH = 256  # tokens


class TransformersBatching(PlannedEngine):
    class Options(PlannedOptions):
        max_memory_percent: Annotated[float, Field(gt=0, le=1)]
        max_batch_tokens: Annotated[int, Field(ge=1, lt=2**24)]
        max_requests_per_batch: Annotated[int, Field(ge=1, lt=2**20)]
        page_size: Annotated[int, Field(ge=4, lt=2**16)]
        decode_blocks: Annotated[int, Field(ge=0, lt=2**16)]
        flash: bool
        use_async_batching: bool

    options: Options
    title: ClassVar[str] = "transformers 5.24.0"
    source: ClassVar[str] = "its continuous batching, started on a CPU in 40 cases"
    differs: ClassVar[str] = (
        "one pool of sectors that full and windowed layers take whole (as Jenga), beside the "
        "buffers of a step that grow with it"
    )
    more_cards = ("tensor_parallel_size",)

    def budget_steps(self, question: Question, rank: RankQuestion) -> Iterator[Step]:
        """A share of what is not in use: the step's buffers come out of it, too."""
        free = question.card.total_bytes - rank.weight_bytes
        yield Step(
            name="total",
            num_bytes=question.card.total_bytes,
            how=question.card.how,
            mark="read",
            source=question.card.name,
        )
        yield weights(rank)
        yield kept_free(free, self.options.max_memory_percent, "max_memory_percent", "checked")

    def proposals(self, question: Question) -> Iterator[Sequence[Mapping[str, Any]]]:
        asked = question.batched_tokens
        key = "engine.max_batch_tokens" if asked is None else "scheduler.max_num_batched_tokens"
        yield [{key: n} for n in halvings(asked or self.options.max_batch_tokens, LEAST_BATCH)]

    def pools(self, question: Question, rank: RankQuestion, budget: int) -> Pools:
        layers = stored(_unshared(rank.layers), self.title)
        _check(layers)
        sector = self._sector(layers)
        batch = self._batch(question, layers)
        count = num_sectors(budget, sector, batch, bool(layers.windows))
        if not count:
            raise DoesNotFit(
                f"engine.max_batch_tokens: a step of {batch.tokens:,} tokens and the first sector "
                f"need more than the {budget / GIB:.2f} GiB of transformers",
                available_bytes=(budget,),
            )
        window = next(iter(layers.windows), None)
        parts = {"full": BlocksOf(size=sector.page)}
        if window is not None:
            parts["sliding"] = BlocksOf(size=sector.page, window=window)
        pool = EnginePool(
            name="sectors",
            unit="sector",
            count=count,
            unit_bytes=sector.num_bytes,
            spare_bytes=SPARE_SECTORS * sector.num_bytes,
            demand=Shared(parts=tuple((parts[name], n) for name, n in sector.blocks.items())),
            mark="checked",
            rule="what the buffers of a step leave; a sector is the least common multiple of the "
            f"types' blocks of {sector.page} tokens",
        )
        limit = min(self.options.max_requests_per_batch, batch.tokens)
        return Pools(pools=(pool,), max_requests=min(limit, question.requests or limit))

    def _sector(self, layers: Stored) -> Sector:
        rows = {"full": layers.full} if layers.full else {}
        for found in layers.windows.values():
            rows["sliding"] = found
        page = self.options.page_size
        sizes = {name: page * sum(row.num_bytes for row in each) for name, each in rows.items()}
        return sector_of(sizes, page)

    def _batch(self, question: Question, layers: Stored) -> Batch:
        row = _first(layers)
        keys = row.arrays[0]
        model = question.model
        return Batch(
            tokens=question.batched_tokens or self.options.max_batch_tokens,
            requests=self.options.max_requests_per_batch,
            hidden=model.hidden_size,
            vocab=model.vocab_size,
            heads=max(1, model.num_attention_heads // question.tp),
            kv_heads=keys.num_heads,
            head_size=keys.width,
            activation=DTYPE_BYTES[question.served_dtype],
            flash=self.options.flash,
            is_async=self.options.use_async_batching,
            decode_blocks=self.options.decode_blocks if self.options.flash else 0,
        )

    def printed(self, question: Question, pools: Pools) -> tuple[str, ...]:
        return ()  # nothing about its capacity, at the level of a server's log

    def start(self, question: Question, pools: Pools) -> Start:
        """It is a Python class: the settings that give the plan."""
        options = self.options
        count = pools.pools[0].count
        text = (
            "from transformers.generation import ContinuousBatchingConfig\n"
            "config = ContinuousBatchingConfig(\n"
            f"    max_memory_percent={options.max_memory_percent},\n"
            f"    max_batch_tokens={question.batched_tokens or options.max_batch_tokens},\n"
            f"    max_requests_per_batch={options.max_requests_per_batch},\n"
            f"    page_size={options.page_size},\n"
            ")\n"
            f"# {count} sectors of {pools.pools[0].unit_bytes} bytes\n"
        )
        words = ["transformers", "serve", question.model_word, "--continuous-batching"]
        return Start(command=shlex.join(words), mark="inferred", files={"batching.py": text})


def _first(layers: Stored) -> StoredRow:
    return layers.full[0] if layers.full else next(iter(layers.windows.values()))[0]


def _unshared(layers: Sequence[CacheLayer]) -> list[CacheLayer]:
    """It goes by the types of the layers alone: one that reads another's K and V has pages, too."""
    return [replace(layer, shares_with=None) for layer in layers]


def _check(layers: Stored) -> None:
    wrong = ""
    if layers.states:
        wrong = f"a state in {layers.states[0].name}"
    elif layers.has_latent:
        wrong = f"latent rows in {layers.full[0].name}"
    elif len(layers.windows) > 1:
        wrong = f"windows of {' and '.join(map(str, layers.windows))} tokens"
    if wrong:
        expected = "full and sliding attention of one window (transformers refuses others)"
        raise ConfigError(Problem("engine.name", expected, wrong))


PLUGIN = TransformersBatching
