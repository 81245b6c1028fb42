"""The transformers caches over a paged store, and the hooks that tell it of every forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from transformers.cache_utils import Cache, EncoderDecoderCache

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.releases import cache_keyword
from kvpipe.stages.binding.transformers_cache._eager import eager
from kvpipe.stages.binding.transformers_cache._store import PagedStore


class PagedCache(Cache):  # type: ignore[misc]
    """`model.generate(..., cache=cache)`; bytes_held says what the batch holds now.

    The batch stays seated until `reset` (or `release`): a second call continues it, as it does with
    transformers' own caches."""

    def __init__(self, store: PagedStore, layers: list[Any]) -> None:
        super().__init__(layers=layers)
        self.store = store

    update = eager(Cache.update)
    get_mask_sizes = eager(Cache.get_mask_sizes)

    # --- rows ------------------------------------------------------------------------------------
    def reorder_cache(self, beam_idx: Any) -> None:
        self.store.select_rows(beam_idx.tolist())

    def batch_select_indices(self, indices: Any) -> None:
        self.store.select_rows(np.arange(len(self.store.rows))[indices.cpu().numpy()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        rows = range(len(self.store.rows))
        self.store.select_rows([row for row in rows for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError("a paged cache cannot be cropped: generate without an assistant")

    def reset(self) -> None:
        """The batch is done: its blocks are free."""
        self.store.release()
        for layer in self.layers:
            layer.reset()

    release = reset

    # --- prefixes --------------------------------------------------------------------------------
    def admit(self, input_ids: Any, attention_mask: Any | None = None) -> int:
        """Seat a batch before `generate`: columns of its prompts that the prefix cache serves.

        input_ids, attention_mask: [B, L], left padded. `generate` with the same input_ids then
        starts after those columns. 0 where the rows' hits do not end in the same column."""
        ids = input_ids.cpu().numpy()
        starts = row_starts(attention_mask, *ids.shape)
        prompts = [row[start:].tolist() for row, start in zip(ids, starts, strict=True)]
        column = self._common_column(starts, prompts)
        for layer in self.layers:
            layer.stored = column
        self.store.seen = column
        return column

    def _common_column(self, starts: Any, prompts: list[list[int]]) -> int:
        """Seat the rows so that all have the same columns computed."""
        store = self.store
        hits = store.seat(starts, prompts)
        column = min(int(s) + hit for s, hit in zip(starts, hits, strict=True))
        wanted = [max(0, column - int(start)) for start in starts]
        if wanted == hits:
            return column
        store.release()
        # One token more than the wanted prefix: at least one token of a prompt always remains.
        cut = [prompt[: want + 1] for prompt, want in zip(prompts, wanted, strict=True)]
        if store.seat(starts, cut) == wanted:
            return column
        store.release()
        store.seat(starts, [prompt[:1] for prompt in prompts])
        return 0

    # --- accounts --------------------------------------------------------------------------------
    @property
    def bytes_held(self) -> int:
        return self.store.bytes_held()

    @property
    def peak_bytes_held(self) -> int:
        return self.store.peak_blocks * self.store.manager.config.bytes_per_block


class PagedCrossCache(Cache):  # type: ignore[misc]
    """Cross attention's half; its rows are the store's, reordered with the self attention."""

    def __init__(self, layers: list[Any] | None = None, **ignored: Any) -> None:
        """ignored: T5Gemma makes an empty one from a config, in place of the bound one."""
        super().__init__(layers=layers or [])

    def reorder_cache(self, beam_idx: Any) -> None: ...

    def reset(self) -> None:
        for layer in self.layers:
            layer.reset()


class PagedEncoderDecoderCache(EncoderDecoderCache):  # type: ignore[misc]
    """Self and cross attention over one pool of blocks."""

    self_attention_cache: PagedCache

    @property
    def cross_attention_cache(self) -> Any:
        return self._cross

    @cross_attention_cache.setter
    def cross_attention_cache(self, cache: Any) -> None:
        """The bound one stays: only its layers have pages."""
        if not getattr(cache, "layers", None):
            return
        self._cross = cache

    @property
    def store(self) -> PagedStore:
        return self.self_attention_cache.store

    @property
    def bytes_held(self) -> int:
        return self.self_attention_cache.bytes_held

    @property
    def peak_bytes_held(self) -> int:
        return self.self_attention_cache.peak_bytes_held

    def check_dynamic_cache(self, method: str) -> None:
        if method == "crop":
            raise NotImplementedError("a paged cache cannot be cropped")

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.self_attention_cache.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Any) -> None:
        self.self_attention_cache.batch_select_indices(indices)

    release = EncoderDecoderCache.reset


def row_starts(attention_mask: Any | None, num_rows: int, num_columns: int) -> Any:
    """[B] first column of each row that is a token; ConfigError for padding not on the left."""
    if attention_mask is None:
        return np.zeros(num_rows, np.int64)
    mask = attention_mask.cpu().numpy()[:, :num_columns].astype(bool)
    starts = np.where(mask.any(1), mask.argmax(1), num_columns)
    expected = np.arange(num_columns) >= starts[:, None]
    if (mask != expected).any():
        row = int(np.flatnonzero((mask != expected).any(1))[0])
        raise ConfigError(
            Problem(
                "attention_mask",
                "padding on the left only",
                f"a hole or right padding in row {row}",
                "tokenizer.padding_side='left'",
            )
        )
    return starts


class StepHooks:
    """Forward hooks of a decoder: `store.begin` before and `store.end` after every pass that uses
    this cache. Passes with other caches, or none, are left alone. The whole model is listened to as
    well, since a multimodal one prepares the mask before its decoder sees it. switch: told the
    store whose pass begins, and None when it ends. no_padding: why padding is refused."""

    def __init__(
        self,
        model: Any,
        decoder: Any,
        cache: PagedCache,
        switch: Callable[[PagedStore | None], object],
        no_padding: str = "",
    ) -> None:
        self.switch, self.no_padding = switch, no_padding
        self.store, self.cache = cache.store, cache
        self.keyword = cache_keyword(decoder)
        self.signature = inspect.signature(decoder.forward)
        self.given_mask: Any = None  # the model's own 2-D mask, while it runs
        self.handles = [
            decoder.register_forward_pre_hook(eager(self._before), with_kwargs=True),
            decoder.register_forward_hook(eager(self._after), with_kwargs=True),
        ]
        if model is not decoder and not getattr(model.config, "is_encoder_decoder", False):
            self.handles += [
                model.register_forward_pre_hook(eager(self._listen), with_kwargs=True),
                model.register_forward_hook(eager(self._forget), always_call=True),
            ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args:
            return kwargs
        given = self.signature.bind_partial(*args).arguments
        return {**given, **kwargs}

    def _is_ours(self, arguments: Mapping[str, Any]) -> bool:
        used = arguments.get(self.keyword)
        return (getattr(used, "self_attention_cache", used)) is self.cache

    def _listen(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        self.given_mask = mask if getattr(mask, "ndim", 0) == 2 else None

    def _forget(self, module: Any, args: Any, output: Any) -> None:
        self.given_mask = None

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = self._arguments(args, kwargs)
        if not self._is_ours(arguments):
            return
        if arguments.get("use_cache") is False:
            raise ConfigError(Problem("use_cache", "true, with a bound cache", "false"))
        ids = arguments.get("input_ids")
        shape = (ids if ids is not None else arguments["inputs_embeds"]).shape[:2]
        if not self.store.rows:
            self._seat(arguments, shape)
        elif not self.store.all_started:
            self._look_again(arguments)
        token_ids = ids.cpu().numpy() if ids is not None and self.store.prefix_caching else None
        if self.store.prefix_caching and token_ids is None:
            raise ConfigError(
                Problem("binding", "input_ids for prefix caching", "inputs_embeds alone")
            )
        self.store.begin(shape[1], token_ids)
        self.switch(self.store)

    def _after(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if self._is_ours(self._arguments(args, kwargs)):
            self.store.end()
            self.switch(None)

    def _seat(self, arguments: Mapping[str, Any], shape: tuple[int, int]) -> None:
        """The first pass of a batch says where its rows start."""
        mask = self._mask(arguments)
        rows, columns = shape if mask is None else mask.shape
        starts = row_starts(mask, rows, columns)
        encoder = self._encoder_columns(arguments)
        self._check_padding(starts, encoder)
        prompts: list[list[int]] | None = None
        if self.store.prefix_caching:
            prompts = [[] for _ in range(rows)]
        self.store.seat(starts, prompts, encoder)

    def _mask(self, arguments: Mapping[str, Any]) -> Any:
        """[rows, columns], as the decoder was given it, or as the model was that prepared it."""
        mask = arguments.get("attention_mask")
        if getattr(mask, "ndim", 0) == 2 or (mask is None and self.given_mask is None):
            return mask
        if self.given_mask is None:
            raise ConfigError(
                Problem("attention_mask", "a mask [rows, columns]", "a prepared one", "pass it 2-D")
            )
        return self.given_mask

    def _check_padding(self, starts: Any, encoder: list[Any] | None) -> None:
        longest = max(map(len, encoder), default=0) if encoder else 0
        short = encoder is not None and any(len(columns) < longest for columns in encoder)
        if self.no_padding and (short or starts.any()):
            got = f"padding, where {self.no_padding}"
            knob = "prompts of one length, or one at a time"
            raise ConfigError(Problem("attention_mask", "no padding", got, knob))

    def _look_again(self, arguments: Mapping[str, Any]) -> None:
        """Chunked prefill shows the mask chunk by chunk: rows without a token yet may have one."""
        mask = self._mask(arguments)
        if mask is not None:
            self.store.starts = row_starts(mask, *mask.shape)

    @staticmethod
    def _encoder_columns(arguments: Mapping[str, Any]) -> list[Any] | None:
        """Of each row, the encoder's columns that are tokens."""
        hidden = arguments.get("encoder_hidden_states")
        if hidden is None:
            return None
        rows, columns = hidden.shape[:2]
        mask = arguments.get("encoder_attention_mask")
        if mask is None:
            return [np.arange(columns)] * rows
        return [np.flatnonzero(row) for row in mask.cpu().numpy()]
