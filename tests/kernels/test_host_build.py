"""The shared object of backend=host: compiled once, safely, and only where a compiler is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvpipe.backends.host import HostBackend
from kvpipe.backends.kernels import compile as host_compile
from kvpipe.backends.kernels.cache import default_cache_dir
from kvpipe.backends.kernels.compile import CompilerError, find_compiler, host_library
from kvpipe.errors import ConfigError

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

SMALL = "-O0 -DKV_TEST_NAME"  # a quick compilation under a name of its own


@pytest.mark.full
def test_a_second_process_finds_the_first_ones_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", SMALL)
    first = host_library("exact", tmp_path)
    written = first.stat().st_mtime_ns
    monkeypatch.setattr(host_compile, "_compile", lambda *_: pytest.fail("compiled again"))
    assert host_library("exact", tmp_path) == first
    assert first.stat().st_mtime_ns == written and list(tmp_path.iterdir()) == [first]
    assert first.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("changed", ["build", "CXXFLAGS", "threads", "source", "shim"])
def test_the_name_follows_everything_that_decides_the_code(tmp_path, monkeypatch, changed):
    stems: list[str] = []
    monkeypatch.setattr(host_compile, "kept", lambda folder, stem, build: stems.append(stem))
    host_library("exact", tmp_path)
    build, threads = "exact", False
    if changed == "build":
        build = "reverse"
    elif changed == "CXXFLAGS":
        monkeypatch.setenv("CXXFLAGS", "-O1")
    elif changed == "threads":
        threads = True
    else:
        name = {"source": "SOURCE", "shim": "HOST_SHIM"}[changed]
        other = tmp_path / "changed"
        other.write_bytes(getattr(host_compile, name).read_bytes() + b"\n// changed\n")
        monkeypatch.setattr(host_compile, name, other)
    host_library(build, tmp_path, threads)
    assert len(set(stems)) == 2


@pytest.mark.full
def test_six_cold_processes_at_once_end_with_one_file(tmp_path):
    code = (
        "import sys; from pathlib import Path;"
        "from kvpipe.backends.kernels.compile import host_library, load;"
        "load(host_library('fast', Path(sys.argv[1])))"
    )
    environment = {**os.environ, "CXXFLAGS": SMALL}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
        for _ in range(6)
    ]
    assert [process.wait() for process in processes] == [0] * 6
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_compilation_shows_the_command_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-fno-such-flag")
    with pytest.raises(CompilerError, match=r"-fno-such-flag .* failed:"):
        host_library("exact", tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_the_request_is_wrong_and_torch_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    problems = HostBackend.problems()
    assert len(problems) == 1
    error = ConfigError(problems)
    assert error.exit_code == 2
    assert str(error) == (
        "backend: expected a C++ compiler for backend=host, got none found; "
        "install g++ or clang++ (or set CXX), or choose backend=torch"
    )


def test_CXX_chooses_the_compiler(tmp_path, monkeypatch):
    mine = tmp_path / "my-compiler"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert find_compiler() == str(mine)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_compiler() is None and HostBackend.problems()


def test_the_cache_directory_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/kvpipe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/kvpipe")


@pytest.mark.full
def test_the_source_compiles_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O0 -Wall -Wextra -Wno-unused-parameter -Werror")
    for build in host_compile.BUILDS:
        host_library(build, tmp_path)


def test_the_source_includes_nothing_and_every_kernel_has_c_linkage():
    source = host_compile.SOURCE.read_text()
    code = [line for line in source.splitlines() if not line.lstrip().startswith("//")]
    assert not [line for line in code if "#include" in line]
    assert not [line for line in code if "__shared__" in line or "__syncthreads" in line]
    globals_ = [line for line in code if "__global__" in line]
    assert len(globals_) == 1 and 'extern "C" __global__' in globals_[0]


def test_options_reach_the_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O0")
    options = HostBackend.Options(
        name="host", num_threads=2, build="fast", cache_dir=str(tmp_path / "kernels")
    )
    backend = HostBackend(options)
    told = backend.describe()
    assert told["backend"] == "host" and told["device"] == "cpu"
    assert told["build"].startswith("kv_host_fast_")
    assert [file.stem for file in (tmp_path / "kernels").iterdir()] == [told["build"]]
    with pytest.raises(ValueError, match="num_threads"):
        HostBackend.Options(name="host", num_threads=0)
    with pytest.raises(ValueError, match="build"):
        HostBackend.Options(name="host", build="quick")


@pytest.mark.full
def test_two_threads_write_what_one_writes(tmp_path):
    import torch
    from kernel_cases import Case, buffer_bytes, canary_buffer, views_of

    views = views_of(Case("page_hnd", 96, 16, ("float16", "float16"), "contiguous", 0))
    new = torch.randn(40, 2, 96).half()
    slots = torch.randperm(80)[:40]
    results = []
    for threads in (1, 2):
        backend = HostBackend(HostBackend.Options(name="host", num_threads=threads))
        buffer, whole = canary_buffer(buffer_bytes(views), "cpu")
        backend.write_kv_pair([(buffer, view) for view in views], [new, new], slots)
        backend.fill([buffer], views, torch.tensor([1, 2]), 0)
        backend.copy_blocks([buffer], views, [(0, 3)])
        results.append(whole)
    assert torch.equal(*results)
