"""What is shown of texts that others chose: names of files, cameras and tasks, what a library says of a file.

A line break in the name of a file would forge a line of a report, and an escape sequence turns the colours of a
terminal, or hides what was printed before it.
"""

import sys


def printable(text: str) -> str:
    """A text as one line: what is not printable, line breaks included, is escaped as Python writes it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(line: str, *, error: bool = False) -> None:
    """Prints one line, whatever it holds.

    Args:
      line: Escaped by `printable`.
      error: To the standard error.
    """
    # One write, line break included: print() writes that on its own, and lines of two threads would run together.
    print(f"{printable(line)}\n", end="", file=sys.stderr if error else sys.stdout, flush=True)
