"""Paths that the user names: one that the system cannot even look at is refused by the name under which it was given.

Python's own questions (`exists`, `is_file`) answer some of the system's errors with no, and raise others.
"""

import errno
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from chunkwise.errors import DataError


def require_reachable(named: Mapping[str, str | Path | None], *, allowed: Collection[int] = (errno.ENOENT,)) -> None:
    """Looks at each path, and passes over those that are not there: whoever needs them says so in their own words.

    Args:
      named: Paths by the names that the user knows, such as a config's field; None is none.
      allowed: Numbers of the system's errors to pass over.

    Raises:
      DataError: A part of a path is a file, or too long, or may not be looked at, or links lead in a circle.
    """
    for name, path in named.items():
        if path is None:
            continue
        try:
            os.stat(path)
        except (OSError, ValueError) as error:  # the latter for a null character
            if getattr(error, "errno", None) in allowed:
                continue
            found = getattr(error, "strerror", None) or error
            raise DataError(
                f"{name} {str(path)[:300]}: expected a path that can be looked at, found: {found}"
            ) from error
