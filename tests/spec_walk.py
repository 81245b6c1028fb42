"""What a spec says of itself, held token by token against what its paper lets a query read.

`problems(spec)` walks one instance; nothing here knows which kinds there are. The oracle is
`visible`: everything else that a spec answers is arithmetic over blocks, and is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from typing import Any

from block_models import Setting, Tenant, ValueModel, config_of, full

from kvpipe.blocks import BlockManager
from kvpipe.errors import SpecError
from kvpipe.specs.answers import held_at
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.runs import indices, num_indices

MODES = ("none", "align", "all")
LENGTHS, BATCHES = (1, 17, 50), (1, 5, 12)
ENCODER_TOKENS = 7
WALKED = 160  # tokens: several periods of every example


def called(spec: KVCacheSpec) -> str:
    """The kind, and the numbers that matter."""
    sizes = [f"{name}={size}" for name, size in (spec.bound.sizes if spec.bound else {}).items()]
    return " ".join([f"{spec.kind} in blocks of {spec.block_size}", *sizes])


def limits_of(spec: KVCacheSpec, lookahead: int = 0) -> Iterator[RequestLimits]:
    for length, batch in product(LENGTHS, BATCHES):
        for mode in MODES if spec.is_state else MODES[:1]:
            yield RequestLimits(
                max_model_len=length,
                max_num_batched_tokens=batch,
                max_encoder_tokens=ENCODER_TOKENS,
                num_lookahead_tokens=lookahead,
                mamba_cache_mode=mode,
            )


def steps(limits: RequestLimits) -> Iterator[tuple[int, int]]:
    """(computed, new): from every length the shortest steps, and the longest."""
    for computed in range(limits.max_model_len):
        most = min(limits.tokens_in_flight, limits.max_model_len - computed)
        for new in sorted({1, min(2, most), most}):
            yield computed, new


def problems(spec: KVCacheSpec) -> Iterator[str]:
    """Everything that is wrong with a spec, a line each: what it is, and which block."""
    for check in (_resident, _survives, _written, _bounds, _steady, _rhythm, _hits, _kin, _managed):
        try:
            yield from (f"{called(spec)}: {problem}" for problem in check(spec))
        except AssertionError as error:
            yield f"{called(spec)}, block manager: {error}"


def first_problem(spec: KVCacheSpec) -> str:
    return next(problems(spec), "")


# --- one question after the other ----------------------------------------------------------------
def read_by(spec: KVCacheSpec, computed: int, new: int, limits: RequestLimits) -> set[int]:
    """Positions stored before a step, or by it, that its queries read or that it writes."""
    read = {
        position
        for query in range(computed, computed + new)
        for position in indices(spec.visible(query, limits))
        # A step of a recurrence reads the state it starts from; those between are never stored.
        if not spec.is_state or query == computed
    }
    return read | set(spec.written(computed, new, limits))


def _resident(spec: KVCacheSpec) -> Iterator[str]:
    """Each block that is read or written is held; and none besides, unless it says why."""
    for lookahead in (0, 4):
        for limits in limits_of(spec, lookahead):
            span = spec.tokens_per_block(limits)
            for computed, new in steps(limits):
                held = set(indices(held_at(spec, computed, new, limits)))
                needed = {at // span for at in read_by(spec, computed, new, limits)}
                step = f"{new} tokens after {computed} of {limits.max_model_len}"
                if missing := needed - held:
                    yield f"block {min(missing)} is not held though a step of {step} reads it"
                if spec.is_state or lookahead:  # drafts, boundaries: see _bounds
                    continue
                if spec.keeps_every_token:
                    needed = set(range(-(-(computed + new) // span)))
                if needless := held - needed:
                    yield f"block {min(needless)} is held though no step of {step} reads it"


def _survives(spec: KVCacheSpec) -> Iterator[str]:
    """No position that a later query reads is lost with the step; and none is kept for nothing,
    where the spec frees any."""
    for limits in (each for each in limits_of(spec) if each.max_model_len != LENGTHS[1]):
        span = spec.tokens_per_block(limits)
        for computed, new in steps(limits):
            stored, length = computed + new, limits.max_model_len + span
            kept = set(indices(spec.survives(computed, new, limits)))
            later = {
                at // span
                for query in range(stored, length)
                for at in indices(spec.visible(query, limits))
                if at < stored and (not spec.is_state or query == stored)
            }
            if spec.frees_tokens and stored % span:  # the next token goes into it
                later.add(stored // span)
            step = f"{new} tokens after {computed} of {limits.max_model_len}"
            if lost := later - kept:
                yield f"block {min(lost)} does not survive a step of {step} though one reads it"
            if needless := kept - set(indices(held_at(spec, computed, new, limits))):
                yield f"block {min(needless)} survives a step of {step} that did not hold it"
            if spec.frees_tokens and (needless := kept - later):
                yield f"block {min(needless)} survives a step of {step} though nobody reads it"


def _written(spec: KVCacheSpec) -> Iterator[str]:
    """A query finds everything it reads: written by an earlier step, or by its own."""
    for limits in limits_of(spec):
        for prompt in {1, limits.max_model_len // 2, limits.max_model_len - 1} - {0}:
            stored: set[int] = set()
            computed = 0
            while computed < limits.max_model_len:
                new = min(limits.tokens_in_flight, prompt - computed) if computed < prompt else 1
                stored |= set(spec.written(computed, new, limits))
                for query in range(computed, computed + new):
                    read = set(indices(spec.visible(query, limits)))
                    if spec.is_state:
                        read = {at for at in read if at < computed}
                    if lost := read - stored:
                        block = min(lost) // spec.tokens_per_block(limits)
                        yield f"block {block}: position {min(lost)} is read but was never written"
                computed += new


def _bounds(spec: KVCacheSpec) -> Iterator[str]:
    """peak_blocks is the worst step, not more; an engine's max_blocks is a block off at most (but
    for states at every boundary: an engine reserves them all, though no step reads them)."""
    for lookahead in (0, 4):
        for limits in limits_of(spec, lookahead):
            worst = worst_step(spec, limits)
            peak, bound = spec.peak_blocks(limits), spec.max_blocks(limits)
            if peak != worst:
                yield f"peak_blocks says {peak} blocks, the worst step holds {worst} ({limits})"
            if bound < worst - 1 or (bound > worst + 1 and limits.mamba_cache_mode != "all"):
                yield f"max_blocks says {bound} blocks, the worst step holds {worst} ({limits})"


def worst_step(spec: KVCacheSpec, limits: RequestLimits) -> int:
    return max(num_indices(held_at(spec, *step, limits)) for step in steps(limits))


def _steady(spec: KVCacheSpec) -> Iterator[str]:
    for limits in limits_of(spec):
        fixed, slope = spec.steady_cost(limits)
        slack = []
        for n in range(1, limits.max_model_len + 1):
            held = num_indices(held_at(spec, n - 1, 1, limits))
            if spec.steady_blocks(n, limits) != held:
                told = spec.steady_blocks(n, limits)
                yield f"steady_blocks says {told} blocks at {n} tokens, decoding holds {held}"
            slack.append(fixed + slope * n - held)
        if min(slack) < -1e-9:
            yield f"steady_cost {fixed} + {slope:.3f} a token is below the blocks held ({limits})"
        if min(slack) > 1 + 1e-9:
            yield f"steady_cost {fixed} + {slope:.3f} is never within a block of them ({limits})"


def _rhythm(spec: KVCacheSpec) -> Iterator[str]:
    """Both counts at every length, against the lengths at which `rhythm` says that they change."""
    for limits in limits_of(spec, lookahead=2):
        if limits.max_model_len > LENGTHS[0]:  # the length is what is walked here
            continue
        for in_flight in (False, True):
            yield from islice(_rhythm_problems(spec, limits, in_flight), 1)


def _rhythm_problems(spec: KVCacheSpec, limits: RequestLimits, in_flight: bool) -> Iterator[str]:
    said = spec.rhythm(limits, in_flight)
    if said is None:
        return

    def blocks(length: int) -> int:
        asked = limits.with_length(length)
        return spec.peak_blocks(asked) if in_flight else spec.steady_blocks(length, asked)

    counts = [0, *map(blocks, range(1, WALKED + 1))]
    starts = [stretch.start for stretch in said.stretches]
    what = f"rhythm(in_flight={in_flight}) with {limits.tokens_in_flight} in flight"
    if not starts or starts[0] != 1 or starts != sorted(set(starts)):
        yield f"{what}: its stretches start at {starts}, and no block is compared"
        return
    for n in range(2, WALKED + 1):
        may = n in starts or any(n % m == r % m for r, m in said.edges)
        if counts[n] != counts[n - 1] and not may:
            yield f"{what}: a block comes or goes at {n} tokens, where it says none does"
    for stretch, stop in zip(said.stretches, [*starts[1:], WALKED + 1], strict=True):
        stop, period = min(stop, WALKED + 1), stretch.period
        if period is None or stretch.start + period >= stop:
            continue
        grown = [counts[n + period] - counts[n] for n in range(stretch.start, stop - period)]
        if len(set(grown)) > 1:
            yield f"{what}: from {stretch.start} on, {period} tokens cost {set(grown)} blocks"


def _hits(spec: KVCacheSpec) -> Iterator[str]:
    """The longest prefix of whole blocks after which the next token finds all it reads."""
    limits = RequestLimits(
        max_model_len=200, max_num_batched_tokens=64, max_encoder_tokens=7, mamba_cache_mode="all"
    )
    size = spec.block_size
    # What follows from something else than the prompt's tokens cannot be found by them.
    by_tokens = spec.is_state or spec.written(0, 5, limits) == range(5)
    for cached in product([False, True], repeat=7):
        best = 0
        for blocks in range(1, 8 if by_tokens else 1):
            read = (at for at in indices(spec.visible(blocks * size, limits)) if at < blocks * size)
            if all(cached[at // size] for at in read):
                best = blocks * size
        if spec.hit_length(cached) != best:
            shown = "".join("x" if hit else "." for hit in cached)
            yield f"hit_length says {spec.hit_length(cached)}, blocks {shown} serve {best} tokens"


def _kin(spec: KVCacheSpec) -> Iterator[str]:
    """Who merges with it, or is of its type, can live with the blocks it holds."""
    if spec.merge([spec]) != spec:
        yield "merge with itself is another spec: its blocks change"
    for other in kin_of(spec):
        try:
            merged = spec.merge([other])
        except SpecError:
            merged = None
        if merged is not None and merged.page_size_bytes != other.page_size_bytes:
            yield f"merge accepts {called(other)}, whose blocks have other bytes"
        for host in [merged] if merged is not None else []:
            yield from _hosts(host, other, "merges with")
        if spec.same_type(other):
            yield from _hosts(spec, other, "says it is of the type of")


def kin_of(spec: KVCacheSpec) -> Iterator[KVCacheSpec]:
    """Its class's other examples, in its blocks and in theirs; and itself in another width."""
    for example in type(spec).examples():
        yield example
        with suppress(SpecError):  # its sizes may not allow it
            yield example.with_block_size(spec.block_size)


def _hosts(host: KVCacheSpec, guest: KVCacheSpec, how: str) -> Iterator[str]:
    if guest.block_size != host.block_size:
        if how.startswith("merges"):
            yield f"{how} {called(guest)}, in blocks of another size"
        return
    for limits in limits_of(host):
        for step in steps(limits):
            held, read = held_at(host, *step, limits), held_at(guest, *step, limits)
            if lost := set(indices(read)) - set(indices(held)):
                yield f"{how} {called(guest)}, whose block {min(lost)} it does not hold"
                return


def _managed(spec: KVCacheSpec) -> Iterator[str]:
    """Prefill, decode, fork, swap, and a prefix hit: the block manager keeps each value read."""
    modes = MODES if spec.is_state else MODES[:1]
    for mode, caching in product(modes, (False, True)):
        _Serving(spec, mode, caching).run()
        yield from ()


class _Serving:
    """One life of three requests over this spec and full attention; AssertionError if a value is
    lost."""

    def __init__(self, spec: KVCacheSpec, mode: str, caching: bool) -> None:
        setting = Setting("", [spec, full(spec.block_size)], mode, ENCODER_TOKENS)
        config = config_of(setting.specs, 400)
        manager = BlockManager(config, setting.limits(50, 12), prefix_caching=caching)
        self.model, self.manager = ValueModel(setting, manager), manager

    def run(self) -> None:
        prompt = [7 * i % 11 for i in range(19)]
        self._add("a", prompt)
        for new in (12, 5, 2):
            self._prefill("a", new)
        for token in range(8):
            self._decode("a", token)
        self._fork("a", "b")
        for token in range(5):
            self._decode("b", token)
            self._decode("a", token + 1)
        self._swap("b")
        for token in range(12):
            self._decode("a", token)
        hit = self._add("c", self.model.tenants["a"].tokens[:40] + [99] * 6)
        while hit < 46:
            self._prefill("c", min(5, 46 - hit))
            hit += min(5, 46 - hit)
        self._decode("c", 1)

    def _add(self, name: str, tokens: list[int]) -> int:
        cached = self.manager.add_request(name, tokens, encoder_tokens=ENCODER_TOKENS)
        self.model.tenants[name] = Tenant(list(tokens), cached, encoder=("input", ENCODER_TOKENS))
        self.model.check()
        return cached

    def _prefill(self, name: str, new: int) -> None:
        self.manager.begin_step()
        self._granted(name, new, self.manager.allocate(name, new))

    def _decode(self, name: str, token: int) -> None:
        self.manager.begin_step()
        copies = self.manager.append([name], [token])
        self.model.tenants[name].tokens.append(token)
        self._granted(name, 1, copies)

    def _granted(self, name: str, new: int, copies: Any) -> None:
        self.model.copy(copies)
        self.model.write([(name, new)])
        self.model.check()

    def _fork(self, parent: str, child: str) -> None:
        self.manager.fork(parent, child)
        old = self.model.tenants[parent]
        self.model.tenants[child] = replace(old, tokens=list(old.tokens))
        self.model.check()

    def _swap(self, name: str) -> None:
        memory, tenants = self.model.memory, self.model.tenants
        self.manager.swap_out(name, lambda _, ids: [dict(memory.get(b, {})) for b in ids.tolist()])
        away = tenants.pop(name)
        self.model.check()
        self.manager.swap_in(
            name, lambda _, ids, packed: memory.update(zip(ids.tolist(), packed, strict=True))
        )
        tenants[name] = away
        self.model.check()
