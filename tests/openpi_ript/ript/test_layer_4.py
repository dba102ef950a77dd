import numpy as np

from openpi_ript.config.model import Optimality
from openpi_ript.data.batch import StateLayout, episodes_to_batch
from openpi_ript.ript.layer_4 import layer_4
from tests.openpi_ript.toy_rollouts import make_rollout


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
