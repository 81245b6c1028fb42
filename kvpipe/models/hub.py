"""A repository of the Hugging Face Hub, through huggingface_hub: its config.json and headers only.

HF_TOKEN and HF_ENDPOINT are that library's to honour; kvpipe reads no environment variable.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from kvpipe.errors import ConfigError, Problem
from kvpipe.models._safetensors import TensorTable, checked_table
from kvpipe.models.config_file import reason

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5


def split_revision(repo: str) -> tuple[str, str | None]:
    """ "org/name@revision" -> ("org/name", "revision")."""
    name, _, revision = repo.partition("@")
    return name, revision or None


def _library(repo: str) -> Any:
    """huggingface_hub with its `constants`, which it loads only when they are imported."""
    try:
        import huggingface_hub
        from huggingface_hub import constants as _  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            Problem(
                "model.repo",
                f"huggingface_hub, to fetch {repo}",
                "not installed",
                "pip install huggingface_hub, or download config.json and set model.path",
            )
        ) from error
    return huggingface_hub


class Unreachable(OSError):
    """Nobody listens at the Hub's address: which, and why, in words."""


def _answers(endpoint: str) -> None:
    """Fail within seconds where nobody listens: the library would try six times, for most of a
    minute. Behind a proxy the library alone knows the way."""
    if getproxies():
        return
    url = urlsplit(endpoint)
    port = url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((url.hostname or "", port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise Unreachable(f"could not reach {url.hostname}: {reason(error)}") from error


def _fetch(repo: str, action: Callable[[], T]) -> T:
    """Whatever the library or the network beneath it raises is a repository we could not read."""
    try:
        return action()
    except Exception as error:
        told = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            Problem(
                "model.repo",
                f"a repository that can be reached: {repo}",
                told if isinstance(error, Unreachable) else f"{type(error).__name__}: {told}",
                "check the name, HF_TOKEN and HF_ENDPOINT, or download config.json and set "
                "model.path",
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


def fetch_config(repo: str) -> Path:
    """Where config.json lies now; ConfigError when the repository cannot be read."""
    hub = _library(repo)
    return Path(_fetch(repo, lambda: _download(hub, repo)))


def fetch_tensor_table(repo: str) -> TensorTable | None:
    """Tensor name -> (dtype, shape) from the safetensors headers; None where there are none."""
    hub = _library(repo)
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
