"""`--help`: one screen for kvpipe, one for each command; `--help all` is all of conf/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.front.short_keys import FLAGS
from kvpipe.plugins import COMMANDS
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.described import Choice, choices
from kvpipe.text.lines import Line, Section, lay_out

EXAMPLES = (
    ("does it fit on these cards", "kvpipe llama-3.1-70b --on 2xh200 --context 32k --kv fp8"),
    ("any model's config.json", "kvpipe ./my-model device=h200"),
    ("what serves a load", "kvpipe find device=h100_80gb want.requests=48 want.length=8192"),
    ("several at once", "kvpipe -m cache=full,fp8 scheduler.max_model_len=8192,32768 device=l4"),
    ("as vLLM plans it", "kvpipe model=gemma3_27b device=h200 engine=vllm_0_33"),
)


FLAG_WORDS = {
    "--on": "the cards: h100, 2xh200 (two ranks), l4, ... (device=)",
    "--context": "tokens a request may have: 8192, 32k (scheduler.max_model_len=)",
    "--kv": "dtype of the cache: fp8, bfloat16, ... (cache.cache_dtype=)",
    "--weights": "how the weights are stored: fp8, awq, q4_k_m, ... (weights=)",
    "--users": "requests that shall run at once (want.requests=)",
}


def help_lines(words: Sequence[str], width: int, search: bool = False) -> Iterator[Line]:
    """The screen of the command or of the group that a word names, of kvpipe where none does;
    search: what mentions another word, ConfigError where nothing mentions it."""
    command = next((word for word in words if word in COMMANDS), None)
    group = next((word for word in words if word in _groups()), None)
    if list(words) == ["all"]:
        from kvpipe.front.help_all import all_sections

        sections = list(all_sections())
    elif command is not None:
        sections = _of_command(command)
    elif group is not None:
        sections = list(_of_group(group, choices(group)))
    elif words and search:
        sections = _about(words[0])
    else:
        sections = _overview()
    yield from lay_out(sections, width)


def _groups() -> list[str]:
    return sorted(p.name for p in CONF_DIR.iterdir() if p.is_dir() and p.name != "hydra")


def _about(word: str) -> list[Section]:
    """Every setting and choice whose name or comment has the word."""
    found = [(group, choice) for group in _groups() for choice in choices(group)]
    about = word.casefold()
    settings = {
        f"{group}.{setting.key}": setting.comment
        for group, choice in found
        for setting in choice.settings
        if about in f"{group}.{setting.key} {setting.comment}".casefold()
    }
    named = {
        f"{group}={choice.name}": choice.comment
        for group, choice in found
        if about in f"{choice.name} {choice.comment}".casefold()
    }
    rows = [*settings.items(), *named.items()]
    if not rows:
        expected = "a command, a group of settings, or a word that one of them mentions"
        hint = did_you_mean(word, [*COMMANDS.names(), *_groups()])
        raise ConfigError(Problem("--help", expected, f"'{word}'", hint))
    return [Section(title=f"{word}: what mentions it", align="ll", rows=rows)]


def _overview() -> list[Section]:
    return [
        Section(
            title="kvpipe: will a model's KV cache fit, for how many requests, and which flags",
            verbatim=[
                Line("  kvpipe [command] [org/name | path] [group=choice ...] [key=value ...]"),
                Line("  kvpipe -m cache=full,sliding cache.block_size=16,32        (a sweep)"),
            ],
        ),
        Section(
            title="Commands (kvpipe COMMAND --help says more)",
            align="ll",
            rows=[(name, COMMANDS.get(name).summary) for name in COMMANDS.names()],
        ),
        Section(
            title="Flags, each a setting",
            align="ll",
            rows=[(f"{flag} VALUE", FLAG_WORDS[flag]) for flag in FLAGS]
            + [("tp=, pp=, dp=", "ranks of tensor, pipeline and data parallelism")],
        ),
        Section(
            title="Try",
            verbatim=[
                line
                for what, command in EXAMPLES
                for line in (Line(f"  {what}:", "faint"), Line(f"    {command}"))
            ],
        ),
        Section(
            title="More",
            paragraphs=[
                Line("--help model: every preset; so device, weights, cache, engine and others"),
                Line("--help all: every group with its choices, every setting with its value"),
                Line("--cfg job -p cache: one group as this command line sets it"),
                Line('Sizes are bytes or "30GiB"; lengths are tokens. --config-dir DIR: your YAML'),
                Line("exit codes: 0 it fits, 1 it does not, 2 the request is wrong, 3 we failed"),
                Line("MAY NOT FIT: 0 where the best value of the memory serves it, else 1"),
            ],
        ),
    ]


def _of_command(name: str) -> list[Section]:
    command = COMMANDS.get(name)
    sections = [
        Section(title=f"kvpipe {name}: {command.summary}", verbatim=[Line(f"  {command.example}")])
    ]
    for group in ("command", *command.reads):
        found = [choice for choice in choices(group) if group != "command" or choice.name == name]
        sections += _of_group(group, found)
    sections.append(
        Section(
            title="As every command",
            paragraphs=[
                Line(
                    "model=, device=, cache=, parallel=, scheduler=, engine= say what is planned, "
                    "report=json|none how it is told; -m sweeps. --help all lists them."
                )
            ],
        )
    )
    return sections


def _of_group(group: str, found: list[Choice]) -> Iterator[Section]:
    """The choices of a group where there are several, then the settings of the richest of them."""
    if len(found) > 1:
        yield Section(
            title=f"{group}=",
            align="ll",
            rows=[(choice.name, choice.comment) for choice in found],
        )
    settings = {
        setting.key: setting
        for choice in sorted(found, key=lambda choice: len(choice.settings))
        for setting in choice.settings
        if setting.key not in ("name", "defaults")
    }
    if settings:
        yield Section(
            title=f"{group}: settings",
            headers=("key", "default", "what it is"),
            align="lll",
            rows=[
                (f"{group}.{setting.key}", setting.value, setting.comment)
                for setting in settings.values()
            ],
        )
