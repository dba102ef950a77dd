"""Whose turn it is: which rollout a worker gets, and how long a batch of inference waits for more environments."""

import math
from collections.abc import Collection, Hashable, Sequence

MEETING = 3.0
"""Inferences that the first of a batch waits at most for others. Within one, two environments of reach-v3 seldom came
together, with a policy that keeps both cores busy: 8 to 9 inferences for the ten chunks of a rollout; within three 6 to
7."""
SLACK = 0.25
"""Of the time of an answer, or of an inference where that is longer: when the next one is late by more, it is no longer
expected."""


def next_of(starts: Sequence[Hashable], last: Hashable, playing: Collection[Hashable]) -> int:
    """Returns the place in a queue of rollouts of the one that a worker gets.

    The first from the same start as its last one, which its environment may have kept; else the first from a start that
    no other worker plays; else the first.

    Args:
      starts: Of the queue; at least one.
      last: Start of the worker's last rollout; None before its first.
      playing: Starts that the others play.
    """
    if last in starts:
        return starts.index(last)
    return next((i for i, start in enumerate(starts) if start not in playing), 0)


def waits_until(
    now: float,
    since: float,
    ready: Sequence[float],
    room: int,
    expected: Sequence[tuple[float, float, float]],
    inference: float,
) -> float:
    """Returns when a batch goes that waits for others as long as they gain more by it than it loses; now, if for none.

    One that comes while the batch is inferred waits to its end; so of more, expected within t, each gains
    inference - t, and each of the ready loses t. A second is worth the chunks that an environment plays in one, each
    in its own time and an inference: what is fast seldom waits for what is slow. Two that are alone stay together once
    they are, so that t is no more than how much longer one of them takes. Among more the batches mix them anew.

    Args:
      now: By the clock, as all times.
      since: When the first of the ready began to wait; those due after MEETING inferences from then do not count.
      ready: Of each that waits how many seconds a chunk takes it, 0 if that is unknown; the first's first.
      room: How many more the batch takes.
      expected: Of each that is awaited when it was asked, how many seconds what it was asked took it before, infinite
        if that is unknown, and how many a chunk takes it.
      inference: Seconds of one.
    """
    until, most, gaining, limit = now, 0.0, 0.0, since + MEETING * inference
    losing = sum(1 / (chunk + inference) for chunk in ready)
    pair = len(ready) == len(expected) == 1
    for due, its, chunk in sorted((at + its, its, chunk) for at, its, chunk in expected):
        slack = SLACK * max(its, inference)
        if due + slack <= now or not due <= limit < math.inf:  # it hangs, or comes too late
            continue
        if not room:
            break
        room -= 1
        gaining += 1 / (chunk + inference)
        away = max(due - now, 0.0)
        if pair:
            away = min(away, max(abs(its - ready[0]), abs(chunk - ready[0])))
        if (gained := gaining * (inference - away) - losing * away) > most:
            most, until = gained, min(due + slack, limit)
    return until
