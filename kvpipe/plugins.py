"""Every registry of the pipeline, and the config sections that choose from them."""

from __future__ import annotations

from typing import Any

from kvpipe.registry import Registry

STAGES = ("validation", "profiling", "grouping", "allocation", "binding")

SPECS: Registry[Any] = Registry("attention.spec", "kvpipe.specs", "kvpipe.specs")

COMMANDS: Registry[Any] = Registry("command.name", "kvpipe.commands", "kvpipe.commands")

REGISTRIES: dict[str, Registry[Any]] = {
    "command": COMMANDS,
    "model": Registry("model.reader", "kvpipe.models", "kvpipe.models"),
    "weights": Registry("weights.name", "kvpipe.models.formats", "kvpipe.weights"),
    "backend": Registry("backend.name", "kvpipe.backends", "kvpipe.backends"),
    "layout": Registry("layout.name", "kvpipe.layouts", "kvpipe.layouts"),
    "engine": Registry("engine.name", "kvpipe.engines", "kvpipe.engines"),
    "report": Registry("report.name", "kvpipe.report", "kvpipe.report"),
    **{
        stage: Registry(f"{stage}.name", f"kvpipe.stages.{stage}", f"kvpipe.stages.{stage}")
        for stage in STAGES
    },
}

# Section -> the key in it that names the plugin.
SECTIONS: dict[str, str] = {name: "reader" if name == "model" else "name" for name in REGISTRIES}
