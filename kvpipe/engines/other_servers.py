"""Command lines of servers other than vLLM's: known by their program, so that doctor can say whose
it is, whether or not its flags are read."""

from __future__ import annotations

from types import MappingProxyType

# A program's name -> the engine, and the option of `engine` that plans it; its logs are read.
OTHER_SERVERS = MappingProxyType(
    {
        "llama-server": ("llama.cpp", "llama_cpp"),
        "llama-cli": ("llama.cpp", "llama_cpp"),
        "sglang": ("SGLang", "sglang"),
        "trtllm-serve": ("TensorRT-LLM", "tensorrt_llm"),
        "text-generation-launcher": ("TGI", ""),
        "ollama": ("Ollama", ""),
        "lmdeploy": ("LMDeploy", ""),
    }
)
_MODULES = MappingProxyType({"sglang.launch_server": ("SGLang", "sglang")})
_VERBS = ("serve", "run")
_LONGEST = 2**16


def server_of_another(text: str) -> tuple[str, str] | None:
    """Engine and option of the first such command in the text; None where there is none: a name
    alone is a file's, or part of a sentence."""
    for line in text[:_LONGEST].splitlines():
        words = line.split()
        for at, word in enumerate(words[:-1]):
            if at and words[at - 1] == "-m" and word in _MODULES:
                return _MODULES[word]
            follows = words[at + 1]
            name = word.rpartition("/")[2]
            if name in OTHER_SERVERS and (
                follows in ("serve", "run", "launch") or follows[0] == "-"
            ):
                return OTHER_SERVERS[name]
    return None


def title_of(option: str) -> str:
    """The engine's name as people write it, by its option of `engine`."""
    return next(title for title, name in OTHER_SERVERS.values() if name == option)
