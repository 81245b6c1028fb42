"""vLLM 0.33.0: one backing allocation, every group admitted, null block reserved."""

from kvpipe.engines.base import EngineRules

_FULL = frozenset({"kind", "sink_len"})
_SLIDING_MLA = frozenset(
    {
        "block_size",
        "page_size_padded",
        "num_kv_heads",
        "head_size",
        "head_size_v",
        "dtype",
        "state_content_bytes",
        "alignment",
    }
)

PLUGIN = EngineRules(
    name="vllm_0_33",
    source="vLLM 0.33.0",
    encoder_only="refused",
    empty_rank="refused",
    prefill_context_parallel=False,
    mamba_mode_all="as_none",
    merge_ignores={
        "full": _FULL,
        "sink": _FULL,
        "mla": frozenset({"alignment"}),
        "sliding_mla": _SLIDING_MLA,
    },
    window_conflict="refused",
    bucket_by="merge",
    padding_threshold=1.5,
    states_of_one_type="equal_pages",
    unify_pages="pad_states",
    unpaddable_kinds=frozenset({"mla"}),
    packed_groups=True,
    pool="one_allocation",
    override="memory",
    request_bound="max_blocks",
    printed="by_concurrency",
)
