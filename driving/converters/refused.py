"""The error of a place in a source that cannot be read, which becomes one line of the report."""

from chunkwise.data.problems import Problem
from chunkwise.errors import DataError


class Refused(DataError):
    """Something in a source is bad."""

    def __init__(self, where: str, key: str, expected: str, found: str) -> None:
        """Names the place: file and record or row, and what in it."""
        self.problem = Problem(file=where, key=key, expected=expected, found=found)
        super().__init__(str(self.problem))
