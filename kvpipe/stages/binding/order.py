"""Which layer is which: the runner's caches in layer order, and layers that share a cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from kvpipe.errors import ConfigError, Problem


@lru_cache(maxsize=8192)  # asked of every layer, in every job of a sweep
def layer_index(name: str, num_attn_module: int = 1) -> int:
    """The one integer among the dotted parts of a name.

    With several attention modules a layer, a name that contains "attn" may hold two:
    `model.layers.1.self_attn.0.attn` of 2 is 1 * 2 + 0. A lone integer stands as it is.
    """
    numbers = [int(part) for part in name.split(".") if part.isascii() and part.isdigit()]
    if num_attn_module > 1 and "attn" in name and len(numbers) == 2:
        return numbers[0] * num_attn_module + numbers[1]
    if len(numbers) != 1:
        allowed = "one integer among its parts"
        if num_attn_module > 1 and "attn" in name:
            allowed += ", or layer and module"
        raise ConfigError(
            Problem("binding", f"a layer name with {allowed}", f"'{name}'"),
            reference_type="AssertionError",
        )
    return numbers[0]


def runner_order(layer_names: Iterable[str], num_attn_module: int = 1) -> list[str]:
    """Names by layer index; several caches of one index in the order they came.

    >>> runner_order(["layers.10.attn", "layers.2.attn", "layers.2.mixer"])
    ['layers.2.attn', 'layers.2.mixer', 'layers.10.attn']
    """
    return sorted(layer_names, key=lambda name: layer_index(name, num_attn_module))


def check_one_cache_per_index(layer_names: Iterable[str], num_attn_module: int = 1) -> None:
    """For runners that address caches by layer index: a second cache of an index would replace the
    first, and one of them would be lost."""
    by_index: dict[int, list[str]] = defaultdict(list)
    for name in layer_names:
        by_index[layer_index(name, num_attn_module)].append(name)
    for index, names in by_index.items():
        if len(names) > 1:
            raise ConfigError(
                Problem(
                    "binding.one_cache_per_index",
                    f"one cache of layer index {index}",
                    f"{', '.join(names)}: all but one would be lost",
                    "set it to false, or binding.num_attn_module",
                )
            )


def add_kv_sharing_layers(
    groups: Sequence[Sequence[str]], shared: Iterable[tuple[str, str]]
) -> list[list[str]]:
    """Each sharing layer appended to its target's group, in the order given.

    A target must own its cache: another sharing layer is no target.

    >>> add_kv_sharing_layers([["l.0"], ["l.1"]], [("l.2", "l.1")])
    [['l.0'], ['l.1', 'l.2']]
    """
    group_of = {name: index for index, names in enumerate(groups) for name in names}
    joined = [list(names) for names in groups]
    for layer, target in shared:
        if target not in group_of:
            raise ConfigError(
                Problem(
                    "binding", f"a cache that {layer} can share", f"'{target}', which has none"
                ),
                reference_type="KeyError",
            )
        joined[group_of[target]].append(layer)
    return joined
