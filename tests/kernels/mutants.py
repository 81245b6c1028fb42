"""Mutation check: one deliberate mistake at a time in the kernels and their launch code, and the
test that notices it first. `python tests/kernels/mutants.py [name ...]` prints a Markdown table.
"""

# ruff: noqa: E501 - a table: one line a mistake
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "kvpipe"
SUITES = (
    "test_kernels_bounds.py",
    "test_kernels_fp8.py",
    "test_cupy_backend.py",
    "test_kernels_attention.py",
    "test_kernels_against_torch.py",
)
CU, SHIM = "backends/kernels/kv_cache.cu", "backends/kernels/host_shim.h"
WRITE = "backends/write.py"
GATHER, PAGES, LAUNCH = "backends/gather.py", "backends/_pages.py", "backends/_launch.py"
ERRORS, LAUNCHER, SLOTS = "backends/_errors.py", "backends/_launcher.py", "backends/_slots.py"
ERROR = "error"
CUPY, ATTENTION = "backends/cupy_.py", "backends/attention.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str

    @property
    def choice(self) -> list[str]:
        """In order the last of two tokens with one slot wins anyway: only the execution in reverse
        order, which is in the full tier, can notice."""
        return ["-m", "full or not full", "-k", "one_slot"] if self.file == SLOTS else []


def _(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, file, old, new)


MUTANTS = (
    _("a slot of -1 is not padding", CU, "if (slot < 0) continue;", "if (slot < -1) continue;"),
    _("the first slot past the end is written", CU, "if (slot >= num_slots)", "if (slot > num_slots)"),
    _("V takes K's head stride", CU, "s##_token_stride, s##_head_stride, (u32)", "s##_token_stride, k_head_stride, (u32)"),
    _("V takes K's block stride", CU, "s##_cache, s##_block_stride,  \\", "s##_cache, k_block_stride,  \\"),
    _("V takes K's scale", CU, "scales[blockIdx.y]", "scales[0]"),
    _("an error is counted a head", CU, "if (head == 0 && threadIdx.x == 0 && blockIdx.y == 0)", "if (threadIdx.x == 0 && blockIdx.y == 0)"),
    _("an error is counted for K and V", CU, "threadIdx.x == 0 && blockIdx.y == 0)", "threadIdx.x == 0)"),
    _("an error is counted a lane", CU, "if (head == 0 && threadIdx.x == 0 && blockIdx.y", "if (head == 0 && blockIdx.y"),
    _("slots are compared in 32 bits", CU, "if (slot >= num_slots) {\n            if (head", "if ((u32)slot >= (u32)num_slots) {\n            if (head"),
    _("rows step too far", CU, "row < num_rows; row += gridDim.x * blockDim.y) {\n        u32 token", "row < num_rows; row += gridDim.x * blockDim.y + 1) {\n        u32 token"),
    _("lanes step too far", CU, "i < length; i += blockDim.x) ((V*)dst)[i]", "i < length; i += blockDim.x + 1) ((V*)dst)[i]"),
    _("an unheld block is read", CU, "if (held < 0 || slot >= num_slots)", "if (slot >= num_slots)"),
    _("a block past the end is read", CU, "if (held < 0 || slot >= num_slots)", "if (held < 0)"),
    _("unreadable rows are left as they were", CU, "fill_row<u8>(to, 0u, out_row_bytes);", ""),
    _("a run of tokens is gathered though not held", CU, "bool readable = held >= 0 && slot < num_slots;", "bool readable = slot < num_slots;"),
    _("a run of tokens goes past its kernel block", CU, "left = block_size - position;", "left = block_size;"),
    _("gather forgets where it starts", CU, "u32 token = first_token + new_token;", "u32 token = new_token;"),
    _("gather takes the kernel block for the manager's", CU, "u32 index = token / manager_block_size, within = token - index * manager_block_size;", "u32 index = token / block_size, within = token - index * block_size;"),
    _("the first block past the end is filled", CU, "if (block < line[NUM_BLOCKS])", "if (block <= line[NUM_BLOCKS])"),
    _("a negative block is filled", CU, "if (block < 0) return false;", "if (block < -1) return false;"),
    _("destinations are not checked", CU, "        if (!usable(line, destination, err, COPY_BLOCK, i)) continue;\n", ""),
    _("a block error is counted a thread", CU, "if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0)", "if (blockIdx.x == 0 && threadIdx.x == 0)"),
    _("packed blocks overlap", CU, "line[PACKED_OFFSET] + i * line[PACKED_STRIDE]", "line[PACKED_OFFSET]"),
    _("packed views overlap", CU, "line[PACKED_OFFSET] + i *", "i *"),
    _("page strides are swapped", CU, "outer * page.outer_stride + (row - outer * page.inner) * page.inner_stride", "outer * page.inner_stride + (row - outer * page.inner) * page.outer_stride"),
    _("unpack packs", CU, "copy_row<V>(PACK ? in_flat : in_page, PACK ? in_page : in_flat", "copy_row<V>(in_flat, in_page"),
    _("a 2-byte fill sets one byte", CU, "byte * 0x0101u", "byte * 0x0001u"),
    _("a 16-byte fill sets 4 alike and 12 zero", CU, "{word, word, word, word}", "{word, 0u, 0u, 0u}"),
    _("fp8 rounds half up", CU, "magnitude + half + odd", "magnitude + half + 1u"),
    _("fp8 does not clamp", CU, "magnitude = magnitude < (u32)Format::MAX ? magnitude : (u32)Format::MAX;", ""),
    _("e4m3 clamps to 416", CU, "0x43e00000u /* 448 */", "0x43d00000u /* 416 */"),
    _("e5m2 clamps to 49,152", CU, "0x47600000u /* 57,344 */", "0x47400000u"),
    _("fp8 NaN becomes the maximum", CU, "return nan ? 0x7fu : code;", "return code;"),
    _("fp8 has no subnormals", CU, "u32 code = magnitude < (u32)Format::MIN_NORMAL ? subnormal : normal;", "u32 code = normal;"),
    _("e4m3 subnormals are twice as large", CU, "MAGIC = 0x46800000u", "MAGIC = 0x46000000u"),
    _("signs are lost", CU, "return codes | sign_a << 7 | sign_b << 15;", "return codes;"),
    _("the second of two takes the first's sign", CU, "sign_b = (__float_as_uint(b)", "sign_b = (__float_as_uint(a)"),
    _("quotients are not corrected", CU, "? corrected : quotient", "? quotient : quotient"),
    _("infinite quotients are corrected", CU, "return magnitude < 0x4e800000u /* 2^30 */ ? corrected : quotient;", "return corrected;"),
    _("an infinite scale divides by one", CU, "fraction ? __uint_as_float(0x7fc00000u) : 0.0f", "fraction ? __uint_as_float(0x7fc00000u) : 1.0f"),
    _("a NaN scale divides by infinity", CU, "fraction ? __uint_as_float(0x7fc00000u) : 0.0f", "0.0f"),
    _("a zero scale divides by one", CU, "by.inverse = __uint_as_float(0x7f800000u);", "by.inverse = 1.0f;"),
    _("large scales overflow their power", CU, "inverted = inverted < 1u ? 1u : inverted > 253u ? 253u : inverted;", "inverted = inverted > 253u ? 253u : inverted;"),
    _("half subnormals are read as normal", CU, "magnitude < 0x0400u ? subnormal : normal", "normal"),
    _("half infinities are read as numbers", CU, "magnitude >= 0x7c00u ? special :", ""),
    _("65,520 is written as half NaN", CU, "half = magnitude >= 0x477ff000u ? 0x7c00u : half;", ""),
    _("half subnormals are not written", CU, "u32 half = magnitude < 0x38800000u ? subnormal : normal;", "u32 half = normal;"),
    _("bfloat16 is truncated", CU, "(bits + 0x7fffu + (bits >> 16 & 1u)) >> 16", "bits >> 16"),
    _("bfloat16 NaN rounds to infinity", CU, "(bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded", "(bits & 0x7fffffffu) > 0x7f800000u ? 0x7f80u : rounded"),
    _("e5m2 infinity is read as NaN", CU, "INFINITY_CODE = 0x7c, FIRST_NAN = 0x7d", "INFINITY_CODE = 0x80, FIRST_NAN = 0x7c"),
    _("fp8 subnormals are read as normal", CU, "u32 bits = magnitude < (u32)Format::SUBNORMALS ? subnormal : normal;", "u32 bits = normal;"),
    _("dequantising forgets the scale", CU, "Dequantise<Format, To, WIDTH> move = {scale[0]};", "Dequantise<Format, To, WIDTH> move = {1.0f};"),
    _("a negative position has a slot", CU, "if (row < 0 || at < 0) {", "if (row < 0) {"),
    _("a negative request has a slot", CU, "if (row < 0 || at < 0) {", "if (at < 0) {"),
    _("the first request past the end is read", CU, "row >= num_requests", "row > num_requests"),
    _("the first position past the end is read", CU, "at >= max_blocks * block_size)", "at > max_blocks * block_size)"),
    _("an unheld block has slots", CU, "if (held >= 0) slot", "if (held >= -1) slot"),
    _("tables are read without their stride", CU, "block_table[row * table_stride + index]", "block_table[row * max_blocks + index]"),
    _("only the last error is kept", CU, "if (atomicAdd(err, 1u) != 0u) return;", "atomicAdd(err, 1u);"),
    _("the plan keeps the first V", WRITE, "words[0], words[9], words[18]", "words[0], words[8], words[18]"),
    _("new rows' addresses do not matter", WRITE, "read = gcd(misalignment, *", "read = gcd(0, *"),
    _("the cache's address does not matter", WRITE, "return self.cache, *self.strides", "return self.strides"),
    _("strided rows reuse the contiguous launch", WRITE, "key = (k.stride(), v.stride(), key)", "pass"),
    _("heads are one row though the cache splits them", WRITE, "(head == width * itemsize and head_stride == width * stored)", "head == width * itemsize"),
    _("heads are one row though new rows split them", WRITE, "(head == width * itemsize and head_stride == width * stored)", "head_stride == width * stored"),
    _("the number of V rows is not checked", WRITE, "v.numel() != num_tokens * self._v_elements or ", ""),
    _("blocks are one row though padded", GATHER, "or token != rows.row * DTYPE_BYTES[view.dtype]", ""),
    _("heads are one row in gather though split", GATHER, "if rows.heads > 1 and rows.strides[2] == rows.row * DTYPE_BYTES[view.dtype]:", "if rows.heads > 1:"),
    _("heads apart start at the first token", GATHER, "at, table, first, first + num_tokens", "at, table, 0, num_tokens"),
    _("heads apart keep the last strides", GATHER, "words[1], words[2] = row, num_tokens * row", "pass"),
    _("attention sees the token before the first", CU, "u32 from = start < first ? (u32)(first - start) : 0u;", "u32 from = start < first ? (u32)(first - start) - 1u : 0u;"),
    _("attention sees the token after the last", CU, "u32 upto = end - start < (i64)paged.block_size ? (u32)(end - start) :", "u32 upto = end - start < (i64)paged.block_size ? (u32)(end - start) + 1u :"),
    _("attention reads blocks that are not held", CU, "    if (held < 0) return 0;\n", ""),
    _("attention reads blocks past the end", CU, "if (block >= paged.num_blocks) {", "if (block > paged.num_blocks) {"),
    _("attention forgets what it added before a larger score", CU, "        total *= shrink;\n", ""),
    _("attention does not shrink earlier sums", CU, "for (u32 j = 0; j < WIDTH; ++j) sums[j] *= shrink;", ""),
    _("splits are added as they are", CU, "total += part[s * step + size + 1u] * exp2_negative(part[s * step + size] - most);", "total += part[s * step + size + 1u];"),
    _("query heads read the wrong KV head", CU, "i64 line = ((i64)request * num_heads + head) * group + g;", "i64 line = ((i64)request * num_heads + head) * group;"),
    _("attention takes V's scale for K", ATTENTION, "scaling * _LOG2_E * of_k, of_v", "scaling * _LOG2_E * of_v, of_k"),
    _("attention scales what is not fp8", ATTENTION, "scales if k.dtype in FP8_MAX else (1.0, 1.0)", "scales"),
    _("attention loads vectors wherever they lie", ATTENTION, "wide = gcd(cache, block, token, head)", "wide = gcd(0)"),
    _("pages are folded though padded", PAGES, "if heads == 1 and (outer == 1 or outer_stride == row):", "if heads == 1:"),
    _("pages fold heads though split", PAGES, "if heads == 1 or head_stride == row:", "if True:"),
    _("the staging tensor's address does not matter", PAGES, "gcd(self.width, address)", "gcd(self.width, 0)"),
    _("a page's address does not matter", PAGES, "numbers = [base]", "numbers = [0]"),
    _("copies may overlap", LAUNCH, "    if clash:\n", "    if False:\n"),
    _("two copies may have one destination", LAUNCH, "times > 1 or dst in sources", "dst in sources"),
    _("streamed rows lose their unaligned head", SHIM, "while (to < end && ((std::uintptr_t)to & 63)) stream16(to, from);", "while (to < end && ((std::uintptr_t)to & 63)) to += 16, from += 16;"),
    _("streamed rows lose their tail", SHIM, "    while (to < end) stream16(to, from);\n", ""),
    _("rows of odd lengths are streamed", SHIM, "(((std::uintptr_t)to | bytes) & 15) == 0", "true"),
    _("the quotient's sign is kept", CU, "divide(b, by)) & 0x7f7fu;", "divide(b, by));"),
    _("other streams are not waited for", ERRORS, "        self._synchronize()\n        words", "        words"),
    _("ids are cut to 32 bits", LAUNCHER, "table.clamp(-1, _INT32_MAX).to(torch.int32)", "table.to(torch.int32)"),
    _("few tokens with one slot are not looked for", SLOTS, "if len(set(written)) == len(written):", "if True:"),
    _("the first of two tokens with one slot is kept", SLOTS, "slots.sort(stable=True)", "slots.flip(0).sort(stable=True)"),
    _("many tokens with one slot are not looked for", SLOTS, "if len(slots) < 2:", "if len(slots) < 2 or len(slots) > _FEW:"),
    _("modules are loaded on the current device", CUPY, "        with here:  #", "        if True:  #"),
    _("launches go to the current device", CUPY, "with here, self._stream():", "with self._stream():"),
    _("an error is reported for ever", ERRORS, "        self._record.zero_()\n", ""),
)  # fmt: skip


def killer(mutant: Mutant | None) -> str:
    """The first test that fails with the mistake in place (None: without any); "" when none does.
    A test that could not begin has noticed nothing: it is said as an error, not as its name."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kvpipe"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            _break(copy / mutant.file, mutant)
        cache = Path(folder) / "cache"  # not beside the package: a folder that others may write
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-rfE", "--no-header",
             "-p", "no:cacheprovider", *(mutant.choice if mutant else []), *(str(HERE / suite) for suite in SUITES)],
            cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": folder, "XDG_CACHE_HOME": str(cache), "CXXFLAGS": "-O1"},
        )  # fmt: skip
    if done.returncode == 0:
        return ""
    if error := re.search(r"^ERROR (?:.*::)?(\S+)", done.stdout, re.M):
        return f"{ERROR} before {error[1]}"
    failed = re.search(r"^FAILED (?:.*::)?(\S+)", done.stdout, re.M)
    return failed[1] if failed else f"crash (exit {done.returncode})"


def _break(target: Path, mutant: Mutant) -> None:
    text = target.read_text()
    assert mutant.old in text, f"{mutant.name}: {mutant.file} no longer says {mutant.old!r}"
    target.write_text(text.replace(mutant.old, mutant.new))


def main(names: list[str]) -> None:
    if found := killer(None):
        sys.exit(f"fails without any mistake: {found}")
    print("| mistake | in | noticed first by |\n|---|---|---|")
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            found = killer(mutant) or "**nothing**"
            print(f"| {mutant.name} | `{Path(mutant.file).name}` | `{found}` |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
