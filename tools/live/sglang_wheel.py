"""SGLang's own planner, from an unpacked wheel, without a GPU, torch or its other modules.

Three of its files run as shipped; everything that they import is a stand-in that answers nothing,
and what they read of a server (sizes, flags) is set by the caller. This proves arithmetic, not the
values that a server feeds in.

    pip download --no-deps sglang==0.5.23 && unzip -d WHEEL sglang-0.5.23-*.whl
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

SHIPPED = (
    "sglang.srt.arg_groups.memory_hook",
    "sglang.srt.arg_groups.cuda_graph_hook",
    "sglang.srt.mem_cache.kv_cache_configurator",
    "sglang.srt.model_executor.pool_configurator",
)
STOOD_IN = ("sglang", "torch", "msgspec")
DTYPE_BYTES = {"bfloat16": 2, "fp8_e4m3": 1, "float32": 4, "uint8": 1}


class Nothing(type):
    """Of a name that a shipped file imports: a class to derive from, a call that returns itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **more: Any) -> Any:
        is_derived = cls is not STANDIN
        return super().__call__(*args, **more) if is_derived else (args[0] if args else STANDIN)

    def __bool__(cls) -> bool:
        return False


class STANDIN(metaclass=Nothing):
    def __init_subclass__(cls, **more: Any) -> None:
        pass


class _StandIn(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return STANDIN


class _Finder(MetaPathFinder, Loader):
    """Shipped files from the wheel, all else of those packages as stand-ins."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in STOOD_IN:
            return None
        if fullname in SHIPPED:
            file = self.wheel / (fullname.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: Any) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Wheel:
    """The planner of an unpacked wheel; each method is one question with everything set."""

    def __init__(self, folder: Path) -> None:
        sys.meta_path.insert(0, _Finder(folder))
        for name in SHIPPED:
            setattr(self, name.rpartition(".")[2], importlib.import_module(name))
        self._set_up()

    memory_hook: Any
    cuda_graph_hook: Any
    kv_cache_configurator: Any
    pool_configurator: Any

    def _set_up(self) -> None:
        pools, cache = self.pool_configurator, self.kv_cache_configurator
        self.state = SimpleNamespace(schedule=SimpleNamespace(), spec=SimpleNamespace())
        torch = SimpleNamespace(
            _utils=SimpleNamespace(_element_size=lambda dtype: DTYPE_BYTES[dtype]),
            float8_e4m3fn="fp8_e4m3",
            iinfo=lambda kind: SimpleNamespace(max=2**63 - 1),
            int64=None,
        )
        rows = SimpleNamespace(
            quant_block_size=128,
            index_k_with_scale_buffer_dtype="uint8",
            rope_storage_dtype=SimpleNamespace(itemsize=2),
        )
        interval = SimpleNamespace(get=lambda: 128)
        shared = {
            "torch": torch,
            "get_schedule": lambda: self.state.schedule,
            "get_spec": lambda: self.state.spec,
            "get_memory": lambda: self.state.memory,
            "get_exec": lambda: self.state.exec,
            "get_parallel": lambda: self.state.parallel,
            "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
            "get_context": lambda: SimpleNamespace(override=self._override),
            "is_deepseek_dsa": lambda config: config.dsa,
            "envs": SimpleNamespace(
                SGLANG_SWA_EVICTION_INTERVAL=interval,
                SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=SimpleNamespace(get=lambda: False),
                SGLANG_NPU_ENABLE_SPARSE_KV_OFFLOAD=SimpleNamespace(get=lambda: False),
            ),
            "DSATokenToKVPool": rows,
            "MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO": 3,
            "MAMBA_CACHE_BASE_RATIO_DROP_ON_SKIP": 1,
            "get_mamba_tracking_slots": _tracking_slots,
            "mambaish_config": lambda config: None,
            "is_minimax_sparse": lambda config: False,
            "is_float4_e2m1fn_x2": lambda dtype: False,
            "get_dsa_index_head_dim": lambda config: 128,
            "get_dsa_index_kpool": lambda config: 1,
            "ceil_div": lambda a, b: -(-a // b),
            "ceil_align": lambda a, b: -(-a // b) * b,
            "compute_page_shard_scratch_bytes": lambda *args, **more: 0,
            "AttentionArch": SimpleNamespace(MLA="mla", MHA="mha"),
            "_is_npu": False,
            "_is_hip": False,
            "get_alloc_len_per_decode": lambda: self.state.spec.speculative_num_draft_tokens,
            "_dflash_draft_cell_size": lambda kvc: 0,
        }
        for module in (pools, cache):
            for name, value in shared.items():
                setattr(module, name, value)
        pools.DefaultPoolConfigurator._compute_qsa_cell_size = staticmethod(lambda **more: 0)
        cp = sys.modules["sglang.srt.layers.cp.utils"] = ModuleType("cp")
        cp.get_glm_dsa_layer_split_effective_num_layers = lambda kvc, layers: layers  # type: ignore[attr-defined]
        cp.get_glm_dsa_cp_layer_shard_info = lambda kvc: (0, 1)  # type: ignore[attr-defined]
        cp.get_layer_shard_range = None  # type: ignore[attr-defined]
        cache._should_elide_dsa_index_k = lambda **more: False

    def _override(self, _why: str, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.state.schedule, name, value)

    # --- questions ---
    def serve(self, **asked: Any) -> None:
        """What the server was started with; the rest as by default."""
        drafted = asked.get("draft_tokens", 0)
        self.state.schedule = SimpleNamespace(
            max_running_requests=asked.get("requests"),
            max_total_tokens=None,
            swa_full_tokens_ratio=asked.get("ratio", 0.8),
            mamba_full_memory_ratio=asked.get("mamba_ratio", 0.9),
            max_mamba_cache_size=asked.get("slots"),
            disable_overlap_schedule=False,
            chunked_prefill_size=asked.get("chunk", 8192),
        )
        self.state.spec = SimpleNamespace(
            speculative_algorithm="EAGLE" if drafted else None,
            speculative_num_draft_tokens=drafted or None,
        )
        self.state.memory = SimpleNamespace(
            disable_radix_cache=not asked.get("prefix_caching", True),
            enable_unified_memory=False,
            enable_hisparse=False,
        )
        self.state.parallel = SimpleNamespace(attn_tp_size=asked.get("tp", 1), attn_dcp_size=1)
        self.state.exec = SimpleNamespace(
            kernel=SimpleNamespace(dsa_prefill_backend="fa3", dsa_decode_backend="fa3"),
            mamba=SimpleNamespace(
                enable_mamba_extra_buffer=True,
                enable_mamba_extra_buffer_lazy=False,
                enable_linear_replayssm_spec=False,
            ),
        )

    def pools(self, kind: str, kvc: Any, budget: int, page: int) -> Any:
        """kind: Default, HybridSWA or SWARequestCap. Its pool sizes, or the error it raises."""
        configurator = getattr(self.pool_configurator, f"{kind}PoolConfigurator")
        return configurator(kvc).calculate_pool_sizes(budget, page)

    def states(self, rest_gib: float, state_bytes: int, drafted: bool) -> tuple[int, float]:
        """(slots, GiB that are left for tokens)."""
        one = SimpleNamespace(layers=[0], mamba_cache_per_req=state_bytes)
        worker = SimpleNamespace(
            mambaish_config=SimpleNamespace(mamba2_cache_params=one),
            pp_size=1,
            fused_entry_bytes=lambda name: None,
            spec_algorithm=SimpleNamespace(is_none=lambda: not drafted),
            hybrid_gdn_config=None,
            hybrid_kda_config=None,
            extra_mamba_cache_bytes_per_req=0,
            attn_dp_size=1,
        )
        shipped = self.kv_cache_configurator.KVCacheConfigurator
        worker._calculate_mamba_ratio = lambda: shipped._calculate_mamba_ratio(worker)
        self.kv_cache_configurator._pd_prefill_skips_mamba_spec_state = lambda: False
        left = shipped._handle_max_mamba_cache(worker, rest_gib)
        return self.state.schedule.max_mamba_cache_size, left

    def max_requests(self, tokens: int, context: int, has_states: bool) -> int:
        shipped = self.kv_cache_configurator.KVCacheConfigurator
        worker = SimpleNamespace(
            model_config=SimpleNamespace(context_len=context),
            attn_dp_size=1,
            mambaish_config=object() if has_states else None,
        )
        worker._calculate_mamba_ratio = lambda: shipped._calculate_mamba_ratio(worker)
        found: int = shipped.resolve_max_num_reqs(worker, tokens)
        return found

    def fraction(
        self, mib: int, tp: int, pp: int, latent: bool, chunk: int | None, requests: int | None
    ) -> float:
        backend = SimpleNamespace(DISABLED="off", BREAKABLE="breakable", FULL="full")
        hook = self.memory_hook
        graphs = SimpleNamespace(
            decode=SimpleNamespace(max_bs=None, bs=None, backend="full"),
            prefill=SimpleNamespace(max_bs=None, bs=None, backend="off" if pp > 1 else "breakable"),
        )
        server = SimpleNamespace(
            device="cuda",
            cuda_graph_config=graphs,
            chunked_prefill_size=chunk,
            tp_size=tp,
            pp_size=pp,
            max_running_requests=requests,
            max_total_tokens=None,
            model_path="m",
            mem_fraction_static=None,
            language_only=False,
            language_model_only=False,
            disaggregation_mode="null",
            speculative_num_draft_tokens=None,
            enable_symm_mem=False,
            disable_cuda_graph_padding=False,
            speculative_algorithm=None,
            torch_compile_max_bs=None,
            moe_a2a_backend="none",
            attn_dp_size=1,
            _cuda_graph_config_locked=set(),
        )
        for module in (hook, self.cuda_graph_hook):
            module.Backend = backend
            module.resolving_view = module.resolved_view = lambda args: args
            module.declare_resolution = lambda args, _why, **new: args.__dict__.update(new)
        hook.get_device_memory_capacity = lambda device: mib
        hook.use_mla_backend = lambda args: latent
        hook.attn_dp_enabled_of = lambda view: False
        hook.post_capture_kv_sizing_planned = lambda args: False
        hook.model_config_of = lambda args: SimpleNamespace(is_multimodal=False)
        hook.get_platform = lambda: SimpleNamespace(is_xpu=False)
        self.cuda_graph_hook.generate_decode_cuda_graph_batch_sizes = lambda args, most: [most]
        hook.handle_gpu_memory_settings(server)
        share: float = server.mem_fraction_static
        return share


def _tracking_slots(*, extra_buffer: bool, overlap: bool, lazy: bool = False) -> int:
    return (2 if overlap else 1) if extra_buffer else 0
