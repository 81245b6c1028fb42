"""Any sequence of allocate, append, fork, free, swap, evict and prefix hit keeps every value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from block_models import SETTINGS, Tenant, ValueModel, config_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvpipe.blocks import BlockError, BlockManager, MediaRange, OutOfBlocks, PrefixIdentity

# Prompts of three families: two that share a stem, so that prefixes are hit and missed.
STEMS = ([7, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] * 3, [7, 7, 1, 2, 3, 4, 99] + [5] * 40)
IDENTITIES = (
    PrefixIdentity(),
    PrefixIdentity(salt="tenant b"),
    PrefixIdentity(extra=("lora", 3)),
    PrefixIdentity(media=(MediaRange(start=2, stop=7, key=b"cat"),)),
)


class Blocks(RuleBasedStateMachine):
    model: ValueModel
    choices = SETTINGS

    @initialize(
        which=st.integers(0, len(SETTINGS) - 1),
        num_blocks=st.integers(6, 40),
        prefix_caching=st.booleans(),
        few=st.sampled_from([0, 8]),
    )
    def start(self, which: int, num_blocks: int, prefix_caching: bool, few: int) -> None:
        """few: up to how many requests decode one by one; beyond, through arrays."""
        setting = self.choices[which % len(self.choices)]
        manager = BlockManager(
            config_of(setting.specs, num_blocks),
            setting.limits(),
            max_num_requests=6,
            prefix_caching=prefix_caching,
        )
        manager._decoding.few = few
        self.model = ValueModel(setting, manager)
        self.names = iter(range(1 << 30))

    # --- helpers -------------------------------------------------------------------------------
    def grants(self, step: Callable[[], Any], moves: list[tuple[int, int]]) -> None:
        """Run a step; write its values, or check that a shortage changed nothing."""
        model = self.model
        model.manager.begin_step()
        before = model.snapshot()
        try:
            copies = step()
        except OutOfBlocks as error:
            assert error.short_by == error.needed - error.free > 0
            assert error.group is not None and f"group {error.group} (" in str(error)
            assert model.snapshot() == before
            return
        model.copy(copies)
        model.write(moves)

    def pick(self, draw: st.DataObject, among: Any) -> int:
        return draw.draw(st.sampled_from(sorted(among)), label="request")

    # --- rules ---------------------------------------------------------------------------------
    @precondition(lambda self: len(self.model.tenants) < 6)
    @rule(
        stem=st.sampled_from(STEMS),
        length=st.integers(1, 40),
        identity=st.sampled_from(IDENTITIES),
        encoder=st.integers(0, 7),
    )
    def add(self, stem: list[int], length: int, identity: Any, encoder: int) -> None:
        self.begin(stem, length, identity, encoder)

    @precondition(lambda self: len(self.model.tenants) < 6)
    @rule(stem=st.sampled_from(STEMS), length=st.integers(6, 40), keep=st.booleans())
    def serve(self, stem: list[int], length: int, keep: bool) -> None:
        """A whole prompt, as far as it fits; then, perhaps, its end: hits and evictions."""
        name = self.begin(stem, length, PrefixIdentity(), 0)
        tenant = self.model.tenants[name]
        while left := length - tenant.stored:
            stored, new = tenant.stored, min(12, left)
            self.grants(lambda n=new: self.model.manager.allocate(name, n), [(name, new)])
            if tenant.stored == stored:
                break
            self.model.check()
        if not keep:
            self.model.manager.free(name)
            del self.model.tenants[name]

    def begin(self, stem: list[int], length: int, identity: Any, encoder: int) -> int:
        model, name = self.model, next(self.names)
        encoder = min(encoder, model.setting.max_encoder_tokens)
        tokens = stem[:length]
        cached = model.manager.add_request(name, tokens, identity=identity, encoder_tokens=encoder)
        assert 0 <= cached < length
        model.tenants[name] = Tenant(list(tokens), cached, identity, (f"input {name}", encoder))
        return name

    @precondition(lambda self: self.model.tenants)
    @rule(draw=st.data(), new=st.integers(1, 9), lookahead=st.integers(0, 3))
    def allocate(self, draw: st.DataObject, new: int, lookahead: int) -> None:
        name = self.pick(draw, self.model.tenants)
        tenant = self.model.tenants[name]
        new = min(new, 40 - tenant.stored)
        if new < 1:
            return
        missing = max(0, tenant.stored + new - len(tenant.tokens))
        more = [100 + name] * missing
        if missing:
            tenant.tokens.extend(more)
        manager = self.model.manager
        stored = tenant.stored
        self.grants(lambda: manager.allocate(name, new, lookahead, more), [(name, new)])
        if tenant.stored == stored:
            del tenant.tokens[len(tenant.tokens) - missing :]

    @precondition(lambda self: any(t.stored < len(t.tokens) for t in self.model.tenants.values()))
    @rule(chunk=st.integers(1, 12), order=st.booleans())
    def prefill(self, chunk: int, order: bool) -> None:
        """Every prompt that is not stored yet, in chunks, until the pool runs dry."""
        manager, tenants = self.model.manager, self.model.tenants
        for name in sorted(tenants, reverse=order):
            tenant = tenants[name]
            while left := len(tenant.tokens) - tenant.stored:
                new, stored = min(chunk, left), tenant.stored
                self.grants(lambda n=name, t=new: manager.allocate(n, t), [(name, new)])
                if tenant.stored == stored:
                    return
                self.model.check()

    def ready(self) -> list[int]:
        return [
            name
            for name, tenant in self.model.tenants.items()
            if tenant.stored == len(tenant.tokens) and 0 < tenant.stored < 40
        ]

    @precondition(lambda self: self.ready())
    @rule(draw=st.data(), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def decode(self, draw: st.DataObject, tokens: list[int]) -> None:
        """Some decode steps of a batch of the requests whose prompt is stored."""
        for token in tokens:
            if ready := self.ready():
                self.append(draw, token, ready)
                self.model.check()

    def append(self, draw: st.DataObject, token: int, ready: list[int]) -> None:
        batch = draw.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True), label="batch")
        tokens = [token + name % 2 for name in batch]
        for name, new in zip(batch, tokens, strict=True):
            self.model.tenants[name].tokens.append(new)
        stored = self.model.tenants[batch[0]].stored
        manager = self.model.manager
        self.grants(lambda: manager.append(batch, tokens), [(name, 1) for name in batch])
        if self.model.tenants[batch[0]].stored == stored:
            for name in batch:
                self.model.tenants[name].tokens.pop()

    @precondition(lambda self: self.ready() and self.model.manager.max_draft_tokens)
    @rule(
        draw=st.data(),
        drafted=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        accepted=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    )
    def speculate(self, draw: st.DataObject, drafted: list[int], accepted: list[int]) -> None:
        """Some steps of a sure token and drafts after it, of which some stay."""
        drafted = drafted[: self.model.manager.max_draft_tokens]
        for stay in accepted:
            if ready := self.ready():
                self.draft(draw, drafted, stay, ready)
                self.model.check()

    def draft(self, draw: st.DataObject, drafted: list[int], stay: int, ready: list[int]) -> None:
        model = self.model
        batch = draw.draw(st.lists(st.sampled_from(ready), min_size=1, unique=True), label="batch")
        model.manager.begin_step()
        before = model.snapshot()
        try:
            copies = model.manager.append(batch, [stay % 3] * len(batch), len(drafted))
        except OutOfBlocks:
            assert model.snapshot() == before
            return
        model.copy(copies)
        model.write_drafts(dict.fromkeys(batch, drafted), [stay % 3] * len(batch))
        for name in batch:
            most = min(stay, len(drafted), 39 - model.tenants[name].stored)
            model.accept(name, stay % 3, drafted[:most])

    @precondition(lambda self: 0 < len(self.model.tenants) < 6)
    @rule(draw=st.data())
    def fork(self, draw: st.DataObject) -> None:
        parent, child = self.pick(draw, self.model.tenants), next(self.names)
        self.model.manager.fork(parent, child)
        old = self.model.tenants[parent]
        self.model.tenants[child] = Tenant(list(old.tokens), old.stored, old.identity, old.encoder)

    @precondition(lambda self: len(self.model.tenants) > 1)
    @rule(draw=st.data())
    def free(self, draw: st.DataObject) -> None:
        name = self.pick(draw, self.model.tenants)
        self.model.manager.free(name)
        del self.model.tenants[name]
        with pytest.raises(BlockError, match="not live: it is finished"):
            self.model.manager.free(name)

    @precondition(lambda self: self.ready())
    @rule(draw=st.data())
    def swap_out(self, draw: st.DataObject) -> None:
        name, memory = self.pick(draw, self.model.tenants), self.model.memory
        self.model.manager.swap_out(
            name, lambda group, ids: [dict(memory.get(b, {})) for b in ids.tolist()]
        )
        self.model.away[name] = self.model.tenants.pop(name)

    @precondition(lambda self: self.model.away and len(self.model.tenants) < 6)
    @rule(draw=st.data())
    def swap_in(self, draw: st.DataObject) -> None:
        name, memory = self.pick(draw, self.model.away), self.model.memory
        before = self.model.snapshot()

        def restore(group: int, ids: Any, packed: Any) -> None:
            memory.update(zip(ids.tolist(), packed, strict=True))

        try:
            self.model.manager.swap_in(name, restore)
        except OutOfBlocks as error:
            assert error.short_by > 0 and self.model.snapshot() == before
            return
        self.model.tenants[name] = self.model.away.pop(name)

    @rule(really=st.integers(0, 9))
    def forget(self, really: int) -> None:
        """New weights: no prefix may be hit any more."""
        if really:
            return
        self.model.manager.pool.forget_content()
        assert not self.model.manager.pool.stats().keyed

    @precondition(lambda self: len(self.model.tenants) > 3)
    @rule(draw=st.data())
    def misuse(self, draw: st.DataObject) -> None:
        name = self.pick(draw, self.model.tenants)
        manager, before = self.model.manager, self.model.snapshot()
        for wrong in (
            lambda: manager.add_request(name, [1]),
            lambda: manager.allocate(name, 0),
            lambda: manager.allocate(name, 41, 0, [1] * 41),
            lambda: manager.append([name, name], [1, 1]),
            lambda: manager.append([name, -1], [1, 1]),
            lambda: manager.fork(name, name),
            lambda: manager.swap_in(name, lambda *_: None),
            lambda: manager.pool.free([0]),
            lambda: manager.pool.free([manager.pool.num_blocks]),
        ):
            with pytest.raises(BlockError):
                wrong()
        assert self.model.snapshot() == before

    @invariant()
    def values_owners_and_counts_agree(self) -> None:
        if hasattr(self, "model"):
            self.model.check()


class Drafting(Blocks):
    """Where states must be taken back."""

    choices = [
        s for s in SETTINGS if any(getattr(spec, "num_speculative_blocks", 0) for spec in s.specs)
    ]


def run(examples: int, steps: int, machine: type[Blocks] = Blocks) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def run_for(seconds: float) -> None:
    """Fresh sequences until the time is over."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        run(60, 40)
        run(20, 40, Drafting)


@pytest.mark.parametrize("machine", [Blocks, Drafting])
def test_values_survive_sequences(machine: type[Blocks]) -> None:
    run(30, 30, machine)


@pytest.mark.full
def test_values_survive_two_minutes_of_sequences() -> None:
    run_for(120)


@pytest.mark.nightly
def test_values_survive_a_hundred_thousand_steps() -> None:
    run(1000, 100)
