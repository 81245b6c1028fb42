"""kv_cache.cu + host_shim.h -> one shared object in the user's cache directory, named by its hash.

The name covers all that decides the machine code: both sources, the flags, the compiler's version
and, because of -march=native, the CPU's features. A file is compiled under a private name in the
same directory and renamed into place, so any number of processes may start cold together.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from kvpipe.backends.kernels import HOST_SHIM, SOURCE
from kvpipe.errors import KvpipeError

BUILDS = ("fast", "exact", "reverse")
# Contraction would fuse a * b + c differently from the GPU; vectors are read through other types;
# assuming that nobody traps on inf or NaN lets the fp8 loops run without branches.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing",
          "-ffp-contract=off", "-fno-trapping-math", "-Wno-unknown-pragmas")  # fmt: skip


class CompilerError(KvpipeError):
    """The C++ compiler refused our own source: a bug of kvpipe or of the compiler."""


def find_compiler() -> str | None:
    """$CXX, else the first of c++, g++, clang++ on the path."""
    asked = os.environ.get("CXX")
    return next(
        filter(None, map(shutil.which, [asked] if asked else ["c++", "g++", "clang++"])), None
    )


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/kvpipe, else ~/.cache/kvpipe."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvpipe"


def host_library(build: str = "fast", cache_dir: Path | None = None, threads: bool = False) -> Path:
    """The compiled kernels; compiled now if no process of this user has done so before.

    build: fast | exact | reverse (see host_shim.h). threads: with OpenMP. $CXXFLAGS are appended.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError("no C++ compiler (c++, g++ or clang++; or set CXX)")
    flags = (*_FLAGS, f"-DKV_HOST_{build.upper()}", *(["-fopenmp"] if threads else []))
    flags += tuple(shlex.split(os.environ.get("CXXFLAGS", "")))
    folder = cache_dir or default_cache_dir()
    library = folder / f"kv_host_{build}_{_key(compiler, flags)}.so"
    if not library.exists():
        _compile(compiler, flags, library)
    return library


def load(library: Path) -> ctypes.CDLL:
    """Local symbols: several builds live side by side in one test process."""
    return ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_LOCAL)


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    digest = sha256()
    for part in (SOURCE.read_bytes(), HOST_SHIM.read_bytes(), " ".join(flags).encode(),
                 _version(compiler).encode(), _cpu_features().encode()):  # fmt: skip
        digest.update(part + b"\0")
    return digest.hexdigest()[:20]


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".kv_host_", suffix=".so", dir=library.parent)
    os.close(handle)
    command = [
        compiler,
        *flags,
        "-include",
        str(HOST_SHIM),
        "-x",
        "c++",
        str(SOURCE),
        "-o",
        temporary,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompilerError(f"{shlex.join(command)} failed:\n{done.stderr}")
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


@cache
def _version(compiler: str) -> str:
    return subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout


@cache
def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return next(
        (line for line in lines if line.startswith(("flags", "Features"))), platform.machine()
    )
