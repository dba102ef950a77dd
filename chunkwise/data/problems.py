"""What is wrong with a dataset: a line for each problem, one for many that are alike, and the error that refuses it."""

import dataclasses
from collections.abc import Iterable

from chunkwise.errors import DataError
from chunkwise.printable import printable

MAX_SKIPPED = 0.01
"""Share of bad episodes, or records, up to which `on_bad` skip leaves them out."""
SHOWN = 10
"""Lines of problems that a message has; the rest is counted."""
_LONGEST_KEY = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is wrong."""

    file: str
    expected: str
    found: str
    key: str = ""
    """Where in the file: an array, a column, or frames[3].observations.cameras.front.image_path; empty: the file."""
    row: int | None = None
    """First row, or frame of the episode, that shows it; None where it concerns all of them."""
    episode: int | None = None
    """Where files hold several, or an episode has several files."""

    def __str__(self) -> str:
        inside = [f"{self.key:.{_LONGEST_KEY}}"] if self.key else []
        inside += [] if self.row is None else [f"row {self.row}"]
        where = ": ".join([self._place(), *([", ".join(inside)] if inside else [])])
        return printable(f"{where}: expected {self.expected}, found {self.found}")

    def _place(self) -> str:
        return self.file if self.episode is None else f"episode {self.episode}, {self.file}"


def problem_of(error: DataError, file: str) -> Problem:
    """Takes an error about a file apart where it is written as "<file>: <key>: expected <this>, found <that>"."""
    text = str(error).removeprefix(printable(f"{file}: "))
    key, _, rest = text.partition("expected ")
    expected, comma, found = rest.partition(", found")
    if not comma or (key and not key.endswith(": ")):
        return Problem(file=file, expected="data that can be read", found=text)
    return Problem(file=file, key=key.removesuffix(": "), expected=expected, found=found.lstrip(": "))


def list_problems(problems: Iterable[Problem], *, shown: int = SHOWN, all_by: str = "") -> list[str]:
    """Returns a line for each kind of problem, with a count where it is that of several files or episodes.

    A wrong field of a config is found in every episode: 306 of them are one line. Alike are those with the same key,
    row, expected and found.

    Args:
      problems: In the order in which they are told.
      shown: Lines, besides one that counts the rest.
      all_by: The command that lists all.
    """
    kinds: dict[tuple[str, int | None, str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.key, problem.row, problem.expected, problem.found), []).append(problem)
    lines = []
    for alike in list(kinds.values())[:shown]:
        count = "" if len(alike) == 2 else f"{len(alike) - 1} more, the last "
        more = printable(f"; the same in {count}{alike[-1]._place()}") if len(alike) > 1 else ""
        lines.append(f"{alike[0]}{more}")
    rest = sum(len(alike) for alike in list(kinds.values())[shown:])
    if rest:
        lines.append(f"and {rest} more" + (f"; {all_by} lists all" if all_by else ""))
    return lines


def refuse(problems: Iterable[Problem], hint: str = "", *, what: str = "", all_by: str = "") -> DataError:
    """Returns one error that counts the problems and lists them as `list_problems` does.

    Args:
      problems: At least one.
      hint: What can be done about them.
      what: Of which they are, in front of their count.
      all_by: As of `list_problems`.
    """
    listed = list(problems)
    lines = [f"  {line}" for line in list_problems(listed, all_by=all_by)]
    return DataError(f"{what + ': ' if what else ''}{len(listed)} problem(s):", *lines, *([hint] if hint else []))
