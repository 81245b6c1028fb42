"""kv_cache.cu -> machine code of one GPU architecture, with NVRTC and nvdisasm from PyPI: no GPU,
no CUDA toolkit. NVRTC is the compiler CuPy uses, with the flags CuPy adds.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kvpipe.backends.cupy_ import NVRTC_OPTIONS
from kvpipe.backends.kernels import SOURCE

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
# Added by CuPy to every compilation (cupy/cuda/compiler.py).
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")


@dataclass
class Kernel:
    """What one kernel compiled to. opcodes: full names ("LDG.E.128.CONSTANT") with their counts.
    calls: names of called functions (ptxas also writes a jump to the kernel's own exit as a CALL
    to a local label: not one of them)."""

    name: str
    calls: list[str] = field(default_factory=list)
    opcodes: Counter[str] = field(default_factory=Counter)

    def count(self, pattern: str) -> int:
        return sum(n for opcode, n in self.opcodes.items() if re.fullmatch(pattern, opcode))

    @property
    def size(self) -> int:
        return sum(self.opcodes.values())


def toolchain() -> Path | None:
    """The folder of the nvidia-cuda-nvrtc wheel (13), if it and nvdisasm are installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        root = Path(folder) / "cu13"
        if (root / "lib/libnvrtc.so.13").exists() and (root / "bin/nvdisasm").exists():
            return root
    return None


@cache
def _nvrtc() -> ctypes.CDLL:
    root = toolchain()
    assert root is not None
    # NVRTC looks its builtins up by name: they must be in the process before it asks.
    for builtins in (root / "lib").glob("libnvrtc-builtins.so.13*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(root / "lib/libnvrtc.so.13"))


def cubin(arch: int, options: tuple[str, ...] = ()) -> bytes:
    """The source compiled for sm_<arch>."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    source = SOURCE.read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kv_cache.cu", 0, 0, 0) == 0
    flags = [f"-arch=sm_{arch}", *NVRTC_OPTIONS, *CUPY_OPTIONS, *options]
    array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    log = _text(program, "ProgramLog")
    assert not failed, f"NVRTC error {failed}:\n{log.decode()}"
    code = _text(program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    nvrtc, size = _nvrtc(), ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.raw


def kernels(code: bytes, folder: Path) -> dict[str, Kernel]:
    """The kernels of a cubin, from nvdisasm's listing."""
    root, path = toolchain(), folder / "kv.cubin"
    assert root is not None
    path.write_bytes(code)
    listing = subprocess.run(
        [str(root / "bin/nvdisasm"), "-c", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, Kernel] = {}
    current: Kernel | None = None
    for line in listing.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if section:
            current = found.setdefault(section[1], Kernel(section[1]))
        # /*0010*/  @!P0 LDG.E.128.CONSTANT R4, [R2] ;
        code_line = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line)
        if code_line and current is not None:
            current.opcodes[code_line[1]] += 1
            target = re.search(r"CALL\S* .*`\((\$\S+)\)", line)
            if target:
                current.calls.append(target[1])
    return found
