"""The chunks that the page draws are those of `infer` on what was recorded, of datasets and of rollouts."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.config.saved import flatten
from chunkwise.envs.rollout import load, save
from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.rollouts import EvalConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.data.recordings import LeRobotRecordings
from openpi_ript.model.pi0 import Pi0
from openpi_ript.policies.chunks import policy_chunks
from openpi_ript.policies.policy import Policy
from openpi_ript.ript.recordings import RolloutRecordings
from tests.openpi_ript.ript.test_ript_round import ROLLOUT
from tests.openpi_ript.small_run import make_dataset, small_config
from tests.openpi_ript.toy_policy import random_params
from tests.openpi_ript.toy_rollouts import make_rollout, point

CAMERAS = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("chunks"))


@pytest.fixture(scope="module")
def policy(root: Path) -> Policy:
    config = small_config(root, root.parent / "run")
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, advantage=None),
        env=point(cameras=CAMERAS),
        rollout=ROLLOUT,
        eval=EvalConfig(),
    )
    return Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats)


def test_in_a_dataset(root: Path, policy: Policy):
    found = LeRobotRecordings(root)
    chunks = policy_chunks(policy, "mine", found, allow_code=None)
    data = open_data(policy.config.data)
    for episode, frame in ((0, 0), (5, 3), (7, 9)):
        raw = data.raw(int(data.table.starts[episode]) + frame)
        images = {name: raw["images"][key] for name, key in policy.config.data.cameras.items()}
        seen = {"image": images, "state": raw["state"], "prompt": raw["task"]}
        made = chunks.chunk(episode, frame)
        np.testing.assert_array_equal(made.actions, policy.infer(seen, draw=(episode, frame))["actions"])
        assert made.over == "action"
        np.testing.assert_array_equal(made.recorded, raw["action"][~raw["action_is_pad"]])
    with pytest.raises(DataError, match="episode 5: expected one of its frames, found 10"):
        chunks.chunk(5, 10)
    config = policy.config
    strange = dataclasses.replace(config, data=dataclasses.replace(config.data, state_parts=("joints", "gripper")))
    other = Policy(strange, {}, data.stats)
    with pytest.raises(DataError, match=r"expected the columns \['joints', 'gripper'\], as data\.state_key"):
        policy_chunks(other, "mine", found, allow_code=None).chunk(0, 0)
    with pytest.raises(ConfigError, match="a object; expected a run of openpi_ript"):
        policy_chunks(object(), "mine", found, allow_code=None)


def test_in_rollouts(policy: Policy, tmp_path: Path):
    """As the collector shows the environment: env.state, env.cameras, the rollout's own prompt."""
    file = tmp_path / "rollouts/step_00000002-abc/state_00000-00.npz"
    save(file, dataclasses.replace(make_rollout(5), prompt="move to the blue disc"))
    (tmp_path / "config.json").write_text(json.dumps(flatten(policy.config)))
    chunks = policy_chunks(policy, "mine", RolloutRecordings(tmp_path), allow_code=None)
    rollout = load(file)
    for frame in (0, 3, 5):
        images = {name: rollout.observations[key][frame] for name, key in CAMERAS.items()}
        state = rollout.observations["position"][frame]
        seen = {"image": images, "state": state, "prompt": "move to the blue disc"}
        made = chunks.chunk(0, frame)
        np.testing.assert_array_equal(made.actions, policy.infer(seen, draw=(0, frame))["actions"])
        np.testing.assert_array_equal(made.recorded, rollout.actions[frame:])
    with pytest.raises(DataError, match="expected a frame below 6, found 6"):
        chunks.chunk(0, 6)


def test_code_that_a_run_names_is_not_imported(policy: Policy, tmp_path: Path):
    save(tmp_path / "rollouts/step_00000002-abc/state_00000-00.npz", make_rollout(5))
    env = point(cameras=CAMERAS, state_function="tests.openpi_ript.policies.no_such_module:ran")
    (tmp_path / "config.json").write_text(json.dumps(flatten(dataclasses.replace(policy.config, env=env))))
    with pytest.raises(ConfigError, match="code that a name or a folder brings is never run"):
        policy_chunks(policy, "mine", RolloutRecordings(tmp_path), allow_code=None)
