"""llama.cpp's `llama-server` line as people paste it -> settings.

Source: the server's own arguments, of 2025 and 2026, read. `--ctx-size` is of all sequences
together: each has its part. Without `--parallel` there are four, which share all cells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvpipe.engines.pasted import Pasted
from kvpipe.engines.pasted_weights import GGUF_TYPES
from kvpipe.engines.server_line import ServerFlags

SEQUENCES = 4  # of a server that is told none
_CONTEXT, _BATCH, _PARALLEL, _FLASH = "n_ctx", "n_batch", "engine.n_parallel", "engine.flash_attn"
_UNIFIED, _UBATCH, _LENGTH = "engine.kv_unified", "engine.n_ubatch", "scheduler.max_model_len"
_LAYERS, _HUB = "layers", "hub"
_ALL_LAYERS = 99  # as people say all of them
_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("-m", "--model"),
    _HUB: ("-hf", "-hfr", "--hf-repo"),
    _CONTEXT: ("-c", "--ctx-size"),
    _PARALLEL: ("-np", "--parallel"),
    _BATCH: ("-b", "--batch-size"),
    _UBATCH: ("-ub", "--ubatch-size"),
    _LAYERS: ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "engine.type_k": ("-ctk", "--cache-type-k"),
    "engine.type_v": ("-ctv", "--cache-type-v"),
}
_SWITCHES: dict[str, tuple[str, bool]] = {
    "-kvu": (_UNIFIED, True),
    "--kv-unified": (_UNIFIED, True),
    "-no-kvu": (_UNIFIED, False),
    "--no-kv-unified": (_UNIFIED, False),
    "--swa-full": ("engine.swa_full", True),
    "-fa": (_FLASH, True),  # older ones take no word after it
    "--flash-attn": (_FLASH, True),
}
_DRAFT = " (the draft model's memory is not planned)"
_HOST = " (planned on the cards)"
_REMARKS = {
    **dict.fromkeys(("-md", "--model-draft", "-hfd", "-hfrd", "--hf-repo-draft"), _DRAFT),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), _HOST),
    **dict.fromkeys(("-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ot"), _HOST),
    **dict.fromkeys(("-mm", "--mmproj"), " (its memory is not planned)"),
    **dict.fromkeys(("-ts", "--tensor-split", "-sm", "--split-mode"), " (say --on Nx...)"),
}
_OFF = ("off", "false", "disabled", "0")
_TYPE = r"(?:i?q[1-9](?:_[0-9a-z]{1,2}){0,3}|bf16|f16|f32|fp16|mxfp4)"
# What a file's name has after the model's: its type, the number of the part.
_AFTER = re.compile(
    rf"(?:[-_.](?:ud|gguf|{_TYPE})|:[\w-]{{1,40}}|-[0-9]{{5}}-of-[0-9]{{5}}|\.gguf)+$",
    re.IGNORECASE,
)
_SAYS_TYPE = re.compile(rf"(?:^|[-_.:])({_TYPE})(?=$|[-_.])", re.IGNORECASE)
_PLAIN = ("bf16", "f16", "f32", "fp16", "mxfp4")


def _begins(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        name = word.replace("\\", "/").rpartition("/")[2]
        if name in ("llama-server", "llama-server.exe") or "llama.cpp:server" in word:
            return at + 1
    return None


_FLAGS = ServerFlags(
    engine="llama_cpp",
    begins=_begins,
    keys={name: key for key, names in _NAMES.items() for name in names},
    switches=_SWITCHES,
    remarks=_REMARKS,
)


def read_llama_server(text: str) -> Pasted | None:
    """The last such line in the text; None where there is none."""
    found = _FLAGS.read(text)
    if found is None:
        return None
    settings = dict(found.settings)
    unknown = [*found.unknown, *_offloaded(settings)]
    hub = settings.pop(_HUB, None)
    model = found.model or (None if hub is None else str(hub))
    if model is not None:
        unknown += _stored(model, hub is not None, settings)
    _flash(found.arguments, settings)
    shared = _share(settings)
    return replace(
        found,
        model=model,
        settings=settings,
        unknown=tuple(unknown),
        shape=_AFTER.sub("", (model or "").replace("\\", "/").rpartition("/")[2]),
        shared_by=shared,
    )


def _share(settings: dict[str, Any]) -> int:
    """The sequences that share the context. Settings afterwards say what each has."""
    if _PARALLEL not in settings:
        settings |= {_PARALLEL: SEQUENCES, _UNIFIED: True}  # whatever the line says of it
    settings.setdefault(_UNIFIED, False)
    sequences, cells = settings[_PARALLEL], settings.pop(_CONTEXT, 0)
    shared = sequences if isinstance(sequences, int) and sequences > 0 else 1
    if isinstance(cells, int) and cells > 0:  # 0: the model's own
        settings[_LENGTH] = max(1, cells // shared)
    batch, step = settings.pop(_BATCH, None), settings.get(_UBATCH, 512)
    if isinstance(batch, int) and isinstance(step, int) and 0 < batch < step:
        settings[_UBATCH] = batch
    return shared


def _flash(arguments: Sequence[str], settings: dict[str, Any]) -> None:
    """`-fa off`, and `--flash-attn=off`; auto is on where the cache needs it."""
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in ("-fa", "--flash-attn"):
            text = value if equals else "".join(arguments[at + 1 : at + 2])
            settings[_FLASH] = text.lower() not in _OFF


def _offloaded(settings: dict[str, Any]) -> list[str]:
    """Fewer layers on the cards than all are not planned: how many there are is not known yet."""
    layers = settings.pop(_LAYERS, None)
    if (
        layers is None
        or layers in ("all", "auto")
        or (isinstance(layers, int) and layers >= _ALL_LAYERS)
    ):
        return []
    return [f"-ngl {layers} (planned with every layer on the cards)"]


def _stored(model: str, is_hub: bool, settings: dict[str, Any]) -> list[str]:
    """The type that the file's name says; a repository without one is taken as Q4_K_M. One whose
    bytes are not known here is planned as the next that is, so that no line fits by mistake."""
    found = _SAYS_TYPE.findall(model.rpartition("/")[2])
    if not found:
        if is_hub:
            settings["weights"] = "q4_k_m"
        return []
    word = found[-1].lower()
    if word in _PLAIN:
        return []
    settings["weights"] = planned = word if word in GGUF_TYPES else _no_smaller(word)
    return [] if planned == word else [f"{found[-1]} weights (planned as {planned})"]


def _no_smaller(word: str) -> str:
    """The smallest known type with no fewer bits a number."""
    if word.endswith(("_nl", "_xs")) or word.lstrip("iq")[:1] in "123":
        return "q4_0"
    return {"4": "q5_0", "5": "q6_k", "6": "q8_0"}.get(word.lstrip("iq")[:1], "published")
