#!/usr/bin/env bash
# Everything about the kernels that needs an NVIDIA GPU, in one command that can be repeated:
#   benchmarks/gpu.sh [--device-name h100_80gb]      (PYTHON: an environment with cuda13 and test)
# What has passed is not run again; outputs/gpu/page.md is the page for docs/kernels.md.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python}" benchmarks/gpu.py "$@"
