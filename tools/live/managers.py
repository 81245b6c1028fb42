"""Two block managers behind the same few calls: kvpipe's, and vLLM's own. Runs where vLLM is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec

LENGTH, BATCH = 1 << 18, 1 << 14
HEAD: dict[str, Any] = {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
Shape = tuple[str, Mapping[str, int]]  # vLLM's name of a spec, and its sizes


@dataclass(frozen=True, kw_only=True)
class Kind:
    """groups: in both managers' order. drafts: whether rejected tokens can be given back. aligned:
    tokens of which a chunk of a prompt ends at a multiple, as schedulers cut them for states."""

    groups: Sequence[Shape]
    mode: str = "none"
    drafts: bool = True
    aligned: int = 1

    def chunk(self, stored: int, asked: int, length: int) -> int:
        """How many of the asked tokens a chunk after `stored` brings."""
        last = length // self.aligned * self.aligned
        stop = min(stored + asked, length)
        if stored < last:
            stop = min(last, -(-stop // self.aligned) * self.aligned)
        return stop - stored


def _full(block: int = 16) -> Shape:
    return "FullAttentionSpec", {"block_size": block}


def _window(window: int, block: int = 16) -> Shape:
    return "SlidingWindowSpec", {"block_size": block, "sliding_window": window}


def _chunked(chunk: int, block: int = 16) -> Shape:
    return "ChunkedLocalAttentionSpec", {"block_size": block, "attention_chunk_size": chunk}


def _state(block: int) -> Shape:
    return "MambaSpec", {"block_size": block}


KINDS: dict[str, Kind] = {
    "full": Kind(groups=[_full()]),
    "latent": Kind(groups=[("MLAAttentionSpec", {"block_size": 16})]),
    "window of 40": Kind(groups=[_window(40)]),
    "full, window of 40": Kind(groups=[_full(), _window(40)]),
    "full, window of 1,024": Kind(groups=[_full(), _window(1024)]),
    "full, two windows": Kind(groups=[_full(), _window(40), _window(100)]),
    "full, window in blocks twice as large": Kind(groups=[_full(), _window(40, 32)]),
    "full, chunks of 64": Kind(groups=[_full(), _chunked(64)]),
    "state, none": Kind(groups=[_state(LENGTH)], drafts=False),
    "full, state, align": Kind(
        groups=[_full(), _state(16)], mode="align", drafts=False, aligned=16
    ),
}


class Manager(Protocol):
    def begin_step(self) -> None: ...
    def admit(self, name: str, tokens: list[int], new: int) -> tuple[int, int] | None: ...
    def prefill(self, name: str, new: int) -> bool: ...
    def decode(self, name: str, token: int, drafts: int, accepted: int) -> bool: ...
    def decode_batch(self, names: list[str], token: int) -> None: ...
    def free(self, name: str) -> None: ...
    def num_free(self) -> int: ...


# --- kvpipe's ------------------------------------------------------------------------------------
class _Ours:
    def __init__(self, kind: Kind, manager: BlockManager) -> None:
        self.kind, self.manager = kind, manager
        self.begin_step, self.free = manager.begin_step, manager.free

    def num_free(self) -> int:
        return self.manager.pool.num_free

    def admit(self, name: str, tokens: list[int], new: int) -> tuple[int, int] | None:
        """(tokens hit, tokens granted); None where the pool has no room."""
        hit = self.manager.add_request(name, tokens)
        new = self.kind.chunk(hit, new, len(tokens))
        if self.prefill(name, new):
            return hit, new
        self.manager.free(name)
        return None

    def prefill(self, name: str, new: int) -> bool:
        try:
            self.manager.allocate(name, new)
        except OutOfBlocks:
            return False
        return True

    def decode(self, name: str, token: int, drafts: int, accepted: int) -> bool:
        try:
            self.manager.append([name], [token], drafts)
        except OutOfBlocks:
            return False
        if drafts:
            self.manager.accept(name, accepted, [token] * accepted)
        return True

    def decode_batch(self, names: list[str], token: int) -> None:
        tokens = [token] * len(names) if self.manager.prefix_caching else None
        self.manager.append(names, tokens)


def kvpipes(kind: Kind, num_blocks: int, caching: bool) -> Manager:
    specs = [_our_spec(shape, kind.mode) for shape in kind.groups]
    groups = tuple(
        KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=spec) for i, spec in enumerate(specs)
    )
    config = KVCacheConfig(num_blocks=num_blocks, tensors=(), groups=groups, bytes_per_block=1)
    limits = RequestLimits(
        max_model_len=LENGTH, max_num_batched_tokens=BATCH, mamba_cache_mode=kind.mode
    )
    return _Ours(kind, BlockManager(config, limits, prefix_caching=caching))


def _our_spec(shape: Shape, mode: str) -> KVCacheSpec:
    name, sizes = shape
    if name == "MambaSpec":
        states = (StateArray(name="ssm", shape=(8, 64), dtype="float32"),)
        return MambaSpec(states=states, mamba_cache_mode=mode, **sizes)
    if name == "MLAAttentionSpec":
        return MLAAttentionSpec(**{**HEAD, "num_kv_heads": 1, "head_size": 576}, **sizes)
    known = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
    return {cls.__name__: cls for cls in known}[name](**HEAD, **sizes)


# --- vLLM's --------------------------------------------------------------------------------------
class _Theirs:
    def __init__(self, kind: Kind, manager: Any, hasher: Any) -> None:
        self.kind, self.manager, self.hasher = kind, manager, hasher
        self.requests: dict[str, Any] = {}
        self.begin_step = getattr(manager, "new_step_starts", lambda: None)

    def num_free(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())

    def admit(self, name: str, tokens: list[int], new: int) -> tuple[int, int] | None:
        request = self._request(name, tokens)
        blocks, hit = self.manager.get_computed_blocks(request)[:2]
        new = self.kind.chunk(hit, new, len(tokens))
        if self.manager.allocate_slots(request, new, hit, blocks) is None:
            return None
        request.num_computed_tokens = hit + new
        self.requests[name] = request
        return hit, new

    def prefill(self, name: str, new: int) -> bool:
        request = self.requests[name]
        if self.manager.allocate_slots(request, new) is None:
            return False
        request.num_computed_tokens += new
        return True

    def decode(self, name: str, token: int, drafts: int, accepted: int) -> bool:
        """As its scheduler does: drafts are new tokens, and what is rejected was not computed."""
        request = self.requests[name]
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(token)
        request.spec_token_ids = [token] * drafts
        if self.manager.allocate_slots(request, 1 + drafts) is None:
            return False
        request.append_output_token_ids([token] * accepted)
        request.num_computed_tokens += 1 + accepted
        request.spec_token_ids = []
        return True

    def decode_batch(self, names: list[str], token: int) -> None:
        for name in names:
            request = self.requests[name]
            self.manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
            request.append_output_token_ids(token)

    def free(self, name: str) -> None:
        self.manager.free(self.requests.pop(name))

    def _request(self, name: str, tokens: list[int]) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        known = {
            "request_id": name,
            "prompt_token_ids": tokens,
            "sampling_params": SamplingParams(max_tokens=4000),
            "pooling_params": None,
            "eos_token_id": None,
            "block_hasher": self.hasher,
        }
        return Request(**_accepted(Request, known))


def vllms(kind: Kind, num_blocks: int, caching: bool) -> Manager:
    from vllm.utils.hashing import sha256
    from vllm.v1 import kv_cache_interface as interface
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    kv_cache_utils.init_none_hash(sha256)
    granule = min(sizes["block_size"] for _, sizes in kind.groups)
    groups = [
        interface.KVCacheGroupSpec([f"layers.{i}"], _their_spec(shape, kind.mode))
        for i, shape in enumerate(kind.groups)
    ]
    config = interface.KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
    )
    known = {
        "max_model_len": LENGTH,
        "hash_block_size": granule,
        "scheduler_block_size": max(sizes["block_size"] for _, sizes in kind.groups),
        "max_num_batched_tokens": BATCH,
        "enable_caching": caching,
    }
    hasher = kv_cache_utils.get_request_block_hasher(granule, sha256) if caching else None
    return _Theirs(kind, KVCacheManager(config, **_accepted(KVCacheManager, known)), hasher)


def vllm_pool(num_blocks: int) -> tuple[Any, Any]:
    """How blocks are taken from, and given back to, its pool."""
    from vllm.v1.core.block_pool import BlockPool

    known = {"num_gpu_blocks": num_blocks, "enable_caching": True, "hash_block_size": 16}
    pool = BlockPool(**_accepted(BlockPool, known))
    return pool.get_new_blocks, pool.free_blocks


def _their_spec(shape: Shape, mode: str) -> Any:
    import torch
    from vllm.v1 import kv_cache_interface as interface

    name, sizes = shape
    cls, head = getattr(interface, name), {**HEAD, "dtype": torch.bfloat16}
    if name == "MambaSpec":
        known = {"shapes": ((8, 64),), "dtypes": (torch.float32,), "mamba_cache_mode": mode}
        return cls(**_accepted(cls, known), **sizes)
    if name == "MLAAttentionSpec":
        head |= {"num_kv_heads": 1, "head_size": 576}
    return cls(**head, **sizes)


def _accepted(callable_: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that this release has."""
    names = inspect.signature(callable_).parameters
    return {name: value for name, value in known.items() if name in names}
