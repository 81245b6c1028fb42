"""One process of several, for test_agree: python one_rank.py BYTES [die | fail].

Runs the stages with its own cache size and prints the plan that it comes to, and on stderr the
seconds that it took without importing torch, which takes as long as the machine is busy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch.distributed  # noqa: F401

from kvpipe.errors import KvpipeError
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import execute


def main(num_bytes: str, fate: str = "") -> int:
    if fate == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    size = "1" if fate == "fail" else num_bytes
    asked = ["model=pythia_70m", "parallel.tensor_parallel_size=4", "backend=meta"]
    asked += [f"cache.kv_cache_memory_bytes={size}", "scheduler.max_model_len=64"]
    if fate == "fail":
        asked += ["profiling=log", "profiling.path=there-is-no-such-file"]
    try:
        result = execute(prepared_request(asked).prepared)
    except KvpipeError as error:
        print(" ".join(error.lines()), file=sys.stderr)
        return error.exit_code
    plan = result.plan
    print(
        json.dumps(
            {
                "num_blocks": plan.num_blocks,
                "memory": list(result.profile.available_kv_bytes),
                "stranded": [rank.stranded_bytes for rank in plan.ranks],
                "allocated_here": len(result.bound),
            }
        )
    )
    return 0


if __name__ == "__main__":
    begin = time.monotonic()
    code = main(*sys.argv[1:])
    print(f"seconds: {time.monotonic() - begin:.1f}", file=sys.stderr)
    sys.exit(code)
