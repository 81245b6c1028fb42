"""What a release of vLLM refuses of its own arguments, before it looks at memory.

One table, as in `versions`: a check holds from a release up to another; each says its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvpipe.engines.versions import Version, parse_version
from kvpipe.errors import Problem

OLDEST_BFLOAT16 = (8, 0)  # compute capability
OLDEST_FP8 = (8, 9)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the checks ask about. dtype: as the user set it ("auto": the release chooses).
    latent_dtype: of the rows that latent layers store ("" none does)."""

    max_num_batched_tokens: int
    max_num_seqs: int
    dtype: str
    compute_capability: tuple[int, int] | None
    latent_dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class ArgumentCheck:
    """problem: None where the release takes the arguments."""

    problem: Callable[[Arguments, str], Problem | None]
    source: str
    since: Version | None = None
    until: Version | None = None

    def holds(self, release: Version) -> bool:
        return (self.since or release) <= release and (self.until is None or release < self.until)


def _requests(asked: Arguments, version: str) -> Problem | None:
    if asked.max_num_batched_tokens >= asked.max_num_seqs:
        return None
    return Problem(
        "scheduler.max_num_batched_tokens",
        f"at least scheduler.max_num_seqs={asked.max_num_seqs:,} (vLLM {version} refuses less)",
        f"{asked.max_num_batched_tokens:,}",
        f"raise it, or set scheduler.max_num_seqs={asked.max_num_batched_tokens}",
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
        "set cache.cache_dtype=auto, or engine.version=0.10.2 or later",
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
        problem=_no_latent_fp8,
        source="FlashMLA reads 8 bits since vLLM's pull request 22668 (August 2025); before it all "
        "MLA backends refuse (issue 18888)",
        until=(0, 10, 2),
    ),
    ArgumentCheck(
        problem=_latent_fp8_by_flash_mla,
        source="FlashMLA (Hopper) and the kernels of Blackwell's servers (pull request 24705); the "
        "Triton backend, all that other devices have, refuses (issue 35577, February 2026)",
        since=(0, 10, 2),
        until=(0, 17, 0),
    ),
    ArgumentCheck(
        problem=_latent_fp8_since_ada,
        source="the Triton backend reads 8 bits since pull request 34597; below 8.9 they are "
        "refused (issue 52202, August 2026)",
        since=(0, 17, 0),
    ),
)


def refused_arguments(asked: Arguments, version: str) -> Iterator[Problem]:
    """What `version` would refuse; nothing for kvpipe's own rules ("")."""
    if not version:
        return
    release = parse_version(version)
    for check in CHECKS:
        if check.holds(release) and (problem := check.problem(asked, version)):
            yield problem
