"""How many CUDA blocks and threads a launch of the kernels gets."""

from __future__ import annotations

# Threads of a block, and the most blocks along y and z that CUDA takes.
THREADS = 256
MAX_GRID_Y = 65535
# Blocks along x beyond this many would only queue: the row loops stride over the grid.
MAX_GRID_X = 65536
# Kernels count rows and slots in 32 bits, and a loop's last step must not wrap.
MAX_ROWS = (1 << 31) - 1


def lanes_and_rows(row_length: int) -> tuple[int, int]:
    """threadIdx x (lanes over a row of row_length vectors) and y (rows) of a block."""
    lanes = min(THREADS, 1 << max(row_length - 1, 0).bit_length())
    return lanes, THREADS // lanes


def grid_x(num_rows: int, rows_per_block: int) -> int:
    if num_rows > MAX_ROWS:
        raise ValueError(f"{num_rows:,} rows in one launch, the kernels count to {MAX_ROWS:,}")
    return max(1, min(-(-num_rows // rows_per_block), MAX_GRID_X))
