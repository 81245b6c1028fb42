"""The equality checks have teeth: every injected fault makes them fail."""

from __future__ import annotations

import pytest
from equality import (
    BOUND,
    SHORT,
    assert_equal,
    generate,
    max_difference,
    planned,
    reference,
    short_output,
)
from test_equality import first_of

from kvpipe.errors import ConfigError
from kvpipe.integrations.transformers import bind
from kvpipe.stages.binding.transformers_cache.faults import FAULTS, inject

# Which faults a family has a place for; every fault, both modes, on every commit.
PLACES = {
    "llama": ("swap", "lost", "alias"),
    "gemma3": ("window",),
    "jamba": ("state",),
}
FULL = {
    "mistral": ("swap", "lost", "alias", "window"),
    "gemma3": ("swap", "lost", "alias"),
    "gpt_oss": ("swap", "lost", "alias", "window"),
    "deepseek_v3": ("swap", "lost", "alias"),
    "llama4": ("swap", "lost", "alias", "window"),
    "jamba": ("swap", "lost", "alias"),
    "qwen3_next": ("swap", "lost", "alias", "state"),
    "mamba2": ("alias", "state"),
    "falcon_h1": ("swap", "lost", "alias", "state"),
    "gemma3n": ("swap", "lost", "alias", "window"),
    "bart": ("swap", "lost", "alias"),
}
CASES = [(family, fault) for family, faults in PLACES.items() for fault in faults]
CASES += [
    pytest.param(family, fault, marks=pytest.mark.full)
    for family, faults in FULL.items()
    for fault in faults
]


@pytest.mark.parametrize(("family", "fault"), CASES)
@pytest.mark.parametrize("mode", first_of(["gather", "direct"]))
def test_every_fault_is_seen(family: str, fault: str, mode: str) -> None:
    if mode == "direct" and family == "mamba2":
        pytest.skip("no attention to read pages directly")
    case = reference(family)
    cache = bind(case.model, planned(case.model, family), mode=mode)
    try:
        inject(cache, fault)
        found = generate(case.model, case.inputs, cache, **SHORT)
    finally:
        cache.bound.unbind()
    expected = short_output(family)
    assert max_difference(expected, found) > 100 * BOUND
    with pytest.raises(AssertionError):
        assert_equal(expected, found)


def test_a_fault_without_a_place_is_refused() -> None:
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"))
    try:
        with pytest.raises(ConfigError, match="can have 'window', got full attention only"):
            inject(cache, "window")
        with pytest.raises(ConfigError, match="can have 'state', got no states"):
            inject(cache, "state")
        with pytest.raises(ConfigError, match="did you mean 'swap'"):
            inject(cache, "swop")
    finally:
        cache.bound.unbind()


def test_every_fault_is_tried() -> None:
    assert {fault for faults in PLACES.values() for fault in faults} == set(FAULTS)
