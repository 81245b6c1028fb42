"""The CUDA source of the cache operations, and what compiles it for a CPU (a GPU: CuPy)."""

from pathlib import Path

SOURCE = Path(__file__).with_name("kv_cache.cu")
HOST_SHIM = Path(__file__).with_name("host_shim.h")
