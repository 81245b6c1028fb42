"""kvpipe inside vLLM: a plug-in that does nothing until it is asked.

    vllm serve MODEL --additional-config '{"kvpipe": {"grouping": "optimal", "report": true}}'

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). Where the
engine plans its cache, its specs go to kvpipe, which plans them as that release does; only if that
gives the engine's own plan, and another grouping of the same layers holds more tokens, does the
engine get these groups. In every other case its own plan stays and one warning says why.
"""

from __future__ import annotations


def register() -> None:
    """The plug-in's entry point. Never raises: an engine must start whatever happens here."""
    from kvpipe.integrations.vllm.hook import install_here

    install_here()
