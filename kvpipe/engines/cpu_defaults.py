"""What vLLM takes for blocks on a CPU, by release: rows of the defaults' table."""

from __future__ import annotations

from kvpipe.engines.versions import Row

CPU_ROWS: tuple[Row, ...] = (
    Row(rule="cpu_block_size", value=128, source="0.17.0 to 0.32.0; started in docs/live.md"),
    Row(
        rule="cpu_latent_block_size",
        value=128,
        until=(0, 28, 0),
        source="0.26.0 sets one size for all, 0.28.0 another for latent rows",
        certain=False,
    ),
    Row(
        rule="cpu_latent_block_size",
        value=16,
        since=(0, 28, 0),
        source="the only size of the decode kernel, where the processor has no AMX tiles",
    ),
    Row(
        rule="cpu_kernel_block",
        value=16,
        until=(0, 29, 0),
        source="v1/attention/backends/cpu_attn.py, 0.28.0; 0.29 was not looked at",
        certain=False,
    ),
    Row(
        rule="cpu_kernel_block",
        value=32,
        since=(0, 29, 0),
        source="v1/attention/backends/cpu_attn.py, 0.30.0 and 0.32.0; started in docs/live.md",
        certain=False,
    ),
    Row(
        rule="window_takes_kernel_block",
        value=False,
        until=(0, 28, 0),
        source="not looked at: as from 0.30.0",
        certain=False,
    ),
    Row(
        rule="window_takes_kernel_block",
        value=True,
        since=(0, 28, 0),
        until=(0, 29, 0),
        source="model_executor/layers/attention/attention.py, 0.28.0; started in docs/live.md",
        certain=False,
    ),
    Row(
        rule="window_takes_kernel_block",
        value=False,
        since=(0, 29, 0),
        source="the largest within the asked block in 0.30.0; 0.29 was not looked at",
        certain=False,
    ),
    Row(
        rule="state_block_takes_kernel_block",
        value=False,
        until=(0, 32, 0),
        source="platforms/interface.py, 0.28.0 and 0.30.0; 0.31 was not looked at",
        certain=False,
    ),
    Row(
        rule="state_block_takes_kernel_block",
        value=True,
        since=(0, 32, 0),
        source="platforms/interface.py, 0.32.0: backend_block_alignment; started in docs/live.md",
        certain=False,
    ),
)
