"""conf/device: every accelerator against the schema, its sources, and what engines printed."""

from __future__ import annotations

import ctypes
import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from kvpipe.backends.cuda_driver import cuda_device
from kvpipe.backends.cupy_ import CupyBackend
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.errors import ConfigError
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.config import DeviceConfig
from kvpipe.stages.validation.device import resolve_device

GIB = 2**30
LOGS = Path(__file__).parent / "cases" / "engine_logs.json.gz"
ACCELERATORS = sorted(
    path.stem for path in (CONF_DIR / "device").glob("*.yaml") if path.stem not in ("auto", "cpu")
)
# Log -> the card whose memory it prints as total_gpu_gib.
PRINTED_ON = {
    "L01": "rtx_3090",
    "L17": "rtx_3090",
    "L18": "h20_3e",
    "L19": "t4",
    "X02": "l40s",
    "X08": "rtx_a6000",
    "X10": "h100_80gb",
}


def device(name: str) -> DeviceConfig:
    raw = yaml.safe_load((CONF_DIR / "device" / f"{name}.yaml").read_text(encoding="utf-8"))
    return DeviceConfig.model_validate(raw)


def logs() -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in json.loads(gzip.decompress(LOGS.read_bytes()))}


def test_at_least_thirty_accelerators_are_shipped() -> None:
    assert len(ACCELERATORS) >= 30


@pytest.mark.parametrize("name", ACCELERATORS)
def test_an_accelerator_is_complete_and_names_the_source_of_each_figure(name: str) -> None:
    read = device(name)
    assert read.name == name
    assert read.memory_bytes is not None and read.bandwidth_bytes_per_s is not None
    clauses = dict(part.split(": ", 1) for part in read.source.split("; "))
    figures = {"memory", "bandwidth"}
    if read.compute_capability is not None:
        figures.add("compute capability")
    assert set(clauses) >= figures
    for figure in figures:
        traced = any(word in clauses[figure] for word in ("https://", "engine log", "same place"))
        assert traced or "nominal" in clauses[figure]


@pytest.mark.parametrize("name", ACCELERATORS)
def test_a_driver_reports_no_more_than_is_sold_and_not_much_less(name: str) -> None:
    read = device(name)
    assert read.memory_bytes is not None and read.bandwidth_bytes_per_s is not None
    assert 8 * GIB < read.memory_bytes < 288 * GIB
    assert 0.2e12 < read.bandwidth_bytes_per_s <= 8e12
    assert (read.compute_capability is None) == (read.type == "rocm")


@pytest.mark.parametrize(("log", "name"), PRINTED_ON.items())
def test_the_memory_is_what_an_engine_printed_on_that_card(log: str, name: str) -> None:
    printed = logs()[log]["total_gpu_gib"]
    memory = device(name).memory_bytes
    assert memory is not None
    assert round(memory / GIB, 2) == printed


@pytest.mark.parametrize("name", ACCELERATORS)
def test_an_accelerator_elsewhere_resolves_to_its_own_figures(name: str) -> None:
    read = device(name)
    resolved = resolve_device(read)
    assert (resolved.type, resolved.total_bytes) == (read.type, read.memory_bytes)
    assert resolved.source == read.source


def _driver(monkeypatch: pytest.MonkeyPatch, *memory: int) -> None:
    """libcuda with devices of these sizes."""

    def device_get(handle: Any, index: int) -> int:
        handle._obj.value = index
        return 0 if index < len(memory) else 101

    def name(text: Any, size: int, handle: Any) -> None:
        text.value = f"card {handle.value}".encode()

    def total(size: Any, handle: Any) -> None:
        size._obj.value = memory[handle.value]

    def attribute(value: Any, which: int, handle: Any) -> None:
        value._obj.value = 9 if which == 75 else 0

    driver = SimpleNamespace(
        cuInit=lambda flags: 0, cuDeviceGet=device_get, cuDeviceGetName=name,
        cuDeviceTotalMem_v2=total, cuDeviceGetAttribute=attribute,
    )  # fmt: skip
    cuda_device.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda path: driver)


def test_planning_asks_the_gpu_that_the_backend_will_use(monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, 80 * GIB, 24 * GIB)
    first, second = (resolve_device(device("auto"), index) for index in (0, 1))
    cuda_device.cache_clear()
    assert (first.name, first.total_bytes) == ("card 0", 80 * GIB)
    assert (second.name, second.total_bytes) == ("card 1", 24 * GIB)


def test_a_gpu_that_the_driver_does_not_show_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, 80 * GIB)
    with pytest.raises(ConfigError, match="backend.device: expected the index .*, got 1; see"):
        resolve_device(device("auto"), 1)
    cuda_device.cache_clear()


def test_the_index_is_the_backends_own() -> None:
    assert CupyBackend.Options(name="cupy", device=3).gpu_index == 3
    told = {"cuda:2": 2, "cuda": 0, "cpu": 0, "auto": 0}
    for text, index in told.items():
        assert TorchBackend.Options(name="torch", device=text).gpu_index == index
