"""kv_cache.cu + host_shim.h -> one shared object in the user's kernel cache, named by its hashes.

The first hash covers all that decides the machine code: both sources, the flags, the compiler's
version and, because of -march=native, the CPU's features. The second is of the file (`cache.py`).
A compiler is a program of the user's choice: it has a time limit, and what it wrote is loaded in a
process of its own before it is kept.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

from kvpipe.backends.kernels import HOST_SHIM, SOURCE
from kvpipe.backends.kernels.cache import default_cache_dir, kept
from kvpipe.errors import KvpipeError

BUILDS = ("fast", "exact", "reverse")
# Contraction would fuse a * b + c differently from the GPU; vectors are read through other types;
# assuming that nobody traps on inf or NaN lets the fp8 loops run without branches.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing",
          "-ffp-contract=off", "-fno-trapping-math", "-Wno-unknown-pragmas")  # fmt: skip
# A cold build takes 2 to 4 s on a free core, and a sanitized one three times as long.
COMPILE_LIMIT_S = 300.0
_QUESTION_LIMIT_S = 30.0  # --version, and a trial load


class CompilerError(KvpipeError):
    """The C++ compiler refused our own source, or did not do its work: one line a fact."""


def find_compiler() -> str | None:
    """$CXX, else the first of c++, g++, clang++ on the path."""
    asked = os.environ.get("CXX")
    return next(
        filter(None, map(shutil.which, [asked] if asked else ["c++", "g++", "clang++"])), None
    )


def host_library(build: str = "fast", cache_dir: Path | None = None, threads: bool = False) -> Path:
    """The compiled kernels; compiled now if no process of this user has done so before.

    build: fast | exact | reverse (see host_shim.h). threads: with OpenMP. $CXXFLAGS are appended.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError("no C++ compiler (c++, g++ or clang++; or set CXX)")
    flags = (*_FLAGS, f"-DKV_HOST_{build.upper()}", *(["-fopenmp"] if threads else []))
    flags += tuple(shlex.split(os.environ.get("CXXFLAGS", "")))
    stem = f"kv_host_{build}_{_key(compiler, flags)}"
    return kept(cache_dir or default_cache_dir(), stem, lambda to: _compile(compiler, flags, to))


def load(library: Path) -> ctypes.CDLL:
    """Local symbols: several builds live side by side in one test process."""
    try:
        return ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise CompilerError(f"{library} cannot be loaded: {error}; remove it") from error


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    digest = sha256()
    for part in (SOURCE.read_bytes(), HOST_SHIM.read_bytes(), " ".join(flags).encode(),
                 _version(compiler).encode(), _cpu_features().encode()):  # fmt: skip
        digest.update(part + b"\0")
    return digest.hexdigest()[:20]


def _compile(compiler: str, flags: tuple[str, ...], to: Path) -> None:
    command = [compiler, *flags, "-include", str(HOST_SHIM), "-x", "c++", str(SOURCE), "-o"]
    said = shlex.join(command)
    code, _, errors = _run([*command, str(to)], COMPILE_LIMIT_S)
    if code != 0:
        raise CompilerError(f"{said} failed:\n{errors}")
    if not to.exists() or not to.stat().st_size:
        raise CompilerError(f"{said} wrote nothing, and yet exited with 0")
    # Loading a library that is cut short ends the process: so first in another one.
    trial = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    code, _, errors = _run([sys.executable, "-I", "-S", "-c", trial, str(to)], _QUESTION_LIMIT_S)
    if code != 0:
        last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
        raise CompilerError(f"{said} wrote what cannot be loaded: {last[0]}")


def _run(command: list[str], limit_s: float) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. What the program started ends with it: a compiler driver's
    children hold its pipes open."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise CompilerError(f"{command[0]}: {error.strerror}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            told = f"{shlex.join(command)} was stopped: no end after {limit_s:g} s"
            raise CompilerError(told) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


@cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"], _QUESTION_LIMIT_S)[1]


@cache
def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return next(
        (line for line in lines if line.startswith(("flags", "Features"))), platform.machine()
    )
