"""The waypoints that the page draws are those of evaluation and of `infer`."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from chunkwise.train import rngs
from driving.data.batches import open_data
from driving.data.recordings import DrivingRecordings
from driving.policies import chunks as chunks_lib
from driving.policies.chunks import policy_chunks
from driving.policies.policy import WaypointPolicy
from driving.tasks import waypoints
from tests.driving.drives import write_drive
from tests.driving.policies.test_policy import change, config_of

FRAMES = 12


def test_waypoints_are_those_of_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Asked in another folder than the one that the run learnt from."""
    drives = tmp_path / "drives"
    for i in range(2):
        write_drive(drives, f"drive_{i}", frames=FRAMES, dt=0.25, start_yaw=float(i), change=change)
    config = config_of(tmp_path / "gone", tmp_path / "run")
    policy = WaypointPolicy(config, waypoints.init_params(config, rngs.key(0, "init")))
    chunks = policy_chunks(policy, "mine", DrivingRecordings(drives), path=str(drives), links=())
    data = open_data(dataclasses.replace(config.data, path=str(drives)), "all")
    for episode, frame in ((0, 0), (1, 7)):
        row = episode * FRAMES + frame
        batch = data.batch(np.array([row]))
        made = chunks.chunk(episode, frame)
        np.testing.assert_array_equal(made.actions, policy.predict(waypoints.inputs(batch, 0))[0])
        valid, driven = batch["waypoint_valid"][0], batch["waypoints"][0]
        np.testing.assert_array_equal(made.recorded, driven[valid])
        apart = np.sqrt(((made.actions - driven)[valid] ** 2).sum(1)).mean()
        assert made.in_plane
        assert made.notes == (f"Mean distance from what was driven: {apart:.2f} m, over {valid.sum()} of 20 places.",)
    assert not (drives / "_split.json").exists()
    monkeypatch.setattr(
        chunks_lib, "OpenedOnce", lambda *_: SimpleNamespace(row=lambda e, f: (planned, e * FRAMES + f))
    )
    planned = dataclasses.replace(data, index=dataclasses.replace(data.index, waypoints_driven=np.zeros(2, bool)))
    listed = policy_chunks(policy, "mine", DrivingRecordings(drives), path=str(drives), links=()).chunk(0, 0)
    assert listed.notes[0].startswith("Mean distance from what the driver would have driven: ")
    last = chunks.chunk(1, 11)
    assert (len(last.recorded), last.notes) == (0, ())
    with pytest.raises(ConfigError, match="a object; expected a run of driving"):
        policy_chunks(object(), "mine", DrivingRecordings(drives), path=str(drives), links=())
