"""What is trouble and what is damage, and how often one tries again."""

import errno
import itertools
import os
from collections.abc import Callable
from unittest import mock

import pytest

from chunkwise.files.trouble import is_trouble, retried, root_cause


def _raised(*chain: BaseException) -> BaseException:
    """The last of errors that were each raised from the one before."""
    for cause, error in itertools.pairwise(chain):
        error.__cause__ = cause
    return chain[-1]


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (OSError(errno.EIO, "device"), True),
        (PermissionError(errno.EACCES, "no"), True),
        (OSError(errno.EMFILE, "files"), True),
        (OSError(errno.ESTALE, "nfs"), True),
        (OSError(errno.ENOSPC, "full"), True),
        (MemoryError(), True),
        (TimeoutError(), True),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (NotADirectoryError(errno.ENOTDIR, "a file"), False),
        (OSError("file signature not found"), False),
        (ValueError("checksum of w does not match"), False),
        (ValueError("RESOURCE_EXHAUSTED: out of memory"), True),
        (ValueError("NOT_FOUND: Error opening x [os_error_code='2']"), False),
        (ValueError("UNKNOWN: Error reading x [os_error_code='5']"), True),
        (ValueError("PERMISSION_DENIED: x [os_error_code='13']"), True),
        (_raised(OSError(errno.EIO, "device"), ValueError("no metadata"), RuntimeError("could not load")), True),
        (_raised(FileNotFoundError(errno.ENOENT, "gone"), ValueError("no metadata")), False),
        (ExceptionGroup("tasks", [ValueError("x"), OSError(errno.EIO, "device")]), True),
    ],
)
def test_trouble_is_found_anywhere_in_the_chain_and_facts_are_none(error: BaseException, trouble: bool):
    """Kills: only the last or the first error looked at; ENOENT taken for trouble; text or number not looked at."""
    assert is_trouble(error) == trouble


def test_an_error_that_was_being_handled_counts():
    """Kills: `__context__` not followed."""

    def careless() -> None:
        try:
            raise OSError(errno.EIO, "device")
        except OSError:
            raise ValueError("no metadata")  # noqa: B904  (what such a library does)

    with pytest.raises(ValueError, match="no metadata") as found:
        careless()
    assert is_trouble(found.value)


def _failing(times: int, error: BaseException) -> Callable[[], str]:
    left = [error] * times

    def act() -> str:
        if left:
            raise left.pop()
        return "read"

    return act


def test_trouble_is_tried_again_with_longer_waits():
    """Kills: no second try; a wait that does not grow."""
    with mock.patch("time.sleep") as sleep:
        assert retried(_failing(3, OSError(errno.EIO, "device")), seconds=0.25) == "read"
        assert [call.args[0] for call in sleep.call_args_list] == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("times", "error", "waits"),
    [
        (4, OSError(errno.EIO, "device"), 3),
        (1, PermissionError(errno.EACCES, "no"), 0),
        (1, ValueError("does not parse"), 0),
    ],
)
def test_what_does_not_pass_is_raised(times: int, error: Exception, waits: int):
    """Kills: one try too many; access or damage tried again; the error dropped."""
    with mock.patch("time.sleep") as sleep, pytest.raises(type(error)):
        retried(_failing(times, error))
    assert sleep.call_count == waits


def test_the_root_cause_is_one_line_with_the_systems_words():
    error = _raised(ValueError("x" * 200 + "[os_error_code='28']" + "y" * 200 + "\nmore"), RuntimeError("save failed"))
    text = root_cause(error)
    assert text.startswith("ValueError: xxx")
    assert text.endswith(os.strerror(28))
    assert "\n" not in text
