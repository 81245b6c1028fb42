"""The words of the screens: labels, and headers of their tables, each explained once."""

from __future__ import annotations

from collections.abc import Mapping

from kvpipe.report.word import Word

SCREEN_WORDS: Mapping[str, Word] = {
    "users": Word(
        text="requests that run at once, each of the planned length. peak: all reading their "
        "prompts; steady: all decoding; alike: as many either way",
        see="want.requests",
    ),
    "alike": Word(
        text="as many users at their peak as in steady state: no layer lets tokens go",
        see="peak",
    ),
    "limit": Word(
        text="what holds the users down to that many: the memory of the cache, or the "
        "scheduler's max_num_seqs",
        see="scheduler.max_num_seqs",
    ),
    "card": Word(
        text="the memory of one rank's card, to scale: W weights, A activations, C context, "
        "G graphs, K the cache, . free; in find: cards that a fleet needs in all",
        see="rank",
    ),
    "plan": Word(
        text="what the memory for the cache becomes: blocks, all of one size, of every rank",
        see="block",
    ),
    "model": Word(
        text="what is served: its name, the type of its weights, the type of what the cache stores",
        see="weights",
    ),
    "serve": Word(
        text="the command that starts a server with this plan; none: no flags say it, and why",
        see="engine",
    ),
    "files": Word(
        text="the folder of this run: the composed config, plan.json, the memory map",
        see="hydra.run.dir",
    ),
    "warning": Word(
        text="something that costs memory, speed or correctness; report=full has all of them",
        see="change",
    ),
    "change": Word(
        text="the setting that ends the warning above it: planned, and it does. What makes a "
        "request fit is told in the last line",
        see="warning",
    ),
    "proof": Word(
        text="what was written through every layer's page and read back through the block "
        "tables; mismatches: bytes that were not the same",
        see="binding.verify.inject",
    ),
    "request": Word(
        text="one prompt with its answer; of a plan, of scheduler.max_model_len tokens",
        see="users",
    ),
    "concurrency": Word(
        text="how many requests of max_model_len tokens the cache holds at once, parts of "
        "one counted: what engines print",
        see="steady",
    ),
    "copies": Word(
        text="data parallelism: the same ranks again, with a cache of their own; a request "
        "stays with its copy",
        see="parallel.data_parallel_size",
    ),
    "replica": Word(
        text="one server of a fleet: all its ranks and copies; a request stays with its replica",
        see="want.device",
    ),
    "as": Word(
        text="in find: replicas x ranks of each, TP (tensor), PP (pipeline) or DP (copies) so many",
        see="replica",
    ),
    "of": Word(
        text="in find: the type of a fleet's cards, of which the number stands before it",
        see="cards",
    ),
    "verdict": Word(
        text="fits, may not fit or does not fit: at every end of the memory's estimate, at some, "
        "at none",
        see="may not fit",
    ),
    "cards": Word(
        text="in find: all that a fleet has, of the type beside it",
        see="replica",
    ),
    "users each": Word(
        text="in find: requests that one replica runs at once",
        see="users",
    ),
    "token >=": Word(
        text="no faster than this: what a step must read and compute, by the card's data "
        "sheet; a bound, not an estimate",
        see="trace.efficiency",
    ),
    "cost": Word(
        text="the price of all cards of a fleet for an hour, by want.prices",
        see="want.prices",
    ),
    "range": Word(
        text="the same figure at the low and the high end of the memory's estimate",
        see="estimated",
    ),
    "cache": Word(
        text="bytes of one rank's card that hold keys, values and states",
        see="cache.kv_cache_memory_bytes",
    ),
    "tokens": Word(
        text="tokens of requests of the planned length that the cache holds at once",
        see="longest",
    ),
    "rules": Word(
        text="in compare: how an engine's arithmetic is known: checked against its code, "
        "read in it, or inferred",
        see="exact",
    ),
    "engine": Word(
        text="whose rules of memory, groups and defaults the plan follows",
        see="engine.version",
    ),
    "wait": Word(
        text="seconds in the queue before a request's first step (replay)",
        see="want.wait_ms",
    ),
    "first token": Word(
        text="seconds from a request's arrival to its first token (replay)",
        see="want.first_token_ms",
    ),
    "each token": Word(
        text="milliseconds between two tokens of a request (replay)",
        see="want.token_ms",
    ),
    "together": Word(
        text="requests that run at once in a replay: the most, and on average",
        see="users",
    ),
    "ran dry": Word(
        text="in replay: where first no block was left and a request was preempted",
        see="preempted",
    ),
    "preempted": Word(
        text="a request whose blocks were taken for others; it is computed again from its prompt",
        see="scheduler.max_num_seqs",
    ),
    "a step": Word(
        text="one forward pass of all running requests, and what its time rests on (replay)",
        see="trace.step_seconds",
    ),
    "replay": Word(
        text="a trace, step by step, through the block manager of this plan",
        see="together",
    ),
    "pool": Word(
        text="all blocks of a rank; allocated, shared, evicted and freed are counted over "
        "the whole replay",
        see="block",
    ),
    "prefix": Word(
        text="prompt tokens that were found in cached blocks, not computed (replay)",
        see="prefix caching",
    ),
    "over time": Word(
        text="blocks in use from the first step to the last, to scale (replay)",
        see="pool",
    ),
    "gap": Word(
        text="blocks that a replay held less what the closed form computes for the same "
        "requests, and what makes up the difference",
        see="closed form",
    ),
    "drafts": Word(
        text="tokens that a draft proposed, and how many of them were accepted",
        see="scheduler.num_speculative_tokens",
    ),
    "at peak": Word(text="in compare: users while all read their prompts", see="peak"),
    "a token each": Word(
        text="in compare: no faster than this between two tokens of each user; a bound",
        see="token >=",
    ),
    "tokens/s a card": Word(
        text="in compare: tokens of all users in a second over the cards; no more than this",
        see="token >=",
    ),
}
