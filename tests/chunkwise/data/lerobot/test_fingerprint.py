"""FrameTable.fingerprint: by which statistics, packs and runs know the dataset that they belong to."""

import dataclasses
from typing import Any

import numpy as np

from chunkwise.data.lerobot.tables import FrameTable

KEYS = ("observation.state", "action", "next.success")


def test_a_fingerprint_is_of_what_training_sees_in_whatever_order_it_was_listed() -> None:
    table = FrameTable(
        fps=10.0,
        lengths=np.array([4, 2, 3]),
        episodes=np.arange(3),
        columns={key: np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32) for key in KEYS},
        tasks={0: "go", 1: "stop", 2: "turn"},
    )
    expected = table.fingerprint(KEYS)
    relisted = dataclasses.replace(table, tasks={n: table.tasks[n] for n in sorted(table.tasks, reverse=True)})
    assert list(relisted.tasks) != list(table.tasks)
    assert relisted.fingerprint(KEYS) == expected
    unread = dataclasses.replace(table, columns={**table.columns, "other": np.zeros(table.frames)})
    assert unread.fingerprint(KEYS) == expected
    state, index = table.columns["observation.state"], {n: (n + 1) % 3 for n in table.tasks}
    moved = state.copy()
    moved[-1, -1] = np.nextafter(moved[-1, -1], np.float32(np.inf))
    changes: list[dict[str, Any]] = [
        {"tasks": {n: table.tasks[other] for n, other in index.items()}},
        {"tasks": {n + 1: task for n, task in table.tasks.items()}},
        {"lengths": table.lengths[::-1]},
        {"columns": {**table.columns, "observation.state": moved}},
        {"columns": {**table.columns, "observation.state": state.astype(np.float64)}},
        {"columns": {**table.columns, "observation.state": state.reshape(len(state), -1, 1)}},
    ]
    prints = [expected, *(dataclasses.replace(table, **change).fingerprint(KEYS) for change in changes)]
    prints += [table.fingerprint(KEYS[:2]), table.fingerprint(KEYS[::-1])]
    assert len(set(prints)) == len(prints)
