"""What a release of vLLM refuses of its own arguments, before it looks at memory.

One table, as in `versions`: a check holds from a release up to another; each says its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvpipe.engines.versions import Version, parse_version
from kvpipe.errors import Problem

OLDEST_BFLOAT16 = (8, 0)  # compute capability
OLDEST_FP8 = (8, 9)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the checks ask about. dtype: as the user set it ("auto": the release chooses).
    latent_dtype: of the rows that latent layers store ("" none does). only_packed: kernels read the
    rows of this model packed alone. heads, kv_heads: of the whole
    model (kv_heads 0: latent rows, or no attention). chunked: prompts may be cut into steps."""

    max_num_batched_tokens: int
    max_num_seqs: int
    dtype: str
    compute_capability: tuple[int, int] | None
    latent_dtype: str = ""
    only_packed: bool = False
    max_model_len: int = 0
    chunked: bool = True
    tp: int = 1
    dcp: int = 1
    heads: int = 0
    kv_heads: int = 0


@dataclass(frozen=True, kw_only=True)
class ArgumentCheck:
    """problem: None where the release takes the arguments. inferred: [from, to) the releases of
    which the check was not read, but follows from the date of a change; those are told so."""

    problem: Callable[[Arguments, str], Problem | None]
    source: str
    since: Version | None = None
    until: Version | None = None
    inferred: tuple[Version, Version] | None = None

    def holds(self, release: Version) -> bool:
        return (self.since or release) <= release and (self.until is None or release < self.until)

    def is_inferred(self, release: Version) -> bool:
        return self.inferred is not None and self.inferred[0] <= release < self.inferred[1]


def _requests(asked: Arguments, version: str) -> Problem | None:
    if asked.max_num_batched_tokens >= asked.max_num_seqs:
        return None
    return Problem(
        "scheduler.max_num_batched_tokens",
        f"at least scheduler.max_num_seqs={asked.max_num_seqs:,} (vLLM {version} refuses less)",
        f"{asked.max_num_batched_tokens:,}",
        f"set scheduler.max_num_batched_tokens={asked.max_num_seqs}, or "
        f"scheduler.max_num_seqs={asked.max_num_batched_tokens}",
    )


def _whole_prompts(asked: Arguments, version: str) -> Problem | None:
    if asked.chunked or asked.max_num_batched_tokens >= asked.max_model_len:
        return None
    return Problem(
        "scheduler.max_num_batched_tokens",
        f"at least scheduler.max_model_len={asked.max_model_len:,}, since prompts are not cut into "
        f"steps (vLLM {version} refuses less)",
        f"{asked.max_num_batched_tokens:,}",
        f"set scheduler.max_num_batched_tokens={asked.max_model_len}",
    )


def _context_ranks(asked: Arguments, version: str) -> Problem | None:
    """Context ranks share the tokens of K/V heads that tensor ranks hold in copies."""
    if asked.dcp == 1 or not asked.kv_heads or not asked.heads:
        return None
    copies, queries = asked.tp // asked.kv_heads, asked.heads // asked.kv_heads
    legal = [n for n in range(1, copies + 1) if asked.tp % n == 0 and queries % n == 0]
    if asked.dcp in legal and asked.tp > asked.kv_heads:
        return None
    named = ", ".join(map(str, legal)) if asked.tp > asked.kv_heads else "1"
    return Problem(
        "parallel.decode_context_parallel_size",
        f"{named} with {asked.kv_heads} K/V heads on {asked.tp} tensor ranks (vLLM {version} "
        "shares the tokens among copies of a head)",
        str(asked.dcp),
        "set parallel.decode_context_parallel_size=1",
    )


def _bfloat16(asked: Arguments, version: str) -> Problem | None:
    capability = asked.compute_capability
    if asked.dtype != "bfloat16" or capability is None or capability >= OLDEST_BFLOAT16:
        return None
    return Problem(
        "model.dtype",
        f"float16 on a device of compute capability {capability[0]}.{capability[1]} (vLLM "
        f"{version} takes bfloat16 from 8.0 on)",
        "bfloat16",
        "set model.dtype=float16",
    )


def _no_latent_fp8(asked: Arguments, version: str) -> Problem | None:
    if not asked.latent_dtype.startswith("fp8_e"):
        return None
    return Problem(
        "cache.cache_dtype",
        f"16 bits: vLLM {version} has no kernel that reads latent rows of 8 bits",
        asked.latent_dtype,
        "set cache.cache_dtype=auto",
    )


def _plain_rows(asked: Arguments, version: str) -> Problem | None:
    if not asked.only_packed or asked.latent_dtype in ("", "fp8_ds_mla"):
        return None
    return Problem(
        "cache.cache_dtype",
        f"fp8_ds_mla, in which the kernels that vLLM {version} takes by itself read this model",
        asked.latent_dtype,
        "set cache.cache_dtype=auto",
    )


def _latent_fp8_by_flash_mla(asked: Arguments, version: str) -> Problem | None:
    capability = asked.compute_capability
    if capability is None or capability[0] in (9, 10):
        return None
    return _latent_fp8_kernel(asked, version, "9 and 10")


def _latent_fp8_since_ada(asked: Arguments, version: str) -> Problem | None:
    capability = asked.compute_capability
    if capability is None or capability >= OLDEST_FP8:
        return None
    return _latent_fp8_kernel(asked, version, "8.9 and later")


def _latent_fp8_kernel(asked: Arguments, version: str, where: str) -> Problem | None:
    capability = asked.compute_capability
    if capability is None or not asked.latent_dtype.startswith("fp8_e"):
        return None
    return Problem(
        "cache.cache_dtype",
        f"16 bits on a device of compute capability {capability[0]}.{capability[1]} (the kernels "
        f"of vLLM {version} that read latent rows of 8 bits are for {where})",
        asked.latent_dtype,
        "set cache.cache_dtype=auto",
    )


CHECKS: tuple[ArgumentCheck, ...] = (
    ArgumentCheck(
        problem=_requests,
        source="the scheduler's configuration is refused with fewer tokens than requests a step, "
        "in every release that was read",
    ),
    ArgumentCheck(
        problem=_bfloat16,
        source="the platform check of a dtype that is asked for; auto falls back to float16",
    ),
    ArgumentCheck(
        problem=_whole_prompts,
        source="the same configuration, where chunked prefill is off; read in 0.17.0 to 0.33.0",
    ),
    ArgumentCheck(
        problem=_context_ranks,
        source="the model's configuration beside the parallel one; read in 0.17.0 (assertions), "
        "0.28.0, 0.32.0 and 0.33.0 (errors)",
        inferred=((0, 0, 0), (0, 17, 0)),
    ),
    ArgumentCheck(
        problem=_no_latent_fp8,
        source="FlashMLA reads 8 bits since vLLM's pull request 22668 (August 2025); before it all "
        "MLA backends refuse (issue 18888)",
        until=(0, 10, 2),
        inferred=((0, 0, 0), (0, 10, 2)),
    ),
    ArgumentCheck(
        problem=_plain_rows,
        source="DeepSeek-V4's attention raises it, but for a FlashInfer backend that is asked for; "
        "read in 0.28.0, 0.30.0, 0.32.0 and 0.33.0, and raised by 0.33.0 as its class was built",
    ),
    ArgumentCheck(
        problem=_latent_fp8_by_flash_mla,
        source="FlashMLA (9 and 10) and the kernels of Blackwell's servers (pull request 24705); "
        "the Triton backend, all that other devices have, refuses: read in 0.17.0 (and issue "
        "35577, February 2026)",
        since=(0, 10, 2),
        until=(0, 18, 0),
        inferred=((0, 10, 2), (0, 17, 0)),
    ),
    ArgumentCheck(
        problem=_latent_fp8_since_ada,
        source="the Triton backend reads 8 bits in 0.28.0 and 0.33.0 (read), since pull request "
        "34597, which 0.17.0 is without; below 8.9 they are refused (issue 52202, August 2026)",
        since=(0, 18, 0),
        inferred=((0, 18, 0), (0, 28, 0)),
    ),
)


def refused_arguments(asked: Arguments, version: str) -> Iterator[Problem]:
    """What `version` would refuse; nothing for kvpipe's own rules ("")."""
    if not version:
        return
    release = parse_version(version)
    for check in CHECKS:
        if check.holds(release) and (problem := check.problem(asked, version)):
            yield _marked(problem) if check.is_inferred(release) else problem


def _marked(problem: Problem) -> Problem:
    return replace(problem, expected=f"{problem.expected}; inferred, not read in this release")
