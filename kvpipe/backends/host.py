"""`backend=host`: the CUDA kernels compiled by the system's C++ compiler, on torch CPU tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.backends._launch import KernelBackend
from kvpipe.backends._launcher import Launch
from kvpipe.backends.kernels.compile import find_compiler, host_library, load
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.errors import Problem


class HostBackend(KernelBackend):
    class Options(BaseModel):
        """num_threads: of one launch. build: fast, or exact and reverse, which emulate every CUDA
        thread (tests). cache_dir: of compiled kernels; null is the user's cache directory."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        num_threads: Annotated[int, Field(ge=1, le=1024)] = 1
        build: Literal["fast", "exact", "reverse"] = "fast"
        cache_dir: str | None = None

    name = "host"
    long_rows: ClassVar[bool] = True

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        self.options = options or self.Options(name="host")
        folder = self.options.cache_dir
        path = host_library(
            self.options.build, Path(folder) if folder else None, self.options.num_threads > 1
        )
        self._library, self._build = load(path), path.stem
        self._start()

    @classmethod
    def problems(cls) -> list[Problem]:
        missing = TorchBackend.problems()
        if find_compiler() is None:
            knob = "install g++ or clang++ (or set CXX), or choose backend=torch"
            missing.append(
                Problem("backend", "a C++ compiler for backend=host", "none found", knob)
            )
        return missing

    def describe(self) -> dict[str, str]:
        return {"backend": self.name, "device": "cpu", "build": self._build}

    def prepare(self, kernel: str, words: Sequence[int], shape: Sequence[int]) -> Launch:
        function = getattr(self._library, f"{kernel}_launch")
        expected = function(None, -1, None, 0)
        assert expected == len(words), f"{kernel} takes {expected} parameters, got {len(words)}"
        # c_uint64 wraps a negative number to its two's complement, which the kernel reads back.
        kept = (ctypes.c_uint64 * len(words))(*words)
        grid = (ctypes.c_uint32 * 6)(*shape)
        run = partial(function, kept, len(words), grid, self.options.num_threads)
        return Launch(run=run, words=kept, shape=grid)


PLUGIN = HostBackend
