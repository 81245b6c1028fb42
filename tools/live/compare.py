"""Two answers to one case -> what differs, in words; an empty list where all is equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
DRAFT = "mtp."
KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "mla",
    "SlidingWindowMLASpec": "sliding_mla",
    "MambaSpec": "mamba",
    "CrossAttentionSpec": "cross",
    "EncoderOnlyAttentionSpec": "encoder_only",
    "SinkFullAttentionSpec": "sink",
    "RSWASpec": "full",  # admitted as if it kept every token
}


def differences(ours: Json, theirs: Json) -> list[str]:
    if ours["started"] != theirs["started"]:
        who = "the engine" if theirs["started"] else "kvpipe"
        reason = (theirs if ours["started"] else ours).get("error", "")
        return [f"only {who} starts: {reason}"]
    if not ours["started"]:
        return []
    found = list(_numbers(ours, theirs))
    found += _groups(ours, theirs)
    if not found:
        found += _pages(ours, theirs)
    for mine, other in zip(ours["others"], theirs["others"], strict=True):
        found += [f"with {mine['memory']:,} bytes: {words}" for words in _other(mine, other)]
    return found


def _other(ours: Json, theirs: Json) -> list[str]:
    if ours["started"] != theirs["started"]:
        return [f"kvpipe {_verdict(ours)}, the engine {_verdict(theirs)}"]
    return list(_numbers(ours, theirs)) if ours["started"] else []


def _verdict(answer: Json) -> str:
    return "starts" if answer["started"] else f"refuses ({answer['error'][:120]})"


def _numbers(ours: Json, theirs: Json) -> Iterator[str]:
    for name in ("max_model_len", "max_num_batched_tokens", "num_blocks"):
        if name in ours and ours[name] != theirs[name]:
            yield f"{name}: kvpipe {ours[name]}, the engine {theirs[name]}"
    mine, other = ours["printed"], theirs["printed"]
    for name in ("tokens", "concurrency"):
        if mine[name] != other[name]:
            yield f"printed {name}: kvpipe {mine[name]}, the engine {other[name]}"


def _groups(ours: Json, theirs: Json) -> list[str]:
    layers = {layer_number(name) for group in ours["groups"] for name in group["layers"]}
    total = max(layers, default=0) + 1
    mine, other = (_in_short(groups, total) for groups in (ours["groups"], theirs["groups"]))
    return [] if mine == other else [f"groups: kvpipe {mine}, the engine {other}"]


def _in_short(groups: list[Json], num_layers: int) -> list[Any]:
    """Where a layer has attention and a state, the engine numbers the states on; layers of a draft
    that has its own numbers come after the model's."""
    names = [name for group in groups for name in group["layers"]]
    own = [layer_number(name) for name in names if not name.startswith(DRAFT)]
    first = max(own, default=-1) + 1
    return [
        [
            KINDS.get(group["kind"], group["kind"]),
            group["block_size"],
            group["page_size"],
            *[
                (layer_number(name) + first * name.startswith(DRAFT)) % num_layers
                for name in group["layers"]
            ],
        ]
        for group in groups
    ]


def layer_number(name: str) -> int:
    """The first whole number among the dotted parts of a layer's name: engines agree on it."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else -1


def _pages(ours: Json, theirs: Json) -> list[str]:
    """Bytes, offset and stride of every layer's pages; a stride that was not said is a page."""
    pairs = zip(ours["pages"], theirs["pages"], strict=False)
    if len(ours["pages"]) != len(theirs["pages"]):
        return [f"pages: kvpipe {len(ours['pages'])} layers, the engine {len(theirs['pages'])}"]
    wrong = [
        f"{mine[0]}: kvpipe {mine[1:]}, the engine {other[1:]}"
        for mine, other in pairs
        if mine[1:3] != other[1:3] or other[3] not in (None, mine[3])
    ]
    return [f"pages: {wrong[0]} and {len(wrong) - 1} more"] if wrong else []
