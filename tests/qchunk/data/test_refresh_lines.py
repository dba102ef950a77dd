"""How often the loader says that an epoch begins."""

import pytest

from qchunk.data import refresh


def test_a_line_for_the_first_epoch_and_then_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(refresh.time, "perf_counter", lambda: now[0])
    schedule = refresh.Schedule(steps_per_epoch=2, parts=1)
    refreshes, said = refresh.Refreshes(), []
    for epoch in range(71):  # one a second
        said.append(refreshes.note(schedule.place(2 * epoch), 5 + 0.1 * epoch))
        now[0] += 1.0
    assert [line for line in said if line is not None] == [
        "the first pool was waited for 5.0 s",
        "epoch 1 begins; the one before took 1.0 s, 0.100 s of it waiting for refreshes (10.00 %)",
        "epoch 31 begins; the 30 before took 30.0 s, 3.000 s of it waiting for refreshes (10.00 %)",
        "epoch 61 begins; the 30 before took 30.0 s, 3.000 s of it waiting for refreshes (10.00 %)",
    ]
