"""The cache of compiled kernels loads what this user stored, as it was stored, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvpipe.backends.kernels import compile as host_compile
from kvpipe.backends.kernels.cache import kept
from kvpipe.backends.kernels.compile import CompilerError, find_compiler, host_library, load
from kvpipe.errors import ConfigError

HONEST = b"\x7fELF machine code " * 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache/kvpipe"


def library(folder: Path) -> Path:
    return kept(folder, "kv_stem", lambda to: to.write_bytes(HONEST))


def never(to: Path) -> None:
    pytest.fail("compiled again")


def test_the_folder_and_the_file_are_the_users_alone(folder):
    path = library(folder)
    assert folder.stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o700
    assert kept(folder, "kv_stem", never) == path and list(folder.iterdir()) == [path]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 500, 4096, len(HONEST) // 2, len(HONEST) - 1])
def test_a_library_that_is_cut_short_is_built_again_and_said_in_one_line(folder, length, capsys):
    path = library(folder)
    path.write_bytes(HONEST[:length])
    assert library(folder) == path and path.read_bytes() == HONEST
    said = capsys.readouterr().err
    assert said == f"kvpipe: {path}: not as it was stored; removed, and compiled again\n"
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("at", [0, 100, len(HONEST) - 1])
def test_one_changed_bit_is_noticed(folder, at):
    path = library(folder)
    changed = bytearray(HONEST)
    changed[at] ^= 1
    path.write_bytes(changed)
    assert library(folder).read_bytes() == HONEST


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_library_that_others_may_write_is_built_again(folder, mode, capsys):
    path = library(folder)
    path.chmod(mode)
    assert library(folder).stat().st_mode & 0o777 == 0o700
    assert "writable by others; removed, and compiled again" in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_library_of_another_user_is_built_again(folder, capsys):
    path = library(folder)
    os.chown(path, 65534, 65534)
    assert library(folder).stat().st_uid == os.getuid()
    assert "owned by user 65534, not by you; removed" in capsys.readouterr().err


def test_a_link_to_a_library_is_not_followed(folder, tmp_path):
    path = library(folder)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert not library(folder).is_symlink()


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        library(folder)
    assert len(refused.value.lines()) == 1
    return str(refused.value)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_that_others_may_write_is_refused_in_one_line(folder, mode):
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert refusal(folder) == (
        "backend.cache_dir: expected a folder that you and nobody else can write, for compiled "
        f"kernels, got {folder}: its mode is {mode:o}; chmod 700 it, choose another (or "
        "XDG_CACHE_HOME), or choose backend=torch"
    )
    assert not list(folder.iterdir())


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    folder.mkdir(parents=True)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert f"it belongs to user {owner}" in refusal(folder)


def test_a_folder_inside_one_that_everybody_may_write_is_refused_unless_sticky(folder):
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o777)
    assert f"{folder.parent} can be written by everyone" in refusal(folder)
    folder.parent.chmod(0o1777)
    assert library(folder).exists()


def test_a_folder_that_cannot_be_made_is_named_with_the_reason(tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert "cache/kvpipe: File exists" in refusal(tmp_path / "cache/kvpipe")
    assert "Not a directory" in refusal(tmp_path / "cache/deeper/kvpipe")


def test_a_build_that_fails_leaves_nothing(folder):
    def half(to: Path) -> None:
        to.write_bytes(HONEST[:100])
        raise CompilerError("disk full")

    with pytest.raises(CompilerError):
        kept(folder, "kv_stem", half)
    assert not list(folder.iterdir())


# --- compilers that do not do their work -------------------------------------------------------
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    path = tmp_path / "cxx"
    path.write_text(f"#!/bin/sh\n[ $1 = --version ] && exec echo fake 1\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


OUTPUT = 'while [ "$1" != -o ]; do shift; done; out=$2'


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 0", "wrote nothing, and yet exited with 0"),
        (f"{OUTPUT}; : > $out", "wrote nothing, and yet exited with 0"),
        (f"{OUTPUT}; echo text > $out", "wrote what cannot be loaded: .*(too short|invalid ELF)"),
        ("echo broken >&2; exit 1", "failed:\nbroken"),
    ],
)
def test_a_compiler_that_writes_no_library_poisons_nothing(
    folder, tmp_path, monkeypatch, script, told
):
    compiler(tmp_path, monkeypatch, script)
    with pytest.raises(CompilerError, match=told):
        host_library("exact", folder)
    assert not list(folder.iterdir())


def test_a_compiler_that_never_ends_is_stopped_with_all_it_started(folder, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    compiler(tmp_path, monkeypatch, f"sleep 600 & echo $! > {pid}; wait")
    monkeypatch.setattr(host_compile, "COMPILE_LIMIT_S", 0.3)
    with pytest.raises(CompilerError, match=r"was stopped: no end after 0.3 s"):
        host_library("exact", folder)
    assert not list(folder.iterdir()) and _gone(int(pid.read_text()))


def _gone(pid: int) -> bool:
    """Dead, or a zombie that nobody has waited for yet."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_a_program_that_is_no_compiler_is_named(folder, tmp_path, monkeypatch):
    path = tmp_path / "cxx"
    path.write_bytes(b"\x00\x01 not a program")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(CompilerError, match=r"cxx: Exec format error"):
        host_library("exact", folder)


@pytest.mark.full
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_a_real_library_that_is_cut_short_never_reaches_the_loader(tmp_path, monkeypatch):
    """Loading it would end this process by SIGBUS."""
    monkeypatch.setenv("CXXFLAGS", "-O0 -DKV_TEST_CACHE")
    path = host_library("exact", tmp_path)
    whole = path.read_bytes()
    monkeypatch.setattr(host_compile, "_compile", lambda cxx, flags, to: to.write_bytes(whole))
    for length in (0, 1, 64, 5000, len(whole) * 9 // 10):
        path.write_bytes(whole[:length])
        assert host_library("exact", tmp_path).read_bytes() == whole
    assert load(path).kv_write_v16_launch


def test_a_library_that_the_loader_refuses_is_named(tmp_path):
    path = tmp_path / "kv_host.so"
    path.write_bytes(HONEST)
    with pytest.raises(CompilerError, match=rf"{path} cannot be loaded: .*; remove it"):
        load(path)


@pytest.mark.full
def test_processes_that_meet_a_damaged_library_at_once_end_with_one_that_is_whole(folder):
    path = library(folder)
    code = (
        "import sys; from pathlib import Path; from kvpipe.backends.kernels.cache import kept;"
        "[kept(Path(sys.argv[1]), 'kv_stem', lambda to: to.write_bytes(bytes.fromhex(sys.argv[2]))"
        " and None) for _ in range(20)]"
    )
    for _ in range(3):
        path.write_bytes(b"damaged")
        command = [sys.executable, "-c", code, str(folder), HONEST.hex()]
        processes = [subprocess.Popen(command) for _ in range(6)]
        assert [process.wait() for process in processes] == [0] * 6
        assert list(folder.iterdir()) == [path] and path.read_bytes() == HONEST
