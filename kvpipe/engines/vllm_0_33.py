"""vLLM 0.33.0: one backing allocation, every group admitted, null block reserved.

One row of the table in `_versions`.
"""

from kvpipe.engines.versions import rules_of

PLUGIN = rules_of("0.33.0", name="vllm_0_33")
