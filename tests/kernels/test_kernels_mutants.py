"""The suite notices every mistake of mutants.py (a few minutes: nightly)."""

from __future__ import annotations

import pytest
from mutants import ERROR, MUTANTS, PACKAGE, Mutant, killer


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_applies(mutant: Mutant):
    assert mutant.old in (PACKAGE / mutant.file).read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_suite_notices(mutant: Mutant):
    found = killer(mutant)
    assert found and not found.startswith(ERROR), found
