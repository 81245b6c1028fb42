"""Drafted tokens get slots; what is accepted is stored, what is rejected is written over."""

from __future__ import annotations

import random

import pytest
from block_models import Setting, Tenant, ValueModel, chunked, config_of, full, mamba, sliding

from kvpipe.blocks import BlockError, BlockManager, OutOfBlocks

SETTINGS = [
    Setting("full", [full(4)]),
    Setting("full and windows", [full(4), sliding(3, 5), chunked(4, 8)]),
    Setting("running states", [full(4), mamba(40, "none", 3)], "none"),
    Setting("states at boundaries", [full(4), mamba(4, "align", 3)], "align"),
    Setting("small blocks of states", [full(2), mamba(2, "align", 3), sliding(2, 3)], "align"),
]


def model_of(setting: Setting, caching: bool = False, num_blocks: int = 200) -> ValueModel:
    limits = setting.limits(max_model_len=40, max_num_batched_tokens=12)
    manager = BlockManager(config_of(setting.specs, num_blocks), limits, prefix_caching=caching)
    return ValueModel(setting, manager)


def begin(model: ValueModel, name: str, tokens: list[int]) -> None:
    model.manager.begin_step()
    cached = model.manager.add_request(name, tokens)
    model.tenants[name] = Tenant(list(tokens), cached)
    new = len(tokens) - cached
    model.manager.allocate(name, new)
    model.write([(name, new)])
    model.check()


def speculate(model: ValueModel, names: list[str], drafts: int, accepted: list[int]) -> None:
    """One step: a sure token and drafts of each, all written where the slots say; then accept."""
    model.manager.begin_step()
    sure = [model.tenants[name].stored % 5 for name in names]
    guesses = {name: [7 + (i + len(name)) % 3 for i in range(drafts)] for name in names}
    model.copy(model.manager.append(names, sure, num_draft_tokens=drafts))
    for group in range(len(model.setting.specs)):
        assert len(model.manager.slot_mapping(group)) == len(names) * (1 + drafts)
    model.write_drafts(guesses, sure)
    for name, token, num in zip(names, sure, accepted, strict=True):
        model.accept(name, token, guesses[name][: min(num, 39 - model.tenants[name].stored)])
    model.check()


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_whatever_is_accepted_every_value_that_is_read_is_there(
    setting: Setting, caching: bool
) -> None:
    draw = random.Random(1)
    for _ in range(12):
        model = model_of(setting, caching)
        begin(model, "a", [1, 2, 3, 4, 5, 6, 7][: draw.randint(1, 7)])
        begin(model, "bb", [1, 2, 3])
        while all(tenant.stored < 38 for tenant in model.tenants.values()):
            drafts = draw.randint(1, 3)
            speculate(model, ["a", "bb"], drafts, [draw.randint(0, drafts) for _ in "ab"])
        for name in ("a", "bb"):
            model.manager.free(name)
        assert model.manager.pool.stats().in_use == 0


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_rejecting_everything_is_decoding_one_by_one(setting: Setting) -> None:
    drafting, plain = model_of(setting), model_of(setting)
    for model in (drafting, plain):
        begin(model, "a", [1, 2, 3])
    for _ in range(20):
        speculate(drafting, ["a"], 3, [0])
        plain.manager.begin_step()
        plain.manager.append(["a"], [drafting.tenants["a"].tokens[-1]])
        assert drafting.manager.num_tokens("a") == plain.manager.num_tokens("a")


def test_accepted_tokens_are_found_by_the_next_prompt() -> None:
    model = model_of(SETTINGS[3], caching=True)
    begin(model, "a", [1, 2, 3])
    while model.tenants["a"].stored < 13:
        speculate(model, ["a"], 3, [3])
    tokens = model.tenants["a"].tokens
    model.manager.begin_step()
    assert model.manager.add_request("c", [*tokens, 99]) == 4 * (len(tokens) // 4)


def test_a_shortage_changes_nothing_and_all_drafts_of_a_batch_wait() -> None:
    model = model_of(Setting("", [full(4)]), num_blocks=4)
    begin(model, "a", [1, 2, 3])
    begin(model, "b", [1, 2, 3])
    before = model.snapshot()
    with pytest.raises(OutOfBlocks, match="2 requests: group 0"):
        model.manager.append(["a", "b"], [1, 1], num_draft_tokens=3)
    assert model.snapshot() == before


def test_wrong_drafts_say_so_and_change_nothing() -> None:
    model = model_of(Setting("", [full(4), mamba(40, "none", 2)], "none"))
    manager = model.manager
    begin(model, "a", [1, 2, 3])
    with pytest.raises(BlockError, match="request 'a': 1 tokens accepted, 0 drafted since"):
        manager.accept("a", 1)
    with pytest.raises(BlockError, match=r"3 draft tokens, group 1 \(mamba\) has states for 2"):
        manager.append(["a"], num_draft_tokens=3)
    manager.append(["a"], num_draft_tokens=2)
    with pytest.raises(BlockError, match="3 tokens accepted, 2 drafted"):
        manager.accept("a", 3)
    manager.append(["a"])
    with pytest.raises(BlockError, match="1 tokens accepted, 0 drafted"):
        manager.accept("a", 1)
    other = model_of(Setting("", [full(4)]))
    begin(other, "a", [1, 2, 3])
    with pytest.raises(BlockError, match="13 tokens in one step, at most 12 fit"):
        other.manager.append(["a"], num_draft_tokens=12)


def test_states_at_every_boundary_cannot_be_taken_back() -> None:
    model = model_of(Setting("", [mamba(4, "all")], "all"))
    begin(model, "a", [1, 2, 3])
    with pytest.raises(BlockError, match="1 draft tokens, group 0 .mamba. has states for 0"):
        model.manager.append(["a"], num_draft_tokens=1)
