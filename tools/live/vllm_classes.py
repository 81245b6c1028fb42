"""Runs inside a vLLM environment: builds an architecture's class and says what each layer stores.

python vllm_classes.py CASES ANSWERS: JSON files, {name: {"config": .., "remote": ..}} and {name:
answer}. Nothing is loaded or started: the class is built without memory and its layers are asked
for their cache. remote: the file's type comes with its checkpoint, so that a class without
knowledge stands for it. Imports no kvpipe. A CUDA build does where there is no GPU.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# Keeps a file's values as attributes, as classes that come with checkpoints do.
STAND_IN = """
from transformers import PretrainedConfig

def opens(key):
    return key.endswith("_config") or key == "block_configs"

def opened(value):
    if isinstance(value, dict):
        parts = {k: opened(v) if opens(k) else v for k, v in value.items()}
        return Section(**{k: v for k, v in parts.items() if k != "model_type"})
    return [opened(v) for v in value] if isinstance(value, list) else value

class Section(PretrainedConfig):
    pass

class StandIn(PretrainedConfig):
    def __init__(self, **values):
        self._written = dict(values)
        super().__init__(**{k: opened(v) if opens(k) else v for k, v in values.items()})

    def to_dict(self):
        return dict(self._written)
"""
# Operations that classes name when they are built; none is run.
# Packages that processors and towers import by name; none is used.
ABSENT = ("torchvision", "torchaudio", "timm", "cutlass")
NAMED_OPERATIONS = ("gelu_quick", "gelu_new", "gelu_fast", "gelu_tanh_and_mul", "fatrelu_and_mul")


def main(cases: str, answers: str) -> int:
    prepare()
    found: dict[str, Json] = {}
    for name, case in json.loads(Path(cases).read_text()).items():
        found[name] = answer(case)
        print(name, found[name].get("error", "")[:300], flush=True)
        Path(answers).write_text(json.dumps(found))
    return 0


def prepare() -> None:
    """A CPU build is what the platform is told; the registry looks at classes in this process."""
    os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", VLLM_LOGGING_LEVEL="ERROR")
    version = importlib.metadata.version
    release = version("vllm").partition("+")[0]
    importlib.metadata.version = lambda n: f"{release}+cpu" if n == "vllm" else version(n)
    import torch
    from vllm.model_executor.models import registry

    if triton := sys.modules.get("triton"):
        triton.set_allocator = lambda allocator: None  # type: ignore[attr-defined]
    torch.cuda.Event = lambda *given, **more: None  # which classes make, and none is recorded
    library = torch.library.Library("_C", "FRAGMENT")
    for operation in NAMED_OPERATIONS:
        if not hasattr(torch.ops._C, operation):
            library.define(f"{operation}(Tensor! out, Tensor input) -> ()")
    prepare.library = library  # type: ignore[attr-defined]
    for package in ABSENT:
        pretend_to_have(package)
    take_every_bias()
    take_sparse_attention()
    towers_stand_aside()
    look = registry._ModelInfo.from_model_cls
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: look(self.load_model_cls())


def take_every_bias() -> None:
    """The CPU's attention has no square root of distances; what is stored does not depend on it."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

    made = CPUAttentionBackendImpl.__init__

    def init(self: Any, *given: Any, use_alibi_sqrt: bool = False, **more: Any) -> None:
        made(self, *given, **more)

    CPUAttentionBackendImpl.__init__ = init
    CPUAttentionBackend.supports_alibi_sqrt = classmethod(lambda cls: True)


def take_sparse_attention() -> None:
    """What the CPU's attention has not is what it would read, not what a layer stores."""
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
    from vllm.platforms.cpu import CpuPlatform

    chosen = CpuPlatform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, num_heads: Any = None
    ) -> str:
        dense = attn_selector_config._replace(use_sparse=False)
        return str(chosen(cls, selected_backend, dense, num_heads))

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
    checked = FusedMoEConfig.__post_init__

    def any_activation(self: Any) -> None:
        with contextlib.suppress(NotImplementedError):  # experts without a gate
            checked(self)

    FusedMoEConfig.__post_init__ = any_activation


def towers_stand_aside() -> None:
    """Tokenizers and processors that no folder here has, and towers that nothing here builds: an
    empty module. What generates is always vLLM's own."""
    from unittest.mock import MagicMock

    import torch
    import transformers
    import vllm.tokenizers
    import vllm.tokenizers.registry
    import vllm.transformers_utils.processor as processors

    def anything(*given: Any, **more: Any) -> Any:
        found = MagicMock()
        found.vocab.__getitem__.return_value = 5
        found.encode.return_value = [5]
        found.convert_tokens_to_ids.return_value = 5
        return found

    for place in (vllm.tokenizers, vllm.tokenizers.registry):
        place.cached_tokenizer_from_config = anything
    processors.get_processor = anything
    for name in ("processor", "feature_extractor", "image_processor"):
        setattr(processors, f"cached_{name}_from_config", anything)
    for name in ("AutoImageProcessor", "AutoFeatureExtractor", "AutoProcessor", "AutoTokenizer"):
        getattr(transformers, name).from_pretrained = anything
    build = transformers.AutoModel.from_config

    def from_config(config: Any, **more: Any) -> Any:
        try:
            return build(config, **more)
        except Exception:
            tower = torch.nn.Module()
            tower.config = config
            return tower

    transformers.AutoModel.from_config = from_config


def pretend_to_have(package: str) -> None:
    """Processors of images import it by name; no image is processed."""
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec
    from types import ModuleType
    from unittest.mock import MagicMock

    class Pretended(ModuleType):
        __path__: list[str] = []

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock()

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            mine = name == package or name.startswith(f"{package}.")
            return ModuleSpec(name, self, is_package=True) if mine else None  # type: ignore[arg-type]

        def create_module(self, spec: ModuleSpec) -> ModuleType:
            return Pretended(spec.name)

        def exec_module(self, module: ModuleType) -> None: ...

    if find_spec(package) is None:
        sys.meta_path.append(Finder())  # type: ignore[arg-type]


def answer(case: Json) -> Json:
    """release, class, parameters, layers: name -> what it stores (null: nothing); or the error."""
    try:
        return built(case, "meta")
    except NotImplementedError:  # a class that reads a value while it is built
        return _or_error(case)
    except Exception as error:
        return _failed(error)


def _or_error(case: Json) -> Json:
    try:
        return built(case, "cpu")
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> Json:
    import traceback

    return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-1500:]}


def built(case: Json, device: str) -> Json:
    import torch
    import vllm
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model

    asked: Json = {
        "model": str(folder(case)),
        "skip_tokenizer_init": True,
        "trust_remote_code": True,
        "load_format": "dummy",
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 64,
        "enable_prefix_caching": False,
    }
    config = EngineArgs(**asked | case.get("engine", {})).create_engine_config()
    with set_current_vllm_config(config):
        one_rank()
        with torch.device(device):
            model = initialize_model(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        specs = {name: cache_of(layer, config) for name, layer in layers.items()}
    return {
        "release": vllm.__version__,
        "class": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "of_parts": of_parts(model),
        "layers": specs,
    }


def one_rank() -> None:
    """Groups of one process, once; that of the experts, too, which dense models do not ask for."""
    from vllm.distributed import parallel_state as state

    if state.model_parallel_is_initialized():
        return
    place = f"file://{tempfile.mktemp()}"
    state.init_distributed_environment(1, 0, place, 0, "gloo")
    state.initialize_model_parallel(1, 1)
    if state._EP is None:
        state._EP = state._TP


def of_parts(model: Any) -> dict[str, int]:
    """Parameters under the first two names of each weight."""
    found: dict[str, int] = {}
    for name, weight in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        found[part] = found.get(part, 0) + weight.numel()
    return found


def cache_of(layer: Any, config: Any) -> Json | None:
    """In plain values, its kind and every field; null where it keeps none, or reads another's."""
    spec = layer.get_kv_cache_spec(config)
    if spec is None or getattr(layer, "kv_sharing_target_layer_name", None):
        return None
    plain = (int, float, str, bool, type(None))
    fields = {k: v if isinstance(v, plain) else str(v) for k, v in vars(spec).items()}
    return {"kind": type(spec).__name__, **fields, "page_size_bytes": spec.page_size_bytes}


def folder(case: Json) -> Path:
    """With a config.json, and a class for it where none is known."""
    place = Path(tempfile.mkdtemp())
    config = dict(case["config"])
    if case.get("remote"):
        config["auto_map"] = {"AutoConfig": "configuration_stand_in.StandIn"}
        text = STAND_IN if case["remote"] is True else f"from {case['remote']} as StandIn\n"
        (place / "configuration_stand_in.py").write_text(text)
    (place / "config.json").write_text(json.dumps(config))
    return place


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
