"""Trouble is not damage: an error of the system while something is read says nothing of what is on the disk.

Access refused, a device or a network that fails, no memory, too many open files: what could not be read may be whole.
Such errors are tried again where that can help, and reported with the path; nothing is moved or replaced because of
them. A file that is missing, cut, or does not parse is damage, and is for the caller to judge.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

SYSTEM = (OSError, MemoryError)
"""What the system raises where files are read and written, for those who say which file it was."""
TRIES = 4
SECONDS = 0.25
"""Before the second try, doubled before each further one: 1.75 s in all, for a network disk that hiccups."""

# What these say of a path is a fact: it is not there, or is something else than expected.
_FACTS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
# jax and tensorstore wrap the system's errors as text, tensorstore with the number.
_STATUS = re.compile(
    r"\b(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|PERMISSION_DENIED|UNAUTHENTICATED)\b"
)
_CODE = re.compile(r"os_error_code='(\d+)'")


def is_trouble(error: BaseException) -> bool:
    """Whether the system failed while something was read or written, anywhere in the chain of an error's causes."""
    return any(_troubled(one) for one in _chain(error))


def is_system_error(error: Exception) -> bool:
    """Whether an error is the system's own, or of a library that calls its own so: for readers of data, to whom a file
    that is gone for a moment may come back."""
    return isinstance(error, OSError)


def root_cause(error: BaseException) -> str:
    """The last exception of the chain, in which Orbax hides what really happened, as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if len(text) <= 240:
        return text
    code = _CODE.search(text)  # tensorstore's words for it may be anywhere in a page of JSON
    return f"{text[:120]}...{text[-120:]}" + (f": {os.strerror(int(code[1]))}" if code else "")


def retried(
    act: Callable[[], T],
    *,
    again: Callable[[Exception], bool] = is_trouble,
    tries: int = TRIES,
    seconds: float = SECONDS,
) -> T:
    """Calls `act` until it succeeds, at most `tries` times, waiting longer each time; returns what it returns.

    Args:
      act: What may fail.
      again: Whether an error may pass. Access that is refused never does.
      tries: Calls in all.
      seconds: Before the second call, doubled before each further one.

    Raises:
      Exception: The last one, or the first for which there is no point in trying again.
    """
    for left in reversed(range(tries)):
        try:
            return act()
        except Exception as error:
            if not left or not again(error) or any(isinstance(one, PermissionError) for one in _chain(error)):
                raise
        time.sleep(seconds)
        seconds *= 2
    raise ValueError(f"tries is {tries}; expected at least 1")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from or while handling, and the members of groups among them, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def _troubled(error: BaseException) -> bool:
    """One error of a chain, by its type, its number, or the status in its text."""
    if isinstance(error, MemoryError | TimeoutError):
        return True
    if isinstance(error, OSError):  # one without a number is a library's own word for a file that it cannot parse
        return error.errno is not None and error.errno not in _FACTS
    text = ""
    with contextlib.suppress(Exception):
        text = str(error)
    code = _CODE.search(text)
    return int(code[1]) not in _FACTS if code else _STATUS.search(text) is not None
