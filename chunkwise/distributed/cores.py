"""The cores that a process may use, which are fewer than the machine's where it is pinned or contained."""

import os


def cores() -> list[int]:
    """Returns the numbers of the cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def shares_of(workers: int) -> list[set[int]]:
    """Returns the cores of this process for each worker, as many for all, since a digest depends on their number.

    With more workers than cores they share them.
    """
    usable = cores()
    if workers > len(usable):
        return [set(usable)] * workers
    each = len(usable) // workers
    return [set(usable[i * each : (i + 1) * each]) for i in range(workers)]
