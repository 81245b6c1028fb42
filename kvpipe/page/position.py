"""What a page knows of one combination of settings: figures of a plan, ready to be added up.

The bytes of a card are linear in the users, since requests of one length take the same blocks:
every cause is `fixed + each * users`, and that is all the arithmetic that a page does. Both numbers
are read off the planner's own account of the card, with one user and with two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Share:
    """Bytes of one cause of the card while `users` requests run: fixed + each * users."""

    cause: str
    fixed: int
    each: int


@dataclass(frozen=True, kw_only=True)
class Position:
    """One plan. Lengths in tokens, the rest as named.

    status, says: the verdict while it holds the users (of one user; of none where it runs none).
    users: requests that run at once, by memory and scheduler; memory_users: by memory alone;
    low_users: of them, those that run with the least memory of the estimate, too; high_users: those
    that run with the most of it, where its best value refuses them, too.
    peak_users, steady_users: all reading their prompts, all decoding; each on all copies, which
    share the users evenly (data parallelism). request_bytes: one that
    decodes, on this rank. cache_bytes, low_bytes, high_bytes: given to the cache, and the range of
    the estimate (the same three where it is no estimate). shares: of the rank drawn, with the
    users of its copy; they add up to card_bytes, or beyond. serve: the engine's command ("": none
    says this plan); no_serve: why there is none.
    """

    status: str
    says: str
    card_bytes: int
    shares: tuple[Share, ...]
    copies: int = 1
    users: int = 0
    memory_users: int = 0
    low_users: int = 0
    high_users: int = 0
    peak_users: int = 0
    steady_users: int = 0
    request_bytes: int = 0
    cache_bytes: int = 0
    low_bytes: int = 0
    high_bytes: int = 0
    serve: str = ""
    no_serve: str = ""


def shares_of(one: Mapping[str, int], two: Mapping[str, int]) -> tuple[Share, ...]:
    """From the accounts of one user and of two; causes that are never there are left out."""
    shares = (
        Share(cause=cause, fixed=2 * one[cause] - two[cause], each=two[cause] - one[cause])
        for cause in one
    )
    return tuple(share for share in shares if share.fixed or share.each)
