#!/usr/bin/env python
"""The plug-in as users meet it: `vllm serve`, clients over HTTP, and `vllm bench serve`.

python tools/live/serving.py vllm-0.32.0               # every way of serving
python tools/live/serving.py vllm-0.32.0 "one process" # this one

Each way is served twice, without and with `"grouping": "optimal"`: the same requests to
/v1/completions, then the engine's own benchmark. Kept in the cache folder, way by way, from where
`matrix.py --page` takes it. Exit 1: one does not start, or its tokens are not equal.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.environments import ENVIRONMENTS, cache_folder, missing  # noqa: E402
from tools.live.model_files import CONTEXT, with_tokenizer  # noqa: E402
from tools.live.models import MODELS  # noqa: E402
from tools.live.plugin import installed_in, named_vllm  # noqa: E402
from tools.live.proof import LENGTHS, NEW, memory_of  # noqa: E402
from tools.live.served_page import served_lines  # noqa: E402
from tools.live.server import Server, serving  # noqa: E402
from tools.live.vllm_load import prompts  # noqa: E402

Json = dict[str, Any]
ASKED: tuple[Json, ...] = ({}, {"kvpipe": {"grouping": "optimal"}})
BENCH = ("--random-input-len", "200", "--random-output-len", "64", "--num-prompts", "80")
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_LINE = re.compile(r"\] kvpipe: (.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Way:
    """words: of the serve line. workers: processes that share the model. has_bench: the engine's
    benchmark is run, too."""

    name: str
    model: str
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    has_bench: bool = False


WAYS = (
    Way(name="one process", model="gemma3-4-3", has_bench=True),
    Way(
        name="tensor parallel 2",
        model="gemma3-4-3",
        words=("--tensor-parallel-size", "2"),
        # By itself the engine wants a NUMA node for each worker.
        variables={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        workers=2,
    ),
)


def words_of(way: Way, folder: Path, asked: Json) -> list[str]:
    """The serve line. Nothing that the engine would choose otherwise, but what a tiny model
    needs: random weights, a small cache, and sums that do not depend on the batch."""
    memory = memory_of(folder) // way.workers
    words = ["--load-format", "dummy", "--enforce-eager", "--dtype", "float32", "--seed", "0"]
    words += ["--max-model-len", str(CONTEXT), "--max-num-batched-tokens", "256"]
    words += ["--max-num-seqs", "64", "--kv-cache-memory-bytes", str(memory), *way.words]
    return [str(folder), *words, "--additional-config", json.dumps(asked)]


def served(name: str, way: Way, folder: Path, asked: Json, scratch: Path) -> Json:
    """What one server said, printed and took."""
    variables = {
        "PYTHONPATH": installed_in(scratch / "site"),
        "OMP_NUM_THREADS": "1",
        **way.variables,
    }
    named_vllm(scratch / "site", name.removeprefix("vllm-"))
    words = words_of(way, folder, asked)
    with serving(ENVIRONMENTS[name], words, scratch, variables) as server:
        tokens = _completions(server, folder)
        held = _counters(server.asked("/metrics"))
        bench = _bench(name, server, folder, scratch) if way.has_bench else None
        log = server.log.read_text(errors="replace")
    printed, line = _TOKENS.search(log), _LINE.search(log)
    return {
        "tokens": tokens,
        "printed": int(printed[1].replace(",", "")) if printed else None,
        "line": line[1] if line else "",
        "processes": sorted(set(re.findall(r"^\((\w+) pid=", log, re.MULTILINE))),
        "bench": bench,
        **held,
    }


def _completions(server: Server, folder: Path) -> list[list[int]]:
    """Tokens of every prompt, all asked at once, as clients do."""

    def one(prompt: list[int]) -> list[int]:
        body = {
            "model": str(folder),
            "prompt": prompt,
            "max_tokens": NEW,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return [int(t) for t in server.asked("/v1/completions", body)["choices"][0]["token_ids"]]

    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        return list(pool.map(one, prompts(list(LENGTHS))))


def _counters(text: str) -> Json:
    found = {}
    for key, metric in (("preemptions", "num_preemptions"), ("hits", "prefix_cache_hits")):
        values = re.findall(rf"^vllm:{metric}_total\{{.*\}} (\S+)$", text, re.MULTILINE)
        found[key] = int(sum(map(float, values)))
    return found


def _bench(name: str, server: Server, folder: Path, scratch: Path) -> Json:
    """The engine's own benchmark: all requests at once, tokens drawn by its seed."""
    environment, out = ENVIRONMENTS[name], scratch / "bench.json"
    vllm = str(environment.python.with_name("vllm"))
    command = [vllm, "bench", "serve", "--base-url", server.url, "--model", str(folder)]
    command += ["--dataset-name", "random", *BENCH, "--seed", "0", "--disable-tqdm"]
    command += ["--temperature", "0", "--save-result", "--result-dir", str(scratch)]
    command += ["--result-filename", out.name]
    variables = {**environment.environ(), "PYTHONPATH": str(scratch / "site")}
    spent = server.cpu_seconds()
    done = subprocess.run(
        command, env=variables, cwd=scratch, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    said = json.loads(out.read_text())
    kept = ("completed", "output_throughput", "mean_ttft_ms", "mean_tpot_ms", "duration")
    cpu = round(server.cpu_seconds() - spent, 2)
    return {key: said[key] for key in kept} | {"engine_cpu_seconds": cpu}


def compare(name: str, way: Way, scratch: Path) -> Json:
    """Both servers of one way, and how many requests got the same tokens."""
    folder = with_tokenizer(MODELS[way.model].write(scratch))
    own, ours = (served(name, way, folder, asked, scratch) for asked in ASKED)
    pairs = zip(own.pop("tokens"), ours.pop("tokens"), strict=True)
    equal = sum(one == other for one, other in pairs)
    return {
        "day": date.today().isoformat(),
        "model": way.model,
        "kind": MODELS[way.model].kind,
        "own": own,
        "ours": ours,
        "equal": equal,
        "asked": len(LENGTHS),
    }


def kept_path(name: str) -> Path:
    return cache_folder() / f"{name}-served.json"


def kept(name: str) -> Json:
    """What was found by the name of the way; none where nothing was served."""
    path = kept_path(name)
    return json.loads(path.read_text()) if path.exists() else {}


def main(argv: Sequence[str]) -> int:
    name, *asked = argv or ("vllm-0.32.0",)
    ways = {way.name: way for way in WAYS}
    if unknown := [word for word in asked if word not in ways]:
        print(f"way: expected some of {', '.join(ways)}, got {', '.join(unknown)}")
        return 2
    if command := missing([name]):
        print(f"make the environment first: {command}")
        return 2
    for word in asked or ways:
        now = kept(name) | {word: _compared(name, ways[word])}
        kept_path(name).write_text(json.dumps(now, indent=1))
    found = {word: one for word, one in kept(name).items() if not asked or word in asked}
    print("\n".join(served_lines(name, found)))
    return max(one.get("equal") != len(LENGTHS) for one in found.values())


def _compared(name: str, way: Way) -> Json:
    """As compare, or why it does not start."""
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        try:
            return compare(name, way, Path(scratch))
        except RuntimeError as error:
            return {"day": date.today().isoformat(), "error": str(error)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
