"""What vLLM makes of the line that is printed for a plan which vLLM does not group so itself.

`engine=kvpipe` puts layers of several kinds into equal slots, and may read chunks through scratch.
vLLM takes the same flags and groups the layers its own way: how many requests run then is planned
by the rules of the release that the line is for, in the same bytes.
"""

from __future__ import annotations

from kvpipe.answers.unserved import line_release
from kvpipe.cache.plan import Capacity
from kvpipe.errors import KvpipeError
from kvpipe.notes import Note
from kvpipe.pipeline import Result


def as_vllm_groups(result: Result) -> Note | None:
    """None where vLLM groups alike, or serves as many. A warning where it serves fewer than were
    asked for."""
    plan, resolved = result.plan, result.prepared.resolved
    if plan.slots is None or plan.capacity is None:
        return None
    from kvpipe.answers.trials import asked_of_a_copy  # layers that differ alone

    release, most = line_release(result.prepared), resolved.max_num_seqs
    asked = asked_of_a_copy(result.prepared)
    other = _of_vllm(result, release)
    if other is None:
        text = f"vLLM {release} groups these layers otherwise, and refuses this plan's flags"
        return Note(text=text, is_warning=True)
    theirs, ours = min(most, other.requests_running), min(most, plan.capacity.requests_running)
    if theirs >= ours:
        return None
    where = "" if resolved.parallel.dp == 1 else " on each copy"
    text = (
        f"vLLM {release} runs {theirs:,} such requests{where}, not {ours:,}: it takes these "
        f"flags, and groups the layers otherwise (engine=vllm engine.version={release})"
    )
    return Note(text=text, is_warning=theirs < asked)


def _of_vllm(result: Result, release: str) -> Capacity | None:
    """The same flags, in the same bytes of each rank; None where vLLM refuses them."""
    from kvpipe.answers.replan import replan

    resolved = result.prepared.resolved
    changes = {
        "engine": "vllm",
        "engine.version": release,
        "scheduler.max_model_len": result.plan.limits.max_model_len,
        "scheduler.max_num_batched_tokens": resolved.limits.max_num_batched_tokens,
        "scheduler.max_num_seqs": resolved.max_num_seqs,
        "grouping": "hybrid",
    }
    try:
        return replan(result.prepared, result.profile.available_kv_bytes, changes).capacity
    except KvpipeError:
        return None
