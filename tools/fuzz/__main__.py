"""PYTHONPATH=tools python -m fuzz {requests,words} [--count 10000] [--seed 1]

requests: the invariants on plans. words: command lines, in a folder that is thrown away. Prints the
smallest case of each kind that fails, ready for tests/test_invariants.py or test_once_failed.py.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from random import Random

from fuzz import invariants, requests, words
from fuzz.minimise import shortest, smallest


def main() -> int:
    parser = ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("what", choices=("requests", "words"))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    find = _requests if args.what == "requests" else _words
    found = find(Random(args.seed), args.count)
    for line in found:
        print(line)
    print(f"{args.what}: {args.count:,} tried with seed {args.seed}, {len(found)} kinds failed")
    return 1 if found else 0


def _requests(seed: Random, count: int) -> list[str]:
    found: dict[str, str] = {}
    for _ in range(count):
        settings = requests.at_random(seed)
        said = invariants.broken(settings)
        kind = said.partition(":")[0]
        if said and kind not in found:
            least = smallest(settings, lambda s, k=kind: invariants.broken(s).startswith(k))
            found[kind] = f"{least}: {invariants.broken(least)}"
    return list(found.values())


def _words(seed: Random, count: int) -> list[str]:
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for _ in range(count):
            line = words.at_random(seed)
            said = words.wrong_with(line)
            kind = said[:60]
            if said and kind not in found:
                least = shortest(line, lambda some: bool(words.wrong_with(some)))
                found[kind] = f"{least}: {said}"[:2000]
        os.chdir("/")
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())
