"""Figures that engines printed, beside the model shapes that kvpipe's formulas need for them.

shape: (hidden, intermediate, vocabulary, experts a token, expert size) as the models' configs say;
None where the log does not give enough to apply the formula at all. inside: whether the printed
figure lies in the range; a test keeps this table true.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from engine_records import cases, given

from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.pipeline import make_backend, profile_ranks
from kvpipe.stages.profiling.estimates import Estimate, activations, context, graphs

Shape = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Peak:
    """tokens, seqs: of the profiled step. why: what the formula was given, or why it was not."""

    shape: Shape | None
    tokens: int = 0
    seqs: int = 256
    has_head: bool = True
    is_packed: bool = False
    inside: bool = False
    why: str


PEAKS: dict[str, Peak] = {
    "L15": Peak(
        shape=(4096, 14336, 128256, 0, 0),
        tokens=8192,
        inside=True,
        why="a whole prompt of 8,192 tokens is one batch before 0.8",
    ),
    "L16": Peak(
        shape=(4096, 14336, 128256, 0, 0),
        tokens=8192,
        inside=True,
        why="as L15 on two ranks: the sampler is not split",
    ),
    "L17": Peak(shape=None, why="which of 16 cards hold which layers is not printed"),
    "L18": Peak(
        shape=(7168, 18432, 129280, 8, 2048),
        tokens=2048,
        has_head=False,
        inside=True,
        why="a rank of the first of two stages, which does not sample",
    ),
    "L19": Peak(
        shape=(3840, 15360, 262208, 0, 0),
        tokens=8192,
        inside=True,
        why="Gemma-3-12B, inferred; its sampler outweighs any batch",
    ),
    "X02": Peak(
        shape=(4096, 12288, 151936, 8, 1536),
        tokens=2048,
        inside=True,
        why="default batch of a card below 70 GiB",
    ),
    "X08": Peak(
        shape=(896, 4864, 151936, 0, 0),
        tokens=32768,
        inside=True,
        why="a whole prompt of 32,768 tokens is one batch before 0.8",
    ),
    "X10": Peak(
        shape=(5120, 17920, 32064, 0, 0),
        tokens=2048,
        is_packed=True,
        inside=True,
        why="GPTQ weights, a layer of which is unpacked in the step",
    ),
    "X11": Peak(shape=None, why="the vision encoder's peak, which is not modelled"),
}


def peak_of(name: str) -> Estimate:
    """The estimate for a record of PEAKS that has a shape."""
    peak = PEAKS[name]
    assert peak.shape is not None
    hidden, intermediate, vocab, experts, size = peak.shape
    model = ModelGeometry(
        name=name,
        file_dtype="bfloat16",
        context_length=1,
        num_layers=1,
        caches=(),
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocab_size=vocab,
        experts_per_token=experts,
        expert_size=size,
    )
    return activations(
        model,
        batched_tokens=peak.tokens,
        max_num_seqs=peak.seqs,
        tp=given(cases()[name], "tp") or 1,
        has_head=peak.has_head,
        is_packed=peak.is_packed,
    )


# Records that print the memory of captured graphs -> layers (where the geometry has none).
GRAPHS: dict[str, int] = {
    "L30": 41,
    "L58": 48,
    "X02": 94,
    "X10": 40,
    "X16": 32,
    "X19": 42,
    "X20": 30,
    "X25": 42,
    "X27": 32,
}


WITH_EXPERTS = {"L58", "X02", "X16", "X20"}


def graphs_of(name: str) -> Estimate:
    model = ModelGeometry(
        name=name,
        file_dtype="bfloat16",
        context_length=1,
        num_layers=1,
        caches=(),
        experts_per_token=8 if name in WITH_EXPERTS else 0,
    )
    return graphs(model, num_layers=GRAPHS[name], max_num_seqs=256)


# What other processes held of unified memory was counted there: no figure of the engine's own.
OF_OTHERS = {"X11"}


def outside_torch() -> dict[str, Estimate | None]:
    """Records that print memory outside torch."""
    found = [name for name, case in cases().items() if case["non_torch_gib"] is not None]
    return {
        name: None
        if name in OF_OTHERS
        else context(
            given(cases()[name], "tp") or 1, int((cases()[name]["total_gpu_gib"] or 0) * 2**30)
        )
        for name in found
    }


# Records that print the weights of one rank of a model that kvpipe ships -> how it is asked for.
# (Not here: others' models, models that the record infers, SGLang, which prints more than weights.)
WEIGHTS: dict[str, tuple[str, ...]] = {
    "L01": ("model=llama",),
    "L15": ("model=llama",),
    "L16": ("model=llama", "parallel.tensor_parallel_size=2"),
    "X07": ("model=qwen2_5_1_5b",),
    "X27": ("model=whisper_large_v3",),
    "L13": ("model=llama3_70b", "weights=int8"),
    "L18": (
        "model=deepseek_r1",
        "parallel.tensor_parallel_size=8",
        "parallel.pipeline_parallel_size=2",
    ),
    "L45": ("model=gpt_oss_120b",),
}


@cache
def weights_of(name: str) -> tuple[float, Estimate]:
    """GiB that are counted, and the range with what loading adds; of the first rank."""
    words = ["backend=meta", "device=h200", "profiling=estimate", "scheduler.max_model_len=448"]
    prepared = prepared_request([*words, *WEIGHTS[name]]).prepared
    backend = make_backend(prepared.config, prepared.resolved.backend)
    charged = {item.name: item for item in profile_ranks(prepared, backend).ranks[0].charged}
    file, loading = charged["weights"], charged["loading"]
    assert loading.low_bytes is not None and loading.high_bytes is not None
    low = file.num_bytes if file.low_bytes is None else file.low_bytes
    high = file.num_bytes if file.high_bytes is None else file.high_bytes
    return file.num_bytes / 2**30, Estimate(
        name="weights",
        low=low + loading.low_bytes,
        best=file.num_bytes + loading.num_bytes,
        high=high + loading.high_bytes,
        formula="",
        source="",
    )
