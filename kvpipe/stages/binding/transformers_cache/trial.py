"""What a model can take, found out by trying: two rows, one padded, a prefill and one decode step,
with its own cache and with a bound one.

An encoder's tokens are padded, too: attention that reads padding shows here, not in a user's text.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.as_transformers import cache_layers
from kvpipe.models.probe.needs import LayerNeeds
from kvpipe.models.probe.releases import cache_keyword
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.binding.transformers_cache.bound import Mode, bind_needs, use_direct
from kvpipe.stages.binding.transformers_cache.match import PlannedCache
from kvpipe.stages.binding.transformers_cache.reference import random_inputs
from kvpipe.stages.grouping.planning import plan

PROMPTS = (5, 3)  # tokens of the two rows; blocks of 4, so that a row has several
ENCODER_COLUMNS, ENCODER_TOKENS = 4, (4, 2)
BLOCK_SIZE = 4
SAME, ROUNDED = 2**6, 2**12  # machine epsilons: the same additions, and another order of them


def choose_mode(
    model: Any, needs: Sequence[LayerNeeds], asked: str, uses_scratch: bool = False
) -> Mode:
    """ConfigError where the model computes something else through a bound cache, or cannot be what
    is asked for. uses_scratch: the plan does, through which only gathered chunks are read."""
    if asked == "auto" and uses_scratch:
        asked = "gather"
    trial = _Trial(model, needs)
    reason, no_padding = trial.cannot_run(), ""
    if not reason:
        no_padding = trial.gather_problem()
        if asked == "gather":
            return Mode(name=asked, no_padding=no_padding)
        reason = trial.direct_problem(padded=not no_padding)
    if reason and asked == "direct":
        raise ConfigError(
            Problem("mode", "a model whose attention can read pages", reason, "mode=gather")
        )
    return Mode(name="gather" if reason else "direct", reason=reason, no_padding=no_padding)


class _Trial:
    def __init__(self, model: Any, needs: Sequence[LayerNeeds]) -> None:
        self.model, self.needs = model, needs
        self._known: dict[tuple[str, bool], list[Any]] = {}

    def cannot_run(self) -> str:
        """Why the decoder cannot be tried alone ("" if it can): it may need what only the whole
        model gives it."""
        try:
            self._outputs("own", padded=True)
        except Exception as error:
            return f"its decoder could not be tried alone ({_cause(error)})"
        return ""

    def gather_problem(self) -> str:
        """Why padding cannot be ("" if it can); ConfigError where not even rows without can."""
        off = self._off(padded=True)
        if not off:
            return ""
        if worse := self._off(padded=False):
            raise ConfigError(
                Problem(
                    "model",
                    "a model that computes the same through a cache in pages",
                    worse,
                    "transformers' own cache is needed for this model",
                )
            )
        return f"{off}: its attention reads padding"

    def _off(self, padded: bool) -> str:
        """What differs from the model's own cache when pages are gathered."""
        own = self._outputs("own", padded)
        try:
            found = self._outputs("gather", padded)
        except Exception as error:  # whatever a foreign model makes of a cache is the answer
            return _cause(error)
        return _differ(own, found, SAME, "in gathered pages")

    def direct_problem(self, padded: bool) -> str:
        """Why the attention cannot read pages itself ("" if it can)."""
        if not any(need.attention for need in self.needs):
            return "it keeps no keys and values"
        gathered = self._outputs("gather", padded)
        try:
            read = self._outputs("direct", padded)
        except Exception as error:
            return f"its attention does not take pages through AttentionInterface ({_cause(error)})"
        return (
            _differ(gathered, read, ROUNDED, "when pages are read directly")
            or self._encoder_problem()
        )

    def _encoder_problem(self) -> str:
        """An encoder that shares its decoder's config takes the new attention function, too."""
        from kvpipe.models.probe.read import decoder_of

        if not getattr(self.model.config, "is_encoder_decoder", False):
            return ""
        try:
            own = _encoded(self.model)
            give_up = use_direct(decoder_of(self.model))
            try:
                return _differ(own, _encoded(self.model), ROUNDED, "in its encoder")
            finally:
                give_up()
        except Exception as error:
            return f"its encoder does not run ({_cause(error)})"

    def _outputs(self, mode: str, padded: bool) -> list[Any]:
        """Outputs of the real tokens of both passes; mode own is the model's own cache."""
        if (mode, padded) not in self._known:
            self._known[mode, padded] = self._run(mode, padded)
        return self._known[mode, padded]

    def _run(self, mode: str, padded: bool) -> list[Any]:
        from kvpipe.models.probe.read import decoder_of, empty_cache

        decoder = decoder_of(self.model)
        cache = empty_cache(self.model) if mode == "own" else self._bound(mode)
        training = decoder.training
        decoder.eval()
        try:
            return _two_passes(decoder, cache, self._more(decoder), padded)
        finally:
            decoder.train(training)
            if mode != "own":
                cache.bound.unbind()

    def _bound(self, mode: str) -> Any:
        layers = cache_layers(self.needs, BLOCK_SIZE)
        limits = RequestLimits(
            max_model_len=16, max_num_batched_tokens=16, max_encoder_tokens=ENCODER_COLUMNS
        )
        memory = 64 * sum(layer.spec.page_size_bytes for layer in layers)
        planned = PlannedCache.of(plan(layers, limits, memory, compared=()))
        return bind_needs(self.model, self.needs, planned, mode=Mode(name=mode))

    def _more(self, decoder: Any) -> dict[str, Any]:
        """What an encoder gives its decoder: the second row has fewer tokens."""
        import torch

        from kvpipe.models.probe.read import encoder_width

        if not any(need.cross for need in self.needs):
            return {}
        shape = (2, ENCODER_COLUMNS, encoder_width(decoder))
        hidden = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        parameter = next(decoder.parameters())
        more = {"encoder_hidden_states": hidden.to(parameter.device, parameter.dtype)}
        if "encoder_attention_mask" in inspect.signature(decoder.forward).parameters:
            mask = torch.ones(shape[:2], dtype=torch.long, device=parameter.device)
            mask[1, ENCODER_TOKENS[1] :] = 0
            more["encoder_attention_mask"] = mask
        return more


def _encoded(model: Any) -> list[Any]:
    """The encoder's outputs for two rows, one padded on the right; of the tokens alone."""
    import torch

    inputs = random_inputs(model, list(PROMPTS), 0)
    with torch.no_grad():
        out = model.get_encoder()(**inputs)[0]
    return [out] if "input_features" in inputs else [out[0], out[1, : PROMPTS[1]]]


def _two_passes(decoder: Any, cache: Any, more: dict[str, Any], padded: bool) -> list[Any]:
    import torch

    width, device = max(PROMPTS), next(decoder.parameters()).device
    takes_mask = "attention_mask" in inspect.signature(decoder.forward).parameters
    pads = width - PROMPTS[1] if padded else 0
    ids = torch.arange(2 * (width + 1), device=device).reshape(2, -1) % 7 + 1
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    found = []
    with torch.no_grad():
        for columns in (slice(0, width), slice(width, width + 1)):
            seen = {"attention_mask": mask[:, : columns.stop]} if takes_mask else {}
            out = decoder(
                input_ids=ids[:, columns],
                use_cache=True,
                **seen,
                **{cache_keyword(decoder): cache},
                **more,
            )[0]
            found += [out[0, :], out[1, max(0, pads - columns.start) :]]
    return found


def _differ(one: list[Any], other: list[Any], epsilons: int, where: str) -> str:
    """How two runs differ, if by more than rounding."""
    import torch

    pairs = zip(one, other, strict=True)
    difference = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
    size = max(float(a.float().abs().max()) for a in one)
    if difference <= epsilons * torch.finfo(one[0].dtype).eps * max(1.0, size):
        return ""
    return f"its outputs differ by {difference:.3g} {where}"


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
