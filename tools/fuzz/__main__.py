"""PYTHONPATH=tools python -m fuzz {requests,words,options,logs,configs,gguf} [--count 10000]

requests: the invariants on plans. words: command lines. options: YAML of somebody else's. logs,
configs, gguf: files that are read. Prints the smallest case of each kind that fails, ready for
tests/test_invariants.py or tests/test_once_failed.py.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from random import Random

from fuzz.fuzzers import FUZZERS, search


def main() -> int:
    parser = ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("what", choices=sorted(FUZZERS))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what a request writes is thrown away
        found = search(FUZZERS[args.what], Random(args.seed), args.count)
        os.chdir("/")
    for line in found:
        print(line)
    print(f"{args.what}: {args.count:,} tried with seed {args.seed}, {len(found)} kinds failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
