"""Each word of a report, explained once, for somebody who reads it the first time.

The causes of `report=full` are those of `accounts.CAUSES`; here stand the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvpipe.report.accounts import CAUSES
from kvpipe.report.screen_words import SCREEN_WORDS
from kvpipe.report.word import Word

_OTHERS: Mapping[str, Word] = {
    "activations": Word(
        text="memory of the largest forward pass: what the layers compute for one batch",
        see="scheduler.max_num_batched_tokens",
    ),
    "block": Word(
        text="the unit in which cache is handed out: block_size tokens of every layer of a group",
        see="cache.block_size",
    ),
    "closed form": Word(
        text="a figure from a formula; elsewhere it was found by trying, step by step",
        see="exact",
    ),
    "context": Word(
        text="what the driver and its libraries keep on the card for each process; also a model's "
        "longest length in tokens (scheduler.max_model_len)",
    ),
    "estimated": Word(
        text="computed by a model that was calibrated with engine logs; its range is what such "
        "engines differed by. measured: read from a device; exact: nothing can differ; set: said "
        "by you; nominal: from a data sheet",
    ),
    "exact": Word(text="nothing can differ: a count, not a measurement", see="estimated"),
    "fits": Word(
        text="the longest request runs, and as many at once as were asked for, at the lower end of "
        "an estimate, too",
        see="may not fit",
    ),
    "graphs": Word(
        text="CUDA graphs: recorded steps for small batches, which hold memory of their own",
        see="profiling.enforce_eager",
    ),
    "group": Word(
        text="layers that keep the same tokens and so share one table of blocks",
        see="grouping",
    ),
    "headroom": Word(
        text="how many more users than were asked for would run, as a share of those asked for",
        see="want.requests",
    ),
    "hybrid manager": Word(
        text="groups of several kinds (windows beside full attention) in one pool of blocks; "
        "without it windows are kept like full attention",
        see="cache.disable_hybrid_kv_cache_manager",
    ),
    "longest": Word(
        text="the most tokens with which the users that were asked for still run, by the best "
        "value of an estimate; the longest that surely runs: by its lower end, too",
        see="scheduler.max_model_len",
    ),
    "lost": Word(
        text="in compare: bytes of the cache that an engine's way of laying it out leaves unused; "
        "in a sweep: a job whose process ended without an answer",
        see="waste",
    ),
    "may not fit": Word(
        text="an estimate's range straddles what the users that were asked for need: they run at "
        "one end of it and not at the other. Exit code 0 where its best value serves them, else 1",
        see="estimated",
    ),
    "page": Word(text="the bytes of one layer in one block", see="page_padding"),
    "peak": Word(
        text="a request while its prompt is being read: it holds more blocks than later, where "
        "windows or states let tokens go",
        see="steady",
    ),
    "prefix caching": Word(
        text="full blocks are found again by other requests that begin alike",
        see="cache.enable_prefix_caching",
    ),
    "rank": Word(
        text="one process's share of the model, on one card",
        see="parallel.tensor_parallel_size",
    ),
    "resident": Word(text="blocks of which something will still be read"),
    "running": Word(
        text="requests that decode at once, of the planned length, where one of them can read its "
        "prompt; no more than max_num_seqs",
        see="scheduler.max_num_seqs",
    ),
    "slot": Word(text="a token's place in the cache: block x block_size + position in it"),
    "steady": Word(
        text="a request that decodes: its prompt has been read, tokens are added one by one",
        see="peak",
    ),
    "utilization": Word(
        text="the share of the whole card that an engine may use, weights and activations included",
        see="cache.gpu_memory_utilization",
    ),
    "waste": Word(text="cache bytes that hold no payload, as a share of those given to the cache"),
    "window": Word(
        text="a layer that sees the last so many tokens only, and keeps no more",
        see="cache.sliding_window",
    ),
}
_OF_CAUSES = {cause.replace("_", " "): Word(text=text) for cause, text in CAUSES.items()}
WORDS: Mapping[str, Word] = dict(sorted({**_OF_CAUSES, **SCREEN_WORDS, **_OTHERS}.items()))


def explained(said: str) -> str | None:
    """The word that is meant: any case, dashes or underscores for blanks, one s too many."""
    plain = " ".join(said.casefold().replace("_", " ").replace("-", " ").split())
    found = [word for word in (plain, plain.removesuffix("s")) if word in WORDS]
    return found[0] if found else None
