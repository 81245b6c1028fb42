"""Every registered kind of cache proves itself: walked token by token, and its mutants are caught.

A spec that is added, here or in an installed package, is picked up by scanning; one without
examples of itself is an error.
"""

from __future__ import annotations

import pytest
from spec_mutants import MUTATIONS, mutant, says_something_else
from spec_walk import called, first_problem, problems

from kvpipe.plugins import SPECS
from kvpipe.specs.base import KVCacheSpec

EXAMPLES = [spec for name in SPECS.names() for spec in SPECS.get(name).examples()]


@pytest.mark.parametrize("kind", SPECS.names())
def test_every_registered_kind_has_examples_of_odd_sizes_and_its_own_name(kind: str) -> None:
    examples = SPECS.get(kind).examples()
    assert len(examples) >= 2, f"{kind}: examples() gives {len(examples)}, nothing can be proved"
    assert any(spec.block_size % 2 for spec in examples), f"{kind}: no odd block size"
    assert all(spec.kind == kind == type(spec).kind for spec in examples)


@pytest.mark.parametrize("spec", EXAMPLES, ids=called)
def test_every_answer_of_a_spec_agrees_with_what_a_query_reads(spec: KVCacheSpec) -> None:
    found = list(problems(spec))
    assert not found, f"{len(found)} problems:\n" + "\n".join(found[:10])


@pytest.mark.parametrize("kind", SPECS.names())
def test_a_kind_with_one_wrong_answer_is_told_which_block(kind: str) -> None:
    examples = SPECS.get(kind).examples()
    killed, missed = {}, []
    for mutation in MUTATIONS:
        wrong = [mutant(e, mutation) for e in examples if says_something_else(e, mutation)]
        found = next(filter(None, map(first_problem, wrong)), "")
        if found:
            killed[mutation] = found
        elif wrong:
            missed.append(mutation)
    print(f"{kind}: {len(killed)} mutants killed, {len(missed)} alive")
    assert not missed, f"{kind}: nobody noticed that {'; '.join(missed)}"
    assert len(killed) >= 5, sorted(killed)
    for mutation, found in killed.items():
        assert found.startswith(f"{kind} in blocks of "), mutation
        assert "block" in found.partition(": ")[2], found
