"""vLLM 0.17.0, quirks included: one row of the table in `_versions`."""

from kvpipe.engines.versions import rules_of

PLUGIN = rules_of("0.17.0", name="vllm_0_17")
