"""PYTHONPATH=tools python -m fuzz {requests,words,options,logs,configs,gguf} [--count 10000]

requests: the invariants on plans. words: command lines. options: YAML of somebody else's. logs,
configs, gguf: files that are read. Prints the smallest case of each kind that fails, ready for
tests/test_invariants.py or tests/test_once_failed.py, and on stderr how far it has come.

Case n of a seed is the same whatever was tried before it: `--start 4000` goes on where a run was
cut off, and several processes may share the cases.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from argparse import ArgumentParser

from fuzz.fuzzers import FUZZERS, Progress, search

EVERY_S = 30  # between two lines of progress


def main() -> int:
    parser = ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("what", choices=sorted(FUZZERS))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="the first case, of a run cut off")
    args = parser.parse_args()
    gc.set_threshold(50_000)  # as kvpipe's own main does
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what a request writes is thrown away
        cases = range(args.start, args.start + args.count)
        found = search(FUZZERS[args.what], args.seed, cases, _progress(args.what, args.seed))
        os.chdir("/")
    for line in found:
        print(line)
    tried = f"{args.count:,} tried with seed {args.seed}"
    print(f"{args.what}: {tried} from case {args.start:,}, {len(found)} kinds failed")
    return 1 if found else 0


def _progress(what: str, seed: int) -> Progress:
    said_at = time.monotonic()

    def say(case: int, kinds: int, new: str) -> None:
        nonlocal said_at
        if new or time.monotonic() - said_at > EVERY_S:
            said_at = time.monotonic()
            line = f"{what}, seed {seed}: case {case:,} done, {kinds} kinds failed {new}"
            print(line.rstrip(), file=sys.__stderr__, flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
