"""A repository of the Hugging Face Hub: its config.json and headers only.

Through huggingface_hub where it is installed: HF_TOKEN and HF_ENDPOINT are that library's to
honour, kvpipe reads no environment variable. Without it a public config.json is fetched
(hub_plain.py), and sizes follow from that file.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kvpipe.errors import ConfigError, Problem
from kvpipe.models._safetensors import TensorTable, checked_table
from kvpipe.models.config_file import reason
from kvpipe.models.hub_plain import ENDPOINT, Withheld, fetch_text

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5


def split_revision(repo: str) -> tuple[str, str | None]:
    """ "org/name@revision" -> ("org/name", "revision")."""
    name, _, revision = repo.partition("@")
    return name, revision or None


def _library() -> Any | None:
    """huggingface_hub with its `constants`, which it loads only when they are imported; None where
    it is not installed."""
    try:
        import huggingface_hub
        from huggingface_hub import constants as _  # noqa: F401
    except ImportError:
        return None
    return huggingface_hub


class Unreachable(OSError):
    """Nobody listens at the Hub's address: which, and why, in words."""


_IN_WORDS = (Unreachable, Withheld)


def _answers(endpoint: str) -> None:
    """Fail within seconds where nobody listens: the library would try six times, for most of a
    minute. Behind a proxy the library alone knows the way."""
    from urllib.request import getproxies  # slow to import, for whoever names a repository

    if getproxies():
        return
    url = urlsplit(endpoint)
    port = url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((url.hostname or "", port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise Unreachable(f"could not reach {url.hostname}: {reason(error)}") from error


def _fetch(repo: str, action: Callable[[], T], knob: str) -> T:
    """Whatever the library or the network beneath it raises is a repository we could not read."""
    try:
        return action()
    except Exception as error:
        told = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            Problem(
                "model.repo",
                f"a repository that can be reached: {repo}",
                told if isinstance(error, _IN_WORDS) else f"{type(error).__name__}: {told}",
                f"{knob}, or download config.json and set model.path",
            )
        ) from error


def _download(hub: Any, repo: str) -> str:
    """Path of the config.json: the Hub's, or the library's copy of it where the Hub is silent."""
    name, revision = split_revision(repo)
    try:
        _answers(hub.constants.ENDPOINT)
    except OSError:
        copy = hub.try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(copy, str):
            raise
        return copy
    path: str = hub.hf_hub_download(name, "config.json", revision=revision)
    return path


@lru_cache(maxsize=8)  # a request is planned many times: it asks the network once
def fetch_config(repo: str) -> str | Path:
    """config.json's text, or where the library's copy of it lies; ConfigError where the repository
    cannot be read."""
    hub = _library()
    if hub is not None:
        known = "check the name, HF_TOKEN and HF_ENDPOINT"
        return Path(_fetch(repo, lambda: _download(hub, repo), known))
    knob = "check the name; one that is not public needs pip install huggingface_hub and its token"
    return _fetch(repo, lambda: _download_public(repo), knob)


def _download_public(repo: str) -> str:
    name, revision = split_revision(repo)
    _answers(ENDPOINT)
    return fetch_text(name, "config.json", revision, ENDPOINT)


@lru_cache(maxsize=8)
def fetch_tensor_table(repo: str) -> TensorTable | None:
    """Tensor name -> (dtype, shape) from the safetensors headers; None where there are none, or no
    library to read them with."""
    hub = _library()
    if hub is None:
        return None
    name, revision = split_revision(repo)
    try:
        metadata = hub.get_safetensors_metadata(name, revision=revision)
        tensors = {
            tensor: {"dtype": info.dtype, "shape": info.shape}
            for file in metadata.files_metadata.values()
            for tensor, info in file.tensors.items()
        }
    except Exception:  # no such files, or unreachable: sizes then follow from config.json
        return None
    return checked_table(f"{repo}, safetensors headers", tensors)
