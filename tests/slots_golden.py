"""The plans of the recorded layer sets in equal slots, as they were when they were last looked at.

`python tests/slots_golden.py` writes them anew: a change of a plan is then seen in the diff.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from layer_sets import layer_sets

from kvpipe.cache.plan import Plan

FILE = Path(__file__).parent / "golden" / "slots.json"


def shape(plan: Plan) -> dict[str, Any]:
    """Slot bytes, rule, grain, and the tables: kind, layers, tokens a block."""
    facts = plan.slots
    tables = [[g.spec.kind, len(g.layer_names), g.spec.block_size] for g in plan.groups]
    return {
        "slot_bytes": plan.ranks[0].config.bytes_per_block,
        "rule": facts.rule if facts else "one group",
        "never_worse_than": list(facts.never_worse_than) if facts else [],
        "prefix_grain": facts.prefix_grain if facts else None,
        "tables": [" ".join(map(str, table)) for table in tables],
    }


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


GOLDEN = golden() if FILE.exists() else {}


def main() -> None:
    from test_slots import KVPIPE, plan_of

    found = {name: shape(plan_of(each, KVPIPE)) for name, each in layer_sets().items()}
    lines = [f"{json.dumps(name)}: {json.dumps(made)}" for name, made in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(found)} plans in {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
