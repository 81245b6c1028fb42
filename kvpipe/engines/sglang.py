"""SGLang 0.5.23: a pool of tokens, one of windows beside it, one of states.

Source: the wheel's planner, read and run against these rules (docs/engines.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from kvpipe.engines import sglang_log as log
from kvpipe.engines import sglang_sizes as sizes
from kvpipe.engines.planned import (
    PlannedEngine,
    PlannedOptions,
    Pools,
    Question,
    RankQuestion,
    Start,
    Step,
    free_at_start,
    larger_shares,
    weights,
)
from kvpipe.engines.pools import EnginePool, EveryToken, LastTokens, PerRequest
from kvpipe.engines.sglang_fraction import StepSizes, static_fraction, step_sizes
from kvpipe.engines.sglang_start import Settings, launch_line
from kvpipe.engines.stored import Stored, StoredRow, stored
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.text.figures import GIB, MIB


class SGLang(PlannedEngine):
    """Options: the engine's own settings; auto is its own default."""

    class Options(PlannedOptions):
        mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"]
        page_size: Annotated[int, Field(ge=1, le=1024)]
        max_total_tokens: Annotated[int, Field(ge=1)] | Literal["auto"]
        swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1)]
        mamba_full_memory_ratio: Annotated[float, Field(gt=0)]
        mamba_ssm_dtype: Literal["auto", "float32", "bfloat16"]
        max_mamba_cache_size: Annotated[int, Field(ge=1)] | Literal["auto"]
        cuda_graphs: bool

    options: Options
    title: ClassVar[str] = "SGLang 0.5.23"
    source: ClassVar[str] = "the planner in its wheel, run over thousands of cases"
    cache_types: ClassVar[tuple[str, ...]] = ("fp8",)
    differs: ClassVar[str] = (
        "a share of the memory that is free before loading, cut at the start into a pool of tokens "
        "and, beside it, one of windows and one of states, which cannot lend to each other"
    )

    # --- memory -> budget ---
    def budget_steps(self, question: Question, rank: RankQuestion) -> Iterator[Step]:
        """What is free after loading, less the part of what was free before that is not static."""
        free = free_at_start(
            question, "free before loading", "the driver's and the libraries' memory"
        )
        before = free.num_bytes
        fraction, chosen = self._fraction(question, rank)
        slack = before / GIB * (1 - fraction)
        rest = int(((before - rank.weight_bytes) / GIB - slack) * GIB)
        yield free
        yield weights(rank)
        yield Step(
            name="kept for steps and graphs",
            num_bytes=rest - (before - rank.weight_bytes),
            how=chosen,
            mark="checked",
            source=f"1 - mem_fraction_static={fraction} of what was free before loading",
        )

    def proposals(self, question: Question) -> Iterator[Sequence[Mapping[str, Any]]]:
        if question.cache_bytes is None:
            asked, _ = self._fraction(question, question.ranks[0])
            yield larger_shares("mem_fraction_static", asked)
        if question.prefix_caching:
            yield [{"cache.enable_prefix_caching": False}]
        for key, value, most in (
            ("swa_full_tokens_ratio", self.options.swa_full_tokens_ratio, 1.0),
            ("mamba_full_memory_ratio", self.options.mamba_full_memory_ratio, 8.0),
        ):
            ratios = (round(value + step / 10, 2) for step in range(1, 80))
            yield [{f"engine.{key}": ratio} for ratio in ratios if ratio <= most]

    def _fraction(self, question: Question, rank: RankQuestion) -> tuple[float, str]:
        asked = self.options.mem_fraction_static
        if asked != "auto":
            return asked, "set"
        found = static_fraction(
            self.steps(question),
            question.card.total_bytes / MIB,
            tp=question.tp,
            pp=question.pp,
            is_latent=stored(rank.layers, self.title).has_latent,
            graphs=self.options.cuda_graphs,
        )
        return found, "estimated"

    def steps(self, question: Question) -> StepSizes:
        return step_sizes(
            question.card.total_bytes / MIB, question.tp, question.batched_tokens, question.requests
        )

    # --- budget -> pools ---
    def pools(self, question: Question, rank: RankQuestion, budget: int) -> Pools:
        layers = stored(rank.layers, self.title)
        if len(layers.windows) > 1:
            found = " and ".join(f"{window:,}" for window in layers.windows)
            raise _refused("one window size for all windowed layers", f"windows of {found} tokens")
        states = self._states(question, layers, budget) if layers.states else ()
        left = budget - sum(pool.num_bytes + pool.spare_bytes for pool in states)
        tokens = tuple(self._tokens(question, layers, left))
        if not all(pool.count for pool in (*tokens, *states)):
            raise DoesNotFit(
                f"engine.name: {self.title} has {budget / GIB:.2f} GiB for its pools, and one of "
                "them gets nothing",
                available_bytes=(budget,),
            )
        slots = states[0].count if states else None
        per_request = self._slots_per_request(question) if states else 1
        running = sizes.max_running_requests(
            tokens[0].count if tokens else question.length,  # a model of states alone
            question.length,
            asked=self._requests(question),
            slots=slots,
            per_request=per_request,
        )
        if slots is not None and running < 1:
            raise DoesNotFit(
                f"engine.name: {self.title} keeps {per_request} states a request and has {slots} "
                "slots",
                available_bytes=(budget,),
            )
        notes: tuple[str, ...] = ()
        if layers.windows:
            notes = (
                "SGLang keeps windows in a pool of their own for the architectures that it lists "
                "as hybrid; other models keep every token of every layer",
            )
        return Pools(pools=(*tokens, *states), max_requests=running, notes=notes)

    def _requests(self, question: Question) -> int | None:
        if question.requests is not None:
            return question.requests
        return sizes.SPECULATIVE_REQUESTS if question.draft_tokens else None

    def _slots_per_request(self, question: Question) -> int:
        return sizes.slots_per_request(question.prefix_caching)

    def _states(self, question: Question, layers: Stored, budget: int) -> tuple[EnginePool, ...]:
        dtype = self.options.mamba_ssm_dtype
        ssm = (question.model.ssm_dtype or "float32") if dtype == "auto" else dtype
        state = sum(layer.num_bytes(ssm) for layer in layers.states)
        each = self._slots_per_request(question)
        pool = sizes.state_pool(
            budget,
            state,
            ratio=self.options.mamba_full_memory_ratio,
            per_request=each,
            requests=self._requests(question),
            slots=self._set_slots(question),
            draft_tokens=question.draft_tokens,
        )
        return (
            EnginePool(
                name="states",
                unit="slot",
                count=max(0, pool.slots),
                unit_bytes=state,
                spare_bytes=pool.charged_bytes - max(0, pool.slots) * state,
                demand=PerRequest(each=each),
                mark="checked",
                rule=f"{self.options.mamba_full_memory_ratio} times the bytes of tokens, {each} "
                f"slots a request, scan states in {ssm}",
            ),
        )

    def _set_slots(self, question: Question) -> int | None:
        if self.options.max_mamba_cache_size != "auto":
            return self.options.max_mamba_cache_size
        return None if question.prefix_caching else self._requests(question)

    def _tokens(self, question: Question, layers: Stored, budget: int) -> Iterator[EnginePool]:
        """The pool of full layers, and that of windows."""
        page = self.options.page_size
        full = _cell(layers.full)
        if not layers.windows:
            if not layers.full:
                return
            full += sizes.draft_cell(full, len(layers.full), question.draft_layers)
            count = self._at_most(sizes.full_tokens(budget, full, page))
            yield _full_pool(count, full, page, "what is left, over the bytes of a token")
            return
        (window, rows), *_ = layers.windows.items()
        both = self._two_pools(question, full, _cell(rows), window, budget)
        if layers.full and self._at_most(both.full) < both.full:
            wanted = f"auto, or at least {both.full:,} tokens: what becomes of windows was not read"
            raise ConfigError(
                Problem("engine.max_total_tokens", wanted, f"{self.options.max_total_tokens:,}")
            )
        if layers.full:
            yield _full_pool(both.full, full, page, "what both pools of tokens get, by the ratio")
        if layers.full and window + page >= both.window:
            raise DoesNotFit(
                f"engine.name: {self.title} refuses a window pool of {window + page:,} tokens or "
                f"less, and {both.window:,} fit in {budget / GIB:.2f} GiB",
                available_bytes=(budget,),
            )
        yield EnginePool(
            name=f"window {window:,}",
            unit="token",
            count=both.window,
            unit_bytes=_cell(rows),
            spare_bytes=page * _cell(rows),
            demand=LastTokens(
                window=window,
                late=sizes.EVICTION_INTERVAL,
                chunk=self.steps(question).chunk,
                page=page,
            ),
            mark="checked",
            rule=f"{self.options.swa_full_tokens_ratio} of the full layers' tokens",
        )

    def _at_most(self, count: int) -> int:
        """max_total_tokens only lowers it, in whole pages."""
        most, page = self.options.max_total_tokens, self.options.page_size
        return count if most == "auto" else min(count, most) // page * page

    def _two_pools(
        self, question: Question, full: int, rows: int, window: int, budget: int
    ) -> sizes.TwoPools:
        page, requests = self.options.page_size, self._requests(question)
        if full and not question.prefix_caching and requests is not None:
            cap = sizes.window_for_requests(
                requests,
                window=window,
                chunk=self.steps(question).chunk,
                page=page,
                draft_tokens=question.draft_tokens,
            )
            return sizes.capped_pools(budget, full, rows, cap, page)
        return sizes.two_pools(budget, full, rows, self.options.swa_full_tokens_ratio, page)

    # --- what it prints, how it starts ---
    def printed(self, question: Question, pools: Pools) -> tuple[str, ...]:
        """Of the first rank."""
        layers = stored(question.ranks[0].layers, self.title)
        by_name = {f"window {window:,}": rows for window, rows in layers.windows.items()}
        by_name["tokens"] = layers.full
        states = [pool for pool in pools.pools if pool.unit == "slot"]
        tokens = [pool for pool in pools.pools if pool.unit == "token"]
        lines = [log.states_line(pool, layers.states) for pool in states]
        lines += [
            log.tokens_line(pool, by_name[pool.name], self.options.page_size) for pool in tokens
        ]
        if tokens:
            chunk = self.steps(question).chunk
            lines.append(log.last_line(tokens[0].count, chunk, pools.max_requests, question.length))
        return tuple(lines)

    def start(self, question: Question, pools: Pools) -> Start:
        settings = Settings(
            chunk=self.steps(question).chunk,
            fraction=self.options.mem_fraction_static,
            page=self.options.page_size,
            window_ratio=self.options.swa_full_tokens_ratio,
        )
        return Start(command=launch_line(question, pools, settings), mark="read")


def _cell(rows: Sequence[StoredRow]) -> int:
    return sum(row.num_bytes for row in rows)


def _full_pool(count: int, cell: int, page: int, rule: str) -> EnginePool:
    return EnginePool(
        name="tokens",
        unit="token",
        count=count,
        unit_bytes=cell,
        spare_bytes=page * cell,
        demand=EveryToken(page=page),
        mark="checked",
        rule=f"{rule}, in pages of {page}",
    )


def _refused(expected: str, got: str) -> ConfigError:
    return ConfigError(Problem("engine.name", f"{expected} (SGLang)", got))


PLUGIN = SGLang
