"""kvpipe's SGLang against the planner that SGLang ships, over random cases.

    python tools/live/sglang_planner.py WHEEL [CASES] [SEED]

WHEEL: an unpacked wheel of 0.5.23 (see sglang_wheel.py). Prints one line a part, exit 1 where any
case differs; a difference is printed with everything that it depends on.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from kvpipe.engines import sglang_sizes as sizes
from kvpipe.engines.planned import Card, Question, RankQuestion
from kvpipe.engines.sglang import PLUGIN as SGLANG
from kvpipe.engines.sglang_fraction import static_fraction, step_sizes
from kvpipe.errors import KvpipeError
from kvpipe.models.base import ModelGeometry
from kvpipe.request.confdir import shipped_option
from kvpipe.specs.base import CacheLayer, KVCacheSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec

from sglang_wheel import Wheel  # isort: skip

GIB = 2**30
Case = tuple[Any, Any, Any]  # what was asked, ours, theirs


def ours(layers: list[KVCacheSpec], budget: int, page: int, **asked: Any) -> dict[str, Any] | str:
    """Tokens by pool of kvpipe's plugin, or that it refuses."""
    named = tuple(CacheLayer(name=f"{i}", spec=spec) for i, spec in enumerate(layers))
    model = ModelGeometry(
        name="m", file_dtype="bfloat16", context_length=131072, num_layers=1, caches=()
    )
    question = Question(
        model=model,
        served_dtype="bfloat16",
        cache_dtype="bfloat16",
        ranks=(RankQuestion(layers=named, weight_bytes=0),),
        card=Card(name="c", type="cuda", total_bytes=80 * GIB),
        length=8192,
        requests=asked.get("requests"),
        batched_tokens=asked.get("chunk"),
        prefix_caching=asked.get("prefix_caching", True),
        draft_layers=asked.get("draft_layers", 0),
        draft_tokens=asked.get("draft_tokens", 0),
        cache_bytes=budget,
    )
    options = shipped_option("engine", "sglang") | {"page_size": page}
    options["swa_full_tokens_ratio"] = asked.get("ratio", 0.8)
    engine = SGLANG(SGLANG.Options(**options))
    try:
        pools = engine.pools(question, question.ranks[0], budget).pools
    except KvpipeError:
        return "refused"
    return {"full" if p.name == "tokens" else "window": p.count for p in pools}


def worker(**facts: Any) -> Any:
    """What their configurators read of a model runner."""
    model = SimpleNamespace(hf_config=SimpleNamespace(dsa=False), context_len=131072, **facts)
    return SimpleNamespace(
        model_config=model,
        kv_cache_dtype=facts["dtype"],
        kv_cache_dtype_str="auto",
        is_draft_worker=False,
        pp_size=1,
        fused_entry_bytes=lambda name: None,
        server_args=SimpleNamespace(enable_hisparse=False),
        attn_dp_size=1,
    )


def theirs(call: Callable[[], Any]) -> Any:
    try:
        made = call()
    except (ValueError, RuntimeError):
        return "refused"
    if made.swa_max_total_num_tokens is None:
        return {"full": made.max_total_num_tokens}
    found = {"full": made.full_max_total_num_tokens, "window": made.swa_max_total_num_tokens}
    return {name: count for name, count in found.items() if count or name == "window"}


def dense(wheel: Wheel, random: Random) -> Case:
    heads, width, tp = random.choice((1, 2, 4, 8, 16)), random.choice((64, 80, 128, 256)), 1
    narrow = random.choice((width, width, width // 2))
    layers, dtype = random.randint(1, 96), random.choice(("bfloat16", "fp8_e4m3"))
    page, budget = random.choice((1, 16, 32, 64, 128)), random.randint(2**22, 2**38)
    draft = random.choice((0, 0, 1, 2))
    wheel.serve(tp=tp)
    kvc = worker(
        dtype=dtype,
        head_dim=width,
        v_head_dim=narrow,
        get_num_kv_heads=lambda *ranks: heads,
    )
    kvc.use_mla_backend = False
    _drafting(kvc, layers, draft)
    spec = FullAttentionSpec(
        block_size=1, num_kv_heads=heads, head_size=width, head_size_v=narrow, dtype=dtype
    )
    asked = (heads, width, narrow, layers, dtype, page, budget, draft)
    mine = ours([spec] * layers, budget, page, draft_layers=draft)
    return asked, mine, theirs(lambda: wheel.pools("Default", kvc, budget, page))


def _drafting(kvc: Any, layers: int, draft: int) -> None:
    kvc.layer_info = SimpleNamespace(num_effective_layers=layers, start_layer=0, end_layer=layers)
    kvc.spec_algorithm = SimpleNamespace(
        is_eagle=lambda: bool(draft), is_standalone=lambda: False, is_dflash_family=lambda: False
    )
    kvc.spec_aux_config = SimpleNamespace(eagle_draft_num_layers=draft or None)


def latent(wheel: Wheel, random: Random) -> Case:
    rank, rope = random.choice((256, 512, 1024)), random.choice((32, 64))
    layers, dsa = random.randint(1, 80), random.random() < 0.5
    dtype = random.choice(("bfloat16", "fp8_e4m3"))
    page, budget = random.choice((1, 64)), random.randint(2**22, 2**38)
    wheel.serve()
    kvc = worker(dtype=dtype, kv_lora_rank=rank, qk_rope_head_dim=rope)
    kvc.model_config.hf_config.dsa = dsa
    kvc.use_mla_backend = True
    _drafting(kvc, layers, 0)
    wheel.pool_configurator._get_dsa_cache_layer_ids = lambda kvc, count: range(count)
    wheel.pool_configurator.dsa_layer_skips_topk = lambda config, layer: False
    scaled = dsa and dtype == "fp8_e4m3"
    row = rank + rank // 128 * 4 + 2 * rope if scaled else rank + rope
    specs: list[KVCacheSpec] = [MLAAttentionSpec(block_size=1, head_size=row, dtype=dtype)]
    if dsa:
        specs.append(MLAAttentionSpec(block_size=1, head_size=132, dtype="uint8"))
    asked = (rank, rope, layers, dsa, dtype, page, budget)
    mine = ours(specs * layers, budget, page)
    return asked, mine, theirs(lambda: wheel.pools("Default", kvc, budget, page))


def windows(wheel: Wheel, random: Random, capped: bool = False) -> Case:
    full, slid = random.randint(1 if capped else 0, 40), random.randint(1, 60)
    heads, other = random.choice((1, 4, 8)), random.choice((1, 4, 8))
    width, window = random.choice((64, 128, 256)), random.choice((128, 512, 1024, 4096))
    page, ratio = random.choice((1, 16, 64)), random.choice((0.1, 0.5, 0.8, 1.0))
    budget, chunk = random.randint(2**26, 2**37), random.choice((2048, 8192))
    requests = random.randint(1, 200) if capped else None
    draft = random.choice((0, 0, 4)) if capped else 0
    wheel.serve(
        ratio=ratio,
        requests=requests,
        prefix_caching=not capped,
        chunk=chunk,
        draft_tokens=draft,
    )
    kvc = worker(
        dtype="bfloat16",
        attention_arch="mha",
        head_dim=width,
        v_head_dim=width,
        swa_head_dim=width,
        swa_v_head_dim=width,
        get_num_kv_heads=lambda *ranks: heads,
        get_swa_num_kv_heads=lambda *ranks: other,
    )
    _drafting(kvc, full + slid, 0)
    kvc.layer_info.full_attention_layer_ids = range(full)
    kvc.layer_info.swa_attention_layer_ids = range(slid)
    kvc.sliding_window_size, kvc.page_size = window, page
    rows = FullAttentionSpec(block_size=1, num_kv_heads=heads, head_size=width, dtype="bfloat16")
    slide = SlidingWindowSpec(
        block_size=1,
        num_kv_heads=other,
        head_size=width,
        dtype="bfloat16",
        sliding_window=window,
    )
    asked = (full, slid, heads, other, width, window, page, ratio, budget, requests, draft, chunk)
    mine = ours(
        [rows] * full + [slide] * slid,
        budget,
        page,
        ratio=ratio,
        requests=requests,
        prefix_caching=not capped,
        chunk=chunk,
        draft_tokens=draft,
    )
    kind = "SWARequestCap" if capped else "HybridSWA"
    return asked, mine, theirs(lambda: wheel.pools(kind, kvc, budget, page))


def states(wheel: Wheel, random: Random) -> Case:
    """The pool of states, what it leaves, and the limit on requests."""
    state, rest = random.randint(2**16, 2**27), random.randint(2**31, 2**37)
    draft, prefix = random.choice((0, 0, 4)), random.random() < 0.7
    requests = random.randint(1, 300) if draft or random.random() < 0.5 else None
    ratio, slots = random.choice((0.1, 0.9, 2.0)), random.choice((None, None, 64))
    asked = (state, rest, draft, prefix, requests, ratio, slots)
    wheel.serve(
        requests=requests,
        draft_tokens=draft,
        prefix_caching=prefix,
        mamba_ratio=ratio,
        slots=slots,
    )
    each = sizes.slots_per_request(prefix)
    known = slots if slots is not None else None if prefix else requests
    mine = sizes.state_pool(
        rest,
        state,
        ratio=ratio,
        per_request=each,
        requests=requests,
        slots=known,
        draft_tokens=draft,
    )
    try:
        count, left = wheel.states(rest / GIB, state, bool(draft))
    except RuntimeError:
        return asked, "refused" if mine.slots <= 0 else mine, "refused"
    tokens = random.randint(10, 10**7)
    limit = sizes.max_running_requests(
        tokens, 131072, asked=requests, slots=mine.slots, per_request=each
    )
    try:
        other = wheel.max_requests(tokens, 131072, True)
    except RuntimeError:
        other = 0
    bytes_left = rest - mine.charged_bytes
    # Theirs is a float of GiB: what it holds of one byte more or less is lost in it.
    agreed = bytes_left if abs(left * GIB - bytes_left) < 2 else left * GIB
    return asked, (mine.slots, bytes_left, max(0, limit)), (count, agreed, other)


def fraction(wheel: Wheel, random: Random) -> Case:
    mib, tp = random.randint(12_000, 300_000), random.choice((1, 2, 4, 8, 16))
    pp, is_latent = random.choice((1, 1, 2, 4)), random.random() < 0.5
    chunk = random.choice((None, None, 1024, 4096, 16384, 32768))
    requests = random.choice((None, None, 4, 100, 5000))
    mine = static_fraction(
        step_sizes(mib, tp, chunk, requests), mib, tp=tp, pp=pp, is_latent=is_latent
    )
    other = wheel.fraction(mib, tp, pp, is_latent, chunk, requests)
    return (mib, tp, pp, is_latent, chunk, requests), mine, other


PARTS: dict[str, Callable[[Wheel, Random], Case]] = {
    "K and V": dense,
    "latent rows": latent,
    "windows by ratio": windows,
    "windows by requests": lambda wheel, random: windows(wheel, random, capped=True),
    "states": states,
    "default share": fraction,
}


def run(wheel: Wheel, cases: int, seed: int) -> Iterator[str]:
    """A line a part; those that differ first have their cases told."""
    for name, ask in PARTS.items():
        random, found = Random(f"{seed} {name}"), Counter[str]()
        for _ in range(cases):
            asked, mine, other = ask(wheel, random)
            if mine == other:
                found["refused by both" if mine == "refused" else "equal"] += 1
                continue
            found["different"] += 1
            if found["different"] <= 3:
                yield f"different: {name} {asked}: kvpipe {mine}, SGLang {other}"
        yield f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in found.items())


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("wheel", type=Path)
    asked.add_argument("cases", type=int, nargs="?", default=1000)
    asked.add_argument("seed", type=int, nargs="?", default=0)
    given = asked.parse_args()
    logging.disable(logging.WARNING)  # of the wheel
    lines = list(run(Wheel(given.wheel), given.cases, given.seed))
    print("\n".join(lines))
    return int(any(line.startswith("different") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
