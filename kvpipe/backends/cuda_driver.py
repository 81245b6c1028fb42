"""Ask the CUDA driver what is in this machine without importing torch or CuPy (a few ms)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class CudaDevice:
    name: str
    total_bytes: int
    free_bytes: int | None
    compute_capability: tuple[int, int]


@cache
def cuda_device(index: int = 0) -> CudaDevice | None:
    """Visible CUDA device number `index`; None without a driver or such a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuInit(0) != 0:
        return None
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuDeviceGet(ctypes.byref(handle), index) != 0:
        return None
    driver.cuDeviceGetName(name, 256, handle)
    total = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    major, minor = (_attribute(driver, handle, which) for which in (75, 76))
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        total_bytes=total.value,
        free_bytes=None,  # needs a context: the backend measures it
        compute_capability=(major, minor),
    )


def _attribute(driver: ctypes.CDLL, handle: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
    return value.value
