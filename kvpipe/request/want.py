"""The load that a request names (`want`): what find searches for; of it every command reads
how many users at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.errors import ConfigError, Problem
from kvpipe.request.config import CacheDtype, Count
from kvpipe.text.quantities import Tokens

_MOST = 2**31
Milliseconds = Annotated[float, Field(gt=0, lt=1e9)]
Price = Annotated[float, Field(gt=0, lt=1e9)]


class Want(BaseModel):
    """requests of length tokens each, running at once. length auto: the model's context. device:
    cards to choose from (null: the one that is planned for, searched setting by setting). prices:
    of a card and hour, by device, in any currency. caches, batches, seqs: cache types, tokens a
    step and sequences at once to choose from (null: as the request has them). token_ms: the most
    that a token may take; first_token_ms, wait_ms: the first one, and the queue before it, of a
    trace of requests. percentile: so many percent of the requests are held to these. write: files
    that start the first fleet, its containers of this image (null: the planned release's own)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    requests: Count
    length: Tokens | Literal["auto"]
    device: Annotated[list[str], Field(min_length=1)] | None
    prices: dict[str, Price] | None
    caches: Annotated[list[CacheDtype], Field(min_length=1)] | None = None
    batches: Annotated[list[Count], Field(min_length=1)] | None = None
    seqs: Annotated[list[Count], Field(min_length=1)] | None = None
    token_ms: Milliseconds | None
    first_token_ms: Milliseconds | None = None  # files of third parties lack these
    wait_ms: Milliseconds | None = None
    percentile: Literal[50, 90, 99] = 99
    write: Literal["compose", "kubernetes"] | None = None
    image: Annotated[str, Field(min_length=1, max_length=500)] | None = None


def requests_asked(want: Mapping[str, Any]) -> int:
    """want.requests, 1 where nothing is said; ConfigError where it is no number of requests."""
    asked = want.get("requests", 1)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked < _MOST:
        expected = f"a whole number of users from 1 to {_MOST - 1:,}"
        raise ConfigError(Problem("want.requests", expected, repr(asked), "for example --users 16"))
    return asked
