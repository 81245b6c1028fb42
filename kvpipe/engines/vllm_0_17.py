"""vLLM 0.17.0, quirks included."""

from kvpipe.engines.base import EngineRules

# A layer that keeps every token takes the first one's sizes where these differ.
_FULL = frozenset({"kind", "sink_len", "head_size_v"})
# Latent caches are told apart by their cache dtype alone.
_MLA = frozenset(
    {
        "block_size",
        "page_size_padded",
        "num_kv_heads",
        "head_size",
        "head_size_v",
        "dtype",
        "state_content_bytes",
        "tokens_per_state",
        "dcp_sharded",
        "alignment",
    }
)

PLUGIN = EngineRules(
    name="vllm_0_17",
    source="vLLM 0.17.0",
    cuda_block_sizes=(1, 2, 4, 8, 16, 32),
    encoder_only="first_refused",
    empty_rank="refused",
    tokens_in_flight="one_batch",
    merge_ignores={"full": _FULL, "sink": _FULL, "mla": _MLA},
    window_conflict="refused",
    promotion_takes_block_size=False,
    unify_pages="refuse",
    override="count",
    admission="first_group",
    reserves_null_block=False,
    request_bound="max_blocks",
    printed="group_share",
)
