"""What kvpipe says to a user, as data: problems of a request, and plans that do not fit.

Exit codes: 0 it fits, 1 it does not (`DoesNotFit`), 2 the request is wrong (`ConfigError`), 3 we
failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_GOT = 200  # characters of a wrong value that are repeated
LONGEST_KEY = 400  # and of a key, which may name a file


@dataclass(frozen=True)
class Problem:
    """One mistake in a request: `key: expected ..., got ...; knob`, on one line.

    of_name: what is wrong is a name (of a key, a section, a plugin), not a value: in a sweep it is
    wrong in every job."""

    key: str
    expected: str
    got: str
    knob: str = ""
    of_name: bool = False

    def to_json(self) -> dict[str, str]:
        return {"key": self.key, "expected": self.expected, "got": self.got, "knob": self.knob}

    def saying_instead(self, path: str, words: str) -> Problem:
        """The same, with these words for the path."""
        texts = {key: text.replace(path, words) for key, text in self.to_json().items()}
        return Problem(**texts, of_name=self.of_name)

    def __str__(self) -> str:
        key, got = _cut(self.key, LONGEST_KEY), _cut(self.got, LONGEST_GOT)
        line = f"{key}: expected {self.expected}, got {got}"
        return printable(f"{line}; {self.knob}" if self.knob else line)


def _cut(text: str, longest: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


def printable(text: str) -> str:
    """On one line, whatever a file or a user put into it: white space collapsed, and a question
    mark for what a terminal would obey or cannot show."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


class KvpipeError(Exception):
    """Base of every error meant for a user; printed one line a problem, without a traceback."""

    exit_code = 3
    status = "failed"  # what result.json and the JSON report call it

    def lines(self) -> list[str]:
        return str(self).splitlines() or [type(self).__name__]


class ConfigError(KvpipeError):
    """The request is wrong. Carries every problem that was found, not the first one."""

    exit_code = 2
    status = "wrong_request"

    def __init__(
        self, problems: Iterable[Problem] | Problem, reference_type: str = "", stage: str = ""
    ) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        # The exception type the reference engine raises here, and in which of its steps (groups,
        # configs): data for tests, never shown.
        self.reference_type = reference_type
        self.stage = stage
        # The layers it is about, where the reason is a set of layers that do not go together.
        self.layers: tuple[str, ...] = ()
        super().__init__(_in_lines(self.problems))

    def say_instead(self, path: str, words: str) -> None:
        """A file of ours is called what the user knows it by."""
        self.problems = tuple(problem.saying_instead(path, words) for problem in self.problems)
        self.args = (_in_lines(self.problems),)


def _in_lines(problems: Iterable[Problem]) -> str:
    return "\n".join(str(problem) for problem in problems)


def problems_of(check: Callable[[], object]) -> tuple[Problem, ...]:
    """What a check that raises finds to be wrong; nothing where it passes."""
    try:
        check()
    except ConfigError as error:
        return error.problems
    return ()


@dataclass(frozen=True, kw_only=True)
class CardDemand:
    """What one rank's card would have to hold: (name, bytes) in the order in which it is charged,
    together more than allowed_bytes, the share of total_bytes that the run may use."""

    rank: int
    total_bytes: int
    allowed_bytes: int
    parts: tuple[tuple[str, int], ...]

    @property
    def missing_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.parts) - self.allowed_bytes


class DoesNotFit(KvpipeError):
    """The request is legal but the memory is too small.

    changes: settings, each of which makes it fit: planned, not reasoned. facts: the message without
    its knob, which is what makes one request fit.
    needed_bytes, available_bytes: one entry a rank; with the needed bytes it fits, with one byte
    less it does not. null_block_bytes: of the needed ones, the null block's.
    longest_len: the longest max_model_len, in tokens, that fits and runs (None: not even one token
    does, or it was not asked for). admitted_len: the longest with which the engine starts: some
    admit what they can never schedule. demand: what the poorest card would have to hold, where that
    is known. most_bytes: one entry a rank, the high end of an estimate that leaves nothing.
    about: the load and the device, for a headline ("": none was made).
    """

    exit_code = 1
    status = "does_not_fit"

    def __init__(
        self,
        message: str,
        *,
        knob: str = "",
        needed_bytes: tuple[int, ...] = (),
        available_bytes: tuple[int, ...] = (),
        null_block_bytes: tuple[int, ...] = (),
        longest_len: int | None = None,
        admitted_len: int | None = None,
        reference_type: str = "ValueError",
        stage: str = "configs",
        demand: CardDemand | None = None,
        most_bytes: tuple[int, ...] = (),
    ) -> None:
        super().__init__(f"{message} {knob}" if knob else message)
        self.facts = message
        self.demand = demand
        self.most_bytes = most_bytes
        self.stage = stage
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.null_block_bytes = null_block_bytes
        self.longest_len = longest_len
        self.admitted_len = admitted_len
        self.reference_type = reference_type
        self.changes: tuple[Mapping[str, Any], ...] = ()
        self.about = ""

    def with_advice(self, line: str, changes: tuple[Mapping[str, Any], ...]) -> DoesNotFit:
        """The same, with what was planned and fits as a line of its own."""
        told = self._saying(self.beside(changes), line)
        told.changes = changes
        return told

    def that_may_fit(self, line: str) -> DoesNotFit:
        """The same, where the high end of the memory's estimate would hold it: as its second
        line."""
        first, *others = self.lines()
        told = self._saying(first, line, *others)
        told.changes, told.status = self.changes, "may_not_fit"
        return told

    def beside(self, changes: Sequence[Mapping[str, Any]]) -> str:
        """The message; without its knob where a planned change is another length (of several
        users, of the low end of an estimate)."""
        key = "scheduler.max_model_len"
        lengths = {change[key] for change in changes if set(change) == {key}}
        return str(self) if lengths <= {self.longest_len} else self.facts

    def without_knob(self) -> DoesNotFit:
        """The same, for those whose load is more than the one request that the knob is about."""
        return self._saying(self.facts)

    def _saying(self, *lines: str) -> DoesNotFit:
        return DoesNotFit(
            "\n".join(lines),
            needed_bytes=self.needed_bytes,
            available_bytes=self.available_bytes,
            null_block_bytes=self.null_block_bytes,
            longest_len=self.longest_len,
            admitted_len=self.admitted_len,
            reference_type=self.reference_type,
            stage=self.stage,
            demand=self.demand,
            most_bytes=self.most_bytes,
        )


class SpecError(ValueError):
    """A spec cannot be what is asked of it (block size, padded page, sharding ...).

    expected: what it must be, or the reason why not. got: the value that is not so ("": there is no
    one value). why: what stands in the way, without the values that would do. The caller knows
    which config key asked, and turns this into a `Problem`.
    """

    def __init__(self, expected: str, got: str = "", why: str = "") -> None:
        super().__init__(f"{expected}, got {got}" if got else expected)
        self.expected = expected
        self.got = got
        self.why = why

    def problem(self, key: str, otherwise: str) -> Problem:
        """As the problem of a key. otherwise: what was expected where the error is a reason."""
        if self.got:
            return Problem(key, self.expected, self.got)
        return Problem(key, otherwise, self.expected)


MOST_LISTED, NEAREST = 60, 8


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`did you mean 'x'? ` (or nothing) and the valid names, for an unknown name: all of them, or
    the nearest of more than MOST_LISTED."""
    from difflib import get_close_matches  # only when something went wrong

    known = sorted(choices)
    begins = [choice for choice in known if name and choice.startswith(name)]
    close = begins[:1] or get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    if len(known) > MOST_LISTED:
        near = get_close_matches(name, known, n=NEAREST, cutoff=0.4) or known[:NEAREST]
        return f"{hint}valid: {', '.join(near)} and {len(known) - len(near)} more"
    return f"{hint}valid: {', '.join(known)}"
