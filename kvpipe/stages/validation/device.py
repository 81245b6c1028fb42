"""device + backend sections -> ResolvedDevice and the backend that will run, with the reason."""

from __future__ import annotations

from kvpipe.backends.cuda_driver import CudaDevice, cuda_device
from kvpipe.backends.host_memory import host_memory
from kvpipe.errors import ConfigError, Problem
from kvpipe.plugins import REGISTRIES
from kvpipe.request.config import DeviceConfig
from kvpipe.stages.validation.base import ResolvedDevice


def resolve_device(config: DeviceConfig, gpu_index: int = 0) -> ResolvedDevice:
    """The device planned for. A GPU whose memory is named may be elsewhere; others must be here.

    gpu_index: of the visible GPUs the one that the backend will use."""
    here = cuda_device(gpu_index) if config.type in ("auto", "cuda") else None
    if here is None and config.type in ("auto", "cuda") and gpu_index and cuda_device():
        raise ConfigError(
            Problem(
                "backend.device",
                "the index of a GPU that the CUDA driver shows",
                str(gpu_index),
                "see nvidia-smi -L and CUDA_VISIBLE_DEVICES",
            )
        )
    if config.type == "cpu" or (config.type == "auto" and here is None):
        return _cpu(config)
    if config.memory_bytes is None and here is None:
        raise ConfigError(
            Problem(
                "device.memory_bytes",
                "the memory of a GPU that is not in this machine",
                "nothing",
                'set it ("80GiB"), or choose device=cpu',
            )
        )
    return _cuda(config, here)


def _cpu(config: DeviceConfig) -> ResolvedDevice:
    memory = host_memory()
    total = config.memory_bytes or memory.total_bytes
    return ResolvedDevice(
        name="cpu",
        type="cpu",
        is_here=True,
        total_bytes=total,
        free_bytes=min(memory.free_bytes, total),
        source="device.memory_bytes" if config.memory_bytes else memory.source,
    )


def _cuda(config: DeviceConfig, here: CudaDevice | None) -> ResolvedDevice:
    total = config.memory_bytes or (here.total_bytes if here else 0)
    # A named card is "here" when the card in this machine reports about the same memory.
    is_here = here is not None and abs(here.total_bytes - total) <= total // 50
    capability = _capability(config.compute_capability)
    if is_here and here is not None:
        capability = here.compute_capability
    return ResolvedDevice(
        name=here.name if here is not None and config.name == "auto" else config.name,
        type="rocm" if config.type == "rocm" else "cuda",
        is_here=is_here,
        total_bytes=total,
        free_bytes=here.free_bytes if is_here and here is not None else None,
        source=config.source if config.memory_bytes else "the CUDA driver",
        compute_capability=capability,
    )


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, _, minor = text.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise ConfigError(
            Problem("device.compute_capability", "two numbers such as '9.0'", f"'{text}'")
        )
    return int(major), int(minor)


# What `backend=auto` tries, in order, by the type of the device.
_CANDIDATES = {"cuda": ("cupy", "torch", "meta"), "cpu": ("host", "torch", "meta")}
_DEVICES = {"cupy": ("cuda",), "host": ("cpu",)}


def resolve_backend(name: str, device: ResolvedDevice) -> tuple[str, str]:
    """The backend's name and why. ConfigError when it, or what it needs, is not here."""
    if not device.is_here:
        return _elsewhere(name, device)
    if name == "auto":
        return _first_that_works(device)
    backend = REGISTRIES["backend"].get(name)
    allowed = _DEVICES.get(name, (device.type,))
    if device.type not in allowed:
        raise ConfigError(
            Problem(
                "backend.name",
                f"one that runs on {device.type} ({', '.join(_CANDIDATES[device.type])})",
                f"'{name}', which runs on {', '.join(allowed)}",
            )
        )
    problems = backend.problems()
    if problems:
        raise ConfigError(problems)
    return name, "chosen"


def _elsewhere(name: str, device: ResolvedDevice) -> tuple[str, str]:
    if name not in ("auto", "meta"):
        raise ConfigError(
            Problem(
                "backend.name",
                f"meta, since device '{device.name}' is not in this machine",
                f"'{name}'",
                "choose device=auto to allocate here",
            )
        )
    return "meta", f"device '{device.name}' is not in this machine: planned, not allocated"


def _first_that_works(device: ResolvedDevice) -> tuple[str, str]:
    missing: list[str] = []
    for candidate in _CANDIDATES[device.type]:
        problems = REGISTRIES["backend"].get(candidate).problems()
        if not problems:
            return candidate, "; ".join(
                [f"the first of {', '.join(_CANDIDATES[device.type])} that runs here", *missing]
            )
        missing.append(f"not {candidate}: {problems[0].got}")
    raise AssertionError("meta always works")
