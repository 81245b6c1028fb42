"""A cache set by hand that its card has not: the sizes that it has, to be planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.answers.card_room import is_beyond_card
from kvpipe.answers.plan_hints import AS_THE_CARD_HAS
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, prepare, profile_ranks
from kvpipe.request.changed import changed
from kvpipe.text.figures import MIB

_KEY = "cache.kv_cache_memory_bytes"


def sizes_of_card(prepared: Prepared) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Changes, in words: no size by hand, then one that the card surely has; nothing where the
    card has what was set."""
    if not is_beyond_card(prepared):
        return
    yield {_KEY: None}, AS_THE_CARD_HAS
    if size := _surely_there(prepared):
        yield {_KEY: size}, "what its share of the card leaves, by hand"


def _surely_there(prepared: Prepared) -> int:
    """What the share leaves by the best value, as far as the whole card has it where all beside it
    is as large as it may be; in whole MiB."""
    try:
        profile = profile_ranks(prepare(changed(prepared.raw, {_KEY: None})))
    except KvpipeError:
        return 0
    sizes = (
        min(rank.available_kv_bytes, rank.total.num_bytes - sum(i.at_most for i in rank.charged))
        for rank in profile.ranks
    )
    return max(0, min(sizes)) // MIB * MIB
