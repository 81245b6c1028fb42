"""What a run decides before a spec is asked anything: the bounds of a request, and of a model."""

from __future__ import annotations

from dataclasses import dataclass


def cdiv(a: int, b: int) -> int:
    """Ceiling division of non-negative integers."""
    return -(-a // b)


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """The bounds of one request and of one step that block counts depend on; sizes in tokens."""

    max_model_len: int
    max_num_batched_tokens: int
    max_encoder_tokens: int = 0
    max_concurrent_batches: int = 1
    num_lookahead_tokens: int = 0
    dcp: int = 1  # decode context parallel size
    pcp: int = 1  # prefill context parallel size
    mamba_cache_mode: str = "none"  # none | align | all: the engine's, not a layer's

    @property
    def tokens_in_flight(self) -> int:
        return self.max_num_batched_tokens * self.max_concurrent_batches

    def with_length(self, max_model_len: int) -> RequestLimits:
        """As `replace`, which is slow, and searches over lengths ask thousands of times."""
        if max_model_len == self.max_model_len:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, max_model_len=max_model_len)
        return made


@dataclass(frozen=True, kw_only=True)
class SpecContext:
    """What a run decides for every layer, when a model's geometry becomes specs.

    dtype: storage of K and V, a key of DTYPE_BYTES. cache_dtype: the configured word, with `auto`
    resolved ("fp8_ds_mla" stays). scaled_rows: that word, where K and V lie in rows with scales of
    their own. conv_dtype, ssm_dtype: storage of states.
    """

    block_size: int
    dtype: str
    cache_dtype: str
    model_dtype: str
    conv_dtype: str
    ssm_dtype: str
    max_model_len: int
    mamba_block_size: int | None = None
    mamba_page_size_padded: int | None = None
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0
    scaled_rows: str = ""
    mamba2_checkpoint_blocks: int = 0  # that the engine keeps beside a Mamba-2 state in mode align
