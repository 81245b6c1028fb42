"""A real model with random weights, generating twice: with transformers' own cache, and bound.

T tokens a row are generated greedily; both runs must choose the same ones, from the same logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.models.probe.needs import LayerNeeds, dtype_name
from kvpipe.models.probe.releases import cache_keyword

TINY_PARAMETERS = 5_000_000
MAX_ENCODER_TOKENS = 24  # of the encoder-decoders that take token ids


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """tokens: compared. different: of them, how many are another token or come from logits that are
    off by more than `bound`. max_difference: of any logit. digest: sha256 of the bound run's."""

    tokens: int
    different: int
    max_difference: float
    bound: float
    digest: str


@contextmanager
def quiet_and_small(num_parameters: int) -> Iterator[None]:
    """No hints of transformers on stderr; and one thread for a tiny model, whose matrices gain
    nothing from more and on a busy machine lose much."""
    import torch
    from transformers.utils import logging

    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(1 if num_parameters < TINY_PARAMETERS else threads)
    logging.set_verbosity_error()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)


def load_config(place: str) -> Any:
    """The transformers config of a folder, a config.json, or a repository."""
    from kvpipe.models.probe import build

    with users_file("a config.json that transformers reads"):
        return build.load_config(place)


@contextmanager
def users_file(expected: str) -> Iterator[None]:
    """What transformers cannot do with the file, without our cache, is the file's."""
    try:
        yield
    except KvpipeError:
        raise
    except Exception as error:  # a modeling file may fail in any way, and says so itself
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        knob = "mend the file, or binding=context, which needs no transformers model"
        raise ConfigError(Problem("model.path", expected, told, knob)) from error


def random_model(config: Any, dtype: str, seed: int, weight_scale: float) -> Any:
    """The model in eval mode. weight_scale: of every matrix; at 1 greedy text hardly depends on its
    context, and a broken cache would not show."""
    import torch

    from kvpipe.models.probe.build import model_class

    with torch.random.fork_rng(devices=[]), users_file("a config.json that transformers builds"):
        torch.manual_seed(seed)
        try:
            model = model_class(config)(config).to(getattr(torch, dtype)).eval()
        except AssertionError:
            _check_padding(config)
            raise
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(weight_scale)
    for name in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"):
        setattr(model.generation_config, name, None)
    model.generation_config.pad_token_id = 0
    return model


def parameter_count(config: Any) -> int:
    """Of the model of a config, built on the meta device."""
    from kvpipe.models.probe.build import skeleton

    with users_file("a config.json that transformers builds"):
        return sum(parameter.numel() for parameter in skeleton(config).parameters())


def _check_padding(config: Any) -> None:
    """Embeddings have a row for the padding token, or the model cannot be built."""
    text = config.get_text_config(decoder=True)
    vocab, pad = getattr(text, "vocab_size", None), getattr(text, "pad_token_id", None)
    if isinstance(vocab, int) and isinstance(pad, int) and pad >= vocab:
        raise ConfigError(
            Problem(
                "model.path (pad_token_id)",
                f"a token below vocab_size, {vocab:,}",
                f"{pad:,}, from the file or its class's default",
                "write one, or null, into config.json",
            )
        )


def random_inputs(model: Any, lengths: list[int], seed: int) -> dict[str, Any]:
    """What `generate` takes: left-padded prompts of these lengths; for encoder-decoders encoder
    inputs, ragged where they are tokens."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    config = model.config
    if model.main_input_name == "input_features":
        shape = (len(lengths), config.num_mel_bins, 2 * config.max_source_positions)
        features = torch.randn(shape, generator=generator)
        return {"input_features": features.to(model.device, model.dtype)}
    is_encoder = bool(getattr(config, "is_encoder_decoder", False))
    if is_encoder:
        lengths = [min(length, MAX_ENCODER_TOKENS) for length in lengths]
    width, vocab = max(lengths), config.get_text_config(decoder=True).vocab_size
    ids = torch.zeros((len(lengths), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        own = slice(0, length) if is_encoder else slice(width - length, width)
        ids[row, own] = torch.randint(min(3, vocab - 1), vocab, (length,), generator=generator)
        mask[row, own] = 1
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


def generate(
    model: Any, inputs: dict[str, Any], new_tokens: int, chunk: int | None, cache: Any
) -> Any:
    """Greedy tokens and the logits they were chosen from."""
    import torch

    options: dict[str, Any] = {cache_keyword(model): cache} if cache is not None else {}
    if chunk is not None:
        options["prefill_chunk_size"] = chunk
    with torch.no_grad():
        return model.generate(
            **inputs,
            **options,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_logits=True,
        )


def own_cache(needs: tuple[LayerNeeds, ...], config: Any, storage: str | None) -> Any:
    """transformers' own cache (None: its default). storage: K and V are rounded to this dtype by
    torch's cast on their way in, which is all that a quantised page does to them."""
    if storage is None or not any(need.attention for need in needs):
        return None
    import torch
    from transformers import DynamicCache, EncoderDecoderCache

    target = getattr(torch, {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}[storage])
    limit = torch.finfo(target).max

    class Rounded(DynamicCache):  # type: ignore[misc]
        def update(self, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            k, v = (x.float().clamp(-limit, limit).to(target).to(x.dtype) for x in (k, v))
            return super().update(k, v, *args, **kwargs)

    if getattr(config, "is_encoder_decoder", False):
        return EncoderDecoderCache(Rounded(), Rounded())
    return Rounded(config=config.get_text_config(decoder=True))


def compare(own: Any, bound: Any, limit: float) -> Comparison:
    """Token by token, row by row."""
    import torch

    steps = [
        (a.float() - b.float()).abs().amax(-1)
        for a, b in zip(own.logits, bound.logits, strict=True)
    ]
    difference = torch.stack(steps, dim=1)  # [B, T]
    num_new = difference.shape[1]
    tokens = own.sequences[:, -num_new:] != bound.sequences[:, -num_new:]
    off = tokens | ~(difference <= limit)
    text = bound.sequences[:, -num_new:].contiguous().cpu().numpy().tobytes()
    return Comparison(
        tokens=off.numel(),
        different=int(off.sum()),
        max_difference=float(difference.max()),
        bound=limit,
        digest=sha256(text).hexdigest(),
    )


def bound_for(dtype: Any) -> float:
    """Logit difference that another order of additions explains: 1e-4 in float32."""
    import torch

    return 1e-4 if dtype_name(dtype) == "float32" else float(64 * torch.finfo(dtype).eps)
