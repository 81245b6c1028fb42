"""One request is planned many times; its model's file is read again only where it has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_files import SMALL_LLAMA

from kvpipe.errors import ConfigError
from kvpipe.models import read_once
from kvpipe.models.base import ModelGeometry
from kvpipe.models.hf import PLUGIN
from kvpipe.models.weight_files import read_weights


def read(folder: Path, **changes: Any) -> ModelGeometry:
    (folder / "config.json").write_text(json.dumps(SMALL_LLAMA | changes))
    options = {"reader": "hf", "dtype": "auto", "repo": None, "probe": False, "draft": None}
    return PLUGIN(PLUGIN.Options(path=str(folder), **options)).read()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read."""
    names: list[str] = []
    whole: Callable[..., ModelGeometry] = read_once.read_geometry

    def counted(file: Any, tensors: Any = None) -> ModelGeometry:
        names.append(file.name)
        return whole(file, tensors)

    monkeypatch.setattr(read_once, "read_geometry", counted)
    return names


def test_the_same_file_is_read_once(tmp_path: Path, readings: list[str]) -> None:
    assert read(tmp_path) == read(tmp_path)
    assert len(readings) == 1


def test_a_file_that_changed_is_read_again(tmp_path: Path, readings: list[str]) -> None:
    assert read(tmp_path).num_layers == 2
    assert read(tmp_path, num_hidden_layers=3).num_layers == 3
    assert read(tmp_path).num_layers == 2
    assert len(readings) == 2


def test_what_is_equal_and_not_the_same_is_read_again(tmp_path: Path, readings: list[str]) -> None:
    read(tmp_path, num_key_value_heads=1)
    with pytest.raises(ConfigError, match="num_key_value_heads"):
        read(tmp_path, num_key_value_heads=True)


def test_headers_that_changed_are_read_again(tmp_path: Path, readings: list[str]) -> None:
    weights = tmp_path / "model.safetensors"

    def write(rows: int) -> None:
        text = json.dumps({"x": {"dtype": "BF16", "shape": [rows, 10]}}).encode()
        weights.write_bytes(len(text).to_bytes(8, "little") + text)

    write(70)
    assert read(tmp_path).parameter_count == 700
    assert read(tmp_path).parameter_count == 700
    before = weights.stat()
    write(80)  # as long as before, and at the same time
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert read(tmp_path).parameter_count == 800
    assert len(readings) == 2


def test_headers_that_lie_as_they_lay_are_the_same_object(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert read_weights([weights]) is read_weights([weights])
