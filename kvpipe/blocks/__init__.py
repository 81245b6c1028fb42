"""What makes a bound cache usable: block pool, block tables, prefix cache, request traces.

Imports numpy; nothing that plans imports this package.
"""

from kvpipe.blocks.errors import BlockError, OutOfBlocks
from kvpipe.blocks.group_hits import GroupHit
from kvpipe.blocks.hashing import Chain, Key, MediaRange, PrefixChain, PrefixIdentity
from kvpipe.blocks.manager import BlockManager
from kvpipe.blocks.pool import NULL_BLOCK, BlockPool
from kvpipe.blocks.request import BlockCopy
from kvpipe.blocks.stats import PoolStats

__all__ = [
    "NULL_BLOCK",
    "BlockCopy",
    "BlockError",
    "BlockManager",
    "BlockPool",
    "Chain",
    "GroupHit",
    "Key",
    "MediaRange",
    "OutOfBlocks",
    "PoolStats",
    "PrefixChain",
    "PrefixIdentity",
]
