"""What a part of a command line became, and all that is wrong in it."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class ReadWords:
    """words: those that mean something, as the next reader takes them."""

    words: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def right(self) -> list[str]:
        """The words; ConfigError with every problem where there is one."""
        if self.problems:
            raise ConfigError(dict.fromkeys(self.problems))
        return list(self.words)


def overrides_of(
    flags: ReadWords, words: ReadWords, sweeps: bool = False, **of_hydra: str | None
) -> list[str]:
    """The overrides; ConfigError where a flag or a word is wrong, with what is wrong in each other
    setting that has one value. of_hydra: config_dir, config_path, config_name, where said."""
    problems = [*flags.problems, *words.problems]
    if problems:
        from kvpipe.front.prepared import wrong_by_itself

        others = [word for word in words.words if not sweeps or "," not in word]
        raise ConfigError(dict.fromkeys([*problems, *wrong_by_itself(others, **of_hydra)]))
    return list(words.words)
