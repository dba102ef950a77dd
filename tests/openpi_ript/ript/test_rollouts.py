from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import DataError
from openpi_ript.config.experiment import Optimality
from openpi_ript.data.batch import StateLayout, episodes_to_batch
from openpi_ript.ript.rollouts import layer_4, load, save
from tests.openpi_ript.toy_rollouts import make_rollout


def test_a_file_gives_the_rollout_back_and_its_bytes_do_not_depend_on_the_clock(tmp_path: Path):
    rollout = make_rollout()
    save(tmp_path / "a/x.npz", rollout)
    save(tmp_path / "b/x.npz", rollout)
    found = load(tmp_path / "a/x.npz")
    assert {k: v for k, v in vars(found).items() if not isinstance(v, np.ndarray | dict)} == {
        k: v for k, v in vars(rollout).items() if not isinstance(v, np.ndarray | dict)
    }
    np.testing.assert_array_equal(found.actions, rollout.actions)
    for name, value in rollout.observations.items():
        np.testing.assert_array_equal(found.observations[name], value)
        assert found.observations[name].dtype == value.dtype
    assert (tmp_path / "a/x.npz").read_bytes() == (tmp_path / "b/x.npz").read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.npz"]


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "pickled", "short"])
def test_a_bad_file_is_refused_by_name(tmp_path: Path, damage: str):
    path = tmp_path / "x.npz"
    save(path, make_rollout())
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif damage == "pickled":
        np.savez(path, facts=np.array([{"seed": 1}], dtype=object))
    else:
        arrays = dict(np.load(path))
        arrays["actions"] = arrays["actions"][:-1]
        np.savez(path, **arrays)
    with pytest.raises(DataError, match=str(path)):
        load(path)


def test_layer_4_has_a_window_at_every_frame_with_its_own_observation():
    rollout = make_rollout(5)
    episode = layer_4(rollout, horizon=3, advantage=0.5, optimality=Optimality.POSITIVE, image_size=(12, 12))
    assert len(episode["observations"]) == len(episode["actions"]) == 5
    np.testing.assert_array_equal(episode["actions"][3], rollout.actions[[3, 4, 4]])
    assert [pad.tolist() for pad in episode["action_is_pad"]] == [[False] * 3] * 3 + [
        [False, False, True],
        [False, True, True],
    ]
    np.testing.assert_array_equal(
        episode["observations"][2]["agentview_image"], rollout.observations["agentview_image"][2]
    )
    batch = episodes_to_batch([episode], StateLayout(), state_dim=9, horizon=3)
    np.testing.assert_array_equal(batch["state"][4, :3], rollout.observations["robot0_eef_pos"][4])
    np.testing.assert_array_equal(batch["state"][4, 3:7], rollout.observations["robot0_eef_quat"][4])
    np.testing.assert_array_equal(batch["action_is_pad"][4], [False, True, True])
    assert batch["optimality"].tolist() == [Optimality.POSITIVE] * 5
    assert batch["advantages"].tolist() == [0.5] * 5
