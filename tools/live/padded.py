"""The models of the matrix that vLLM groups with places to spare: where the plug-in has something
to win, by kvpipe's plan of the engine's own rules."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kvpipe.engines.versions import rules_of  # noqa: E402
from kvpipe.errors import KvpipeError  # noqa: E402
from kvpipe.front.prepared import prepared_request  # noqa: E402
from kvpipe.integrations.vllm.regroup import EngineRequest, best  # noqa: E402
from kvpipe.integrations.vllm.settings import Settings  # noqa: E402
from tools.live.cases import AS_IT_IS, MIB, Case  # noqa: E402
from tools.live.model_files import Model  # noqa: E402
from tools.live.models import MODELS  # noqa: E402
from tools.live.said import overrides_of  # noqa: E402


def padded(version: str) -> tuple[list[str], list[str]]:
    """(models of which another grouping holds more, models that could not be planned)."""
    better, unknown = [], []
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        for name, model in MODELS.items():
            try:
                better += [name] if _can_be_better(model, version, Path(scratch)) else []
            except KvpipeError:
                unknown.append(name)
    return better, unknown


def _can_be_better(model: Model, version: str, scratch: Path) -> bool:
    case = Case(model=model, setting=AS_IT_IS, memory_bytes=64 * MIB)
    folder, draft = model.write(scratch), model.write_draft(scratch)
    asked = overrides_of(case, folder, draft, version, case.memory_bytes)
    resolved = prepared_request(asked).prepared.resolved
    request = EngineRequest(
        layers=[rank.layers for rank in resolved.ranks],
        limits=resolved.limits,
        memory=[case.memory_bytes],
        rules=rules_of(version),
        fit=False,
        disable_hybrid=False,
        override=None,
        layout="LBHNC",
    )
    return best(request, request.planned(), Settings()) is not None
