"""Whether what was bound is proved, and with how much: the self-proof itself is `_proof`."""

from __future__ import annotations

from collections.abc import Mapping

from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.binding._options import VerifyOptions
from kvpipe.stages.binding.base import AttentionLayer, VerifyReport


def verify(
    layers: Mapping[str, AttentionLayer],
    config: KVCacheConfig,
    buffers: KVBuffers,
    limits: RequestLimits,
    options: VerifyOptions,
) -> VerifyReport:
    """The proof's report, or why there is none. layers: every bound layer."""
    backend = buffers.backend
    if not options.enabled:
        return VerifyReport(reason="not asked for")
    if not backend.owns_memory:
        return VerifyReport(reason="no memory")
    from kvpipe.stages.binding._proof import prove

    return prove(layers, config, buffers, limits, options)
