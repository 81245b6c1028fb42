"""What tables of a slot size take at least, on any scale: a bound that holds for every plan."""

from __future__ import annotations

from kvpipe.stages.grouping.slots.kinds import Life
from kvpipe.stages.grouping.slots.weights import Scale


def fewest_tables(life: Life, slot: int) -> int:
    """Whole slots that the layers need in their smallest blocks. A layer fits into one."""
    if len(life.kinds) > 1:
        return -(-life.all_layers(life.sizes[0]) // slot)
    (kind,) = life.kinds  # whose layers are not cut in two
    return -(-kind.count // max(1, slot // kind.page(life.sizes[0])))


def least_weight(life: Life, slot: int, scale: Scale) -> int:
    """Of all tables, in bytes of slots: every layer pays at least its share of the best table, of
    which no layers can fill more than fits into the slot, nor more than there are."""
    if life.is_fixed:  # one sort of table: whole tables of it
        return fewest_tables(life, slot) * scale.weigh(life, life.sizes[0]) * slot
    if len(life.kinds) > 1:
        return min(w * max(slot, whole) for w, whole in scale.of_whole(life))
    (kind,) = life.kinds
    fits = ((scale.weigh(life, t), slot // kind.page(t)) for t in life.sizes)
    count = kind.count
    return min(-(-count * w * slot // min(count, fit)) for w, fit in fits if fit)
