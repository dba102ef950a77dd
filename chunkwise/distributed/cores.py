"""The cores that a process may use, which are fewer than the machine's where it is pinned or contained."""

import os


def cores() -> list[int]:
    """Returns the numbers of the cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
