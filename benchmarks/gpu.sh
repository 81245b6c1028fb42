#!/usr/bin/env bash
# Everything about the kernels that needs an NVIDIA GPU, in under eight minutes:
#   benchmarks/gpu.sh [python]        (an environment with the extra cuda13 or cuda12, and test)
# 1. the kernel suite on the device, against torch on the CPU: every operation, and fp8 by the
#    device's own conversion for all 65,536 fp16 and bf16 numbers;
# 2. the bounds tests under compute-sanitizer, if it is installed (it is 10-50 times slower);
# 3. each kernel's time beside a device memcpy and torch's own operations;
# 4. the self-proof of the pipeline on backend=cupy and backend=torch: the digests must be equal.
# Results go to outputs/gpu/ as text, to be copied into docs/kernels.md with date and hardware.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python}
out=outputs/gpu
mkdir -p "$out"

{ date -u; nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  "$python" -c 'import cupy, torch; print("cupy", cupy.__version__, "torch", torch.__version__)'
} | tee "$out/machine.txt"

"$python" -c '
from kvpipe.backends.cupy_ import CupyBackend
missing = CupyBackend.problems()
raise SystemExit(str(missing[0]) if missing else 0)'

timeout 180 "$python" -m pytest tests/kernels -m "gpu and not full" -q | tee "$out/tests.txt"

if command -v compute-sanitizer >/dev/null; then
  timeout 120 compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$python" -m pytest tests/kernels/test_kernels_bounds.py -m "gpu and not full" -q | tee "$out/sanitizer.txt"
else
  echo "compute-sanitizer: not installed, skipped" | tee "$out/sanitizer.txt"
fi

timeout 60 "$python" benchmarks/rivals/kernels.py --device cuda --rounds 100 | tee "$out/speed.txt"

for backend in cupy torch; do
  timeout 60 "$python" -m kvpipe model=llama backend=$backend device=auto report=json \
    cache.kv_cache_memory_bytes=32MiB > "$out/$backend.json"
done
"$python" - "$out" <<'PYTHON' | tee "$out/digests.txt"
import json, re, sys
from pathlib import Path
found = {b: re.findall(r'"digest": "(\w+)"', Path(sys.argv[1], f"{b}.json").read_text()) for b in ("cupy", "torch")}
print(found)
raise SystemExit(0 if found["cupy"] == found["torch"] and found["cupy"] else "digests differ")
PYTHON
