"""A config.json -> transformers' own config, class and model on the meta device: shapes, no memory.

One choice of class for everything that asks transformers, and one way to build it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.families.base import Weight

_GENERATING = (
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    modeling_auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING,
)
# Bart's decoder alone is a causal model, too: encoder-decoders are looked up here first.
_SEQUENCE_TO_SEQUENCE = (
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
)
_ENCODERS = (
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING,
)
_ENCODER_CLASSES = ("ForMaskedLM", "EncoderModel")  # T5EncoderModel is an encoder, T5 is not


def load_config(place: str | Path) -> Any:
    """The config of a folder, a config.json or a repository, as `from_pretrained` reads it: special
    floats decoded, old keys renamed, nothing of the file run. Raises what transformers raises."""
    return transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)


def config_of(raw: Mapping[str, Any]) -> Any:
    """The same, of a config.json that was parsed already."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        return load_config(folder)


def config_of_parts(raw: Mapping[str, Any], text: Mapping[str, Any], text_type: str) -> Any:
    """The whole file's config; its text part's where transformers does not know the whole."""
    if text is not raw and raw.get("model_type") not in CONFIG_MAPPING:
        return config_of({**text, "model_type": text_type})
    return config_of(raw)


def text_config(config: Any) -> Any:
    """The part that generates, which knows its layers."""
    return config.get_text_config(decoder=True)


def is_encoder(config: Any) -> bool:
    """A masked language model or an embedding model, by its architecture; only else by its type."""
    named = _named_classes(config)
    if any(_generates(found) for found in named):
        return False
    if any(found.__name__.endswith(_ENCODER_CLASSES) for found in named):
        return True
    decodes = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
    generic = _GENERATING if decodes else ()
    kind = type(config)
    if any(kind in mapping for mapping in (*generic, *_SEQUENCE_TO_SEQUENCE)):
        return False
    return kind in _ENCODERS[0] or (
        kind in _ENCODERS[1] and not any(kind in mapping for mapping in _GENERATING)
    )


def model_class(config: Any) -> Any:
    """The class with a language head: the config's own architecture, or its type's."""
    found = next(iter(_generating_classes(config)), None)
    if found is None:
        raise ConfigError(
            Problem(
                "model",
                "a config of a model that generates text",
                f"model_type '{config.model_type}'",
                "transformers has no class for it with a language head",
            )
        )
    return found


def _generating_classes(config: Any) -> Iterator[Any]:
    yield from (found for found in _named_classes(config) if _generates(found))
    mappings = (*_GENERATING, *_SEQUENCE_TO_SEQUENCE)
    if getattr(config, "is_encoder_decoder", False):
        mappings = (*_SEQUENCE_TO_SEQUENCE, *_GENERATING)
    for mapping in mappings:
        if type(config) in mapping:
            found = mapping[type(config)]
            yield from found if isinstance(found, tuple) else (found,)


def _named_classes(config: Any) -> list[Any]:
    """Of `architectures`, those that transformers has."""
    names = getattr(config, "architectures", None) or ()
    return [found for name in names if (found := getattr(transformers, name, None))]


def _generates(model: Any) -> bool:
    return bool(getattr(model, "can_generate", bool)())


def skeleton(config: Any) -> Any:
    """The model of a config on the meta device. Implementations that look at values (a padding
    warning, kernels of one dtype) are switched for ones that do not."""
    built = deepcopy(config)
    built._attn_implementation = "eager"
    for part in (built, text_config(built)):
        part._experts_implementation = "batched_mm"
        if (getattr(part, "pad_token_id", None) or 0) >= (getattr(part, "vocab_size", None) or 0):
            _without_padding(part)  # as large as the embedding, in which it has no row
    with torch.device("meta"):
        model = model_class(built)(built).eval()
    for module in model.modules():
        if isinstance(getattr(module, "config", None), transformers.PreTrainedConfig):
            _without_padding(module.config)
    return model


def _without_padding(config: Any) -> None:
    vars(config)["pad_token_id"] = None  # a strict class refuses it as an attribute


def whole_or_text(config: Any) -> tuple[Any, str]:
    """The skeleton, and why it is that of the text part alone ("" where it is of the whole model):
    a tower may need a library that is not here, or a size that the file gets wrong."""
    text = text_config(config)
    try:
        return skeleton(config), ""
    except Exception as error:  # whatever a tower makes of its config
        if text is config or next(_generating_classes(text), None) is None:
            raise
        told = " ".join(str(error).split())[:120]
        return skeleton(text), f"{type(error).__name__}: {told}"


def encoder_skeleton(config: Any) -> Any:
    """The same of an encoder, without a head."""
    with torch.device("meta"):
        return transformers.AutoModel.from_config(deepcopy(config)).eval()


# --- its parameters ----------------------------------------------------------------------------
def weights_of(model: Any) -> tuple[Weight, ...]:
    """Every parameter once (tied ones are one). Linear are the matrices that quantisers convert:
    those of linear modules inside layers, and of experts, [experts, rows, columns]."""
    return tuple(_weight(model, path, tensor) for path, tensor in model.named_parameters())


def _weight(model: Any, path: str, tensor: Any) -> Weight:
    layer = re.search(r"\.(\d+)\.(.*)", path)
    shape, count = tuple(tensor.shape), 1
    is_linear = isinstance(model.get_submodule(path.rpartition(".")[0]), torch.nn.Linear)
    if len(shape) == 3 and ".experts." in path:
        count, shape, is_linear = shape[0], shape[1:], True
    return Weight(
        name=layer[2] if layer else path,
        shape=shape,
        count=count,
        layer=int(layer[1]) if layer else None,
        linear=is_linear and layer is not None and len(shape) == 2,
    )


def text_parameters(model: Any, decoder: Any) -> int:
    """Of the part that generates, its head included; of a model of one part all of them."""
    if text_config(model.config) is model.config or model.config.is_encoder_decoder:
        return sum(parameter.numel() for parameter in model.parameters())
    head = model.get_output_embeddings()
    parts = [decoder] if head is None else [decoder, head]
    own = {id(p): p.numel() for part in parts for p in part.parameters()}
    return sum(own.values())
