"""Errors whose message is meant for the person who runs the program, each with its exit code."""

import signal
from typing import Any

from chunkwise.printable import printable

UNREAD = 141
"""Exit code of a program that SIGPIPE ends, as in `chunkwise list | head`: nobody reads what is printed any more."""


def one_line(error: BaseException) -> str:
    """Returns what an exception says, without line breaks; its type, if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def exit_reason(code: int | None) -> str:
    """Returns how a process ended, by its exit code as Python has it: negative for a signal, None where unknown."""
    if code is None:
        return "its connection ended"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # of real time, all but the first and the last have no name
        return f"killed by signal {-code}"


class StopRequested(BaseException):
    """Raised in the main thread to break off what a request to stop finds under way (distributed/stopping.py).

    Not an Exception: a reader that takes any exception for damage must not take this one.
    """

    exit_code = 75


class Told(Exception):
    """An error whose message people read, a line for each argument; names in a line can make no other line of it."""

    def __init__(self, *lines: object) -> None:
        """Takes the message: what is not printable in a line, line breaks included, is escaped."""
        super().__init__(*(printable(str(line)) for line in lines))

    def __str__(self) -> str:
        return "\n".join(self.args)


class RunError(Told):
    """Base: launch.py prints the message without a traceback and exits with `exit_code`."""

    exit_code = 70


class ConfigError(RunError):
    """The command line or a config file is wrong; the message says where, and what to change."""

    exit_code = 64


class DataError(RunError):
    """A dataset is missing or bad, or every checkpoint is; the message names file, key, expected and found."""

    exit_code = 65


class NonFiniteError(RunError):
    """A loss or a weight is NaN or infinite; the message names the step and the quantity."""

    exit_code = 70


class BusyError(RunError):
    """Another process holds the run folder."""

    exit_code = 73


class StorageError(RunError):
    """A save failed for good; the message names the last durable step."""

    exit_code = 74


class PreemptedError(RunError):
    """The run was asked to stop, and everything was saved."""

    exit_code = 75


class PeerError(RunError):
    """Another process of the run ended or no longer answers; nothing is lost but the updates since the last save."""

    exit_code = 76


class MismatchError(RunError):
    """The config or dataset is not the one of the checkpoint; the message lists the keys that differ."""

    exit_code = 78


def require_equal(saved: dict[str, Any], current: dict[str, Any], what: str) -> None:
    """Raises MismatchError listing the keys whose values differ."""
    keys = sorted(key for key in saved.keys() | current.keys() if saved.get(key) != current.get(key))
    if keys:
        lines = [f"  {key}: saved {saved.get(key)!r}, now {current.get(key)!r}" for key in keys[:20]]
        more = [f"  and {len(keys) - 20} more"] if len(keys) > 20 else []
        if any(key.endswith("train.steps") for key in keys):
            more += ["  (train.steps may change where optim.schedule is constant; another ends where it was begun to)"]
        raise MismatchError(f"{what}:", *lines, *more, "Undo these, or start anew in another folder")
