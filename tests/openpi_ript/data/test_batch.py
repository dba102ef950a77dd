"""openpi_ript/data/batch.py: layers 3 and 4 both ways, and the documents' exact dicts."""

from typing import Any, cast

import numpy as np
import pytest

from chunkwise.errors import DataError
from openpi_ript.data.batch import (
    StateLayout,
    TrainingBatch,
    batch_to_episodes,
    document_batch,
    document_sample,
    episodes_to_batch,
    from_document_batch,
    from_document_sample,
    to_training_batch,
)
from openpi_ript.data.transforms import RiptSample

HORIZON = 50


def sample(seed: int = 0, **changes: Any) -> RiptSample:
    rng = np.random.default_rng(seed)
    state = np.zeros(14, np.float32)
    state[:9] = rng.normal(size=9)
    cameras = ("base_0_rgb", "left_wrist_0_rgb")
    values = {
        "image": {name: rng.integers(0, 256, (224, 224, 3)).astype(np.uint8) for name in cameras},
        "state": state,
        "action": rng.normal(size=(HORIZON, 7)).astype(np.float32),
        "action_is_pad": np.arange(HORIZON) >= 40 + seed,
        "prompt": f"task {seed}",
        "episode": seed,
        "advantages": np.full(HORIZON, 0.5 + seed, np.float32),
        "init_hash": "00ff",
        "optimality": seed,
        "rollout_success": True,
        "rollout_reward": 1.0,
        "episode_length": 70,
    }
    return cast(RiptSample, values | changes)


def batch() -> TrainingBatch:
    return to_training_batch([sample(seed) for seed in range(3)])


def assert_equal(found: Any, wanted: Any) -> None:
    for name in wanted["image"]:
        np.testing.assert_array_equal(found["image"][name], wanted["image"][name])
    for key in wanted.keys() - {"image"}:
        np.testing.assert_array_equal(found[key], wanted[key])
        if key != "prompt":
            assert found[key].dtype == wanted[key].dtype


def test_samples_become_a_batch_with_one_advantage_each() -> None:
    found = batch()
    assert found["image"]["base_0_rgb"].shape == (3, 224, 224, 3)
    np.testing.assert_array_equal(found["image"]["left_wrist_0_rgb"][1], sample(1)["image"]["left_wrist_0_rgb"])
    np.testing.assert_array_equal(found["advantages"], np.array([0.5, 1.5, 2.5], np.float32))
    assert found["optimality"].tolist() == [0, 1, 2]
    assert found["prompt"] == ["task 0", "task 1", "task 2"]
    assert found["action_is_pad"].sum(1).tolist() == [10, 9, 8]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": np.zeros(13, np.float32)}, r"sample 1, state: expected float32 of shape \(14,\), found .*\(13,\)"),
        ({"action": np.zeros((HORIZON, 7))}, "sample 1, action: expected float32 .* found float64"),
        ({"action_is_pad": np.zeros(HORIZON, np.float32)}, "action_is_pad: expected bool"),
        ({"image": {"base_0_rgb": np.zeros((4, 4, 3), np.float32)}}, r"expected uint8 in 0\.\.255, found float32"),
        ({"image": {"base_0_rgb": np.zeros((4, 4, 3), np.uint8)}}, "expected the cameras and sizes of sample 0"),
        ({"advantages": np.full(HORIZON, np.nan)}, "advantages: expected one finite number repeated"),
        ({"advantages": np.arange(HORIZON, dtype=np.float32)}, "expected one finite number repeated"),
    ],
)
def test_samples_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        to_training_batch([sample(0), sample(1, **changes)])


def test_a_processed_advantage_is_no_label() -> None:
    without = cast(RiptSample, {key: value for key, value in sample().items() if key != "optimality"})
    with pytest.raises(DataError, match="sample 0: expected optimality, the label by the raw advantage"):
        to_training_batch([without])


def test_documents_have_the_specifications_keys_shapes_and_types() -> None:
    document = document_sample(sample())
    extension = {"advantages", "init_hash", "rollout_success", "rollout_reward", "episode_length"}
    assert set(document) == {"image", "state", "action", "action_is_pad", "prompt"} | extension
    assert set(document["image"]) == {"base_0_rgb", "left_wrist_0_rgb"}
    image = document["image"]["base_0_rgb"]
    assert (image.shape, image.dtype, image.flags["C_CONTIGUOUS"]) == ((3, 224, 224), np.dtype("uint8"), True)
    np.testing.assert_array_equal(image[2], sample()["image"]["base_0_rgb"][..., 2])
    assert (document["state"].dtype, document["action"].shape) == (np.dtype("float32"), (50, 7))
    assert (document["advantages"].shape, document["advantages"].dtype) == ((50,), np.dtype("float32"))
    layer1 = {key: value for key, value in sample().items() if key not in extension}
    assert set(document_sample(cast(Any, layer1))) == {"image", "state", "action", "action_is_pad", "prompt"}
    whole = document_batch(batch())
    assert set(whole) == {"image", "state", "action", "action_is_pad", "prompt", "advantages"}
    assert whole["image"]["left_wrist_0_rgb"].shape == (3, 3, 224, 224)
    assert (whole["advantages"].shape, whole["prompt"]) == ((3,), ["task 0", "task 1", "task 2"])


def test_documents_come_back() -> None:
    assert_equal(
        to_training_batch([from_document_sample(document_sample(sample(s)), optimality=s) for s in range(3)]),
        batch(),
    )
    assert_equal(from_document_batch(document_batch(batch()), optimality=batch()["optimality"]), batch())
    document = document_batch(batch())
    document["image"]["base_0_rgb"] = document["image"]["base_0_rgb"].astype(np.float32) / 255
    with pytest.raises(DataError, match=r"base_0_rgb: expected uint8.*multiply floats in 0\.\.1 by 255"):
        from_document_batch(document, optimality=batch()["optimality"])


BAD_DOCUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"action": np.zeros((3, HORIZON, 7))}, "sample 0, action: expected float32 of shape .* found float64"),
    ({"action": np.full((3, HORIZON, 7), np.nan, np.float32)}, "action: expected finite numbers, found NaN or Inf"),
    ({"image": np.zeros((3, 3, 224, 224), np.uint8)}, "document, image: expected at least one image by its name"),
    ({"state": np.array(1.0)}, "expected 3 rows as there are labels, .*'state': None"),
    ({"prompt": "abc"}, "document, prompt: expected a list of texts, found str"),
    ({"advantages": 0.5}, r"document, advantages: expected \[b\], found shape \(\)"),
    ({"advantages": np.zeros((3, HORIZON))}, r"document, advantages: expected \[b\], found shape \(3, 50\)"),
    ({"state": np.zeros((2, 14), np.float32)}, "expected 3 rows as there are labels, .*'state': 2"),
    ({"advantages": np.array([0, np.inf, 0], np.float32)}, "advantages: expected one finite number repeated"),
    ({"image": {"base_0_rgb": np.zeros((3, 224, 224, 3), np.uint8)}}, r"base_0_rgb: expected \[height, width, 3\]"),
    ({"image": {"base_0_rgb": np.zeros((3, 224), np.uint8)}}, r"base_0_rgb: expected \[3, height, width\]"),
]


@pytest.mark.parametrize(("changes", "words"), BAD_DOCUMENTS)
def test_documents_that_are_none_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_document_batch({**document_batch(batch()), **changes}, optimality=batch()["optimality"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action_is_pad": np.zeros(40, bool)}, r"action_is_pad: expected one for each of the 50 actions, found .*40"),
        ({"advantages": np.zeros(3, np.float32)}, r"advantages: expected one for each of the 50 actions, found .*3"),
        ({"advantages": np.float32(1)}, r"advantages: expected one for each of the 50 actions, found shape \(\)"),
        (
            {"state": np.zeros((1, 14), np.float32)},
            r"expected a state \[s\] and .*, found shapes \(1, 14\) and \(50, 7\)",
        ),
        ({"action": np.zeros(7, np.float32)}, r"a chunk of actions \[t, a\], found shapes \(14,\) and \(7,\)"),
        ({"prompt": None}, "prompt: expected text, found NoneType"),
        ({"prompt": b"task"}, "prompt: expected text, found bytes"),
        ({"image": np.zeros((3, 4, 4), np.uint8)}, "document, image: expected at least one image by its name"),
        ({"image": {}}, "document, image: expected at least one image by its name, found {}"),
        (
            {"action": np.zeros((0, 7), np.float32), "action_is_pad": np.zeros(0, bool)},
            r"found shapes \(14,\) and \(0, 7\)",
        ),
        ({"state": [[1.0], [1.0, 2.0]]}, "document, state: expected an array, found setting an array element"),
    ],
)
def test_a_sample_whose_entries_do_not_fit_one_another_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_document_sample({**document_sample(sample()), **changes}, optimality=1)


def test_labels_that_do_not_exist_and_batches_of_nothing_are_refused() -> None:
    with pytest.raises(DataError, match=r"optimality: expected 0 \(negative\), 1 \(positive\), 2 \(none\), found 7"):
        from_document_sample(document_sample(sample()), optimality=7)
    with pytest.raises(DataError, match=r"optimality: expected 0 .*, found \[0 1\]"):
        from_document_sample(document_sample(sample()), optimality=np.array([0, 1]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="expected at least one sample, found none"):
        to_training_batch([])


def test_what_a_document_lacks_is_named() -> None:
    document = document_batch(batch())
    del document["action_is_pad"]
    with pytest.raises(DataError, match=r"document: expected the entries \['action_is_pad'\], found \['action',"):
        from_document_batch(document, optimality=batch()["optimality"])
    with pytest.raises(DataError, match=r"expected the entries \['advantages'\]"):
        from_document_sample({k: v for k, v in document_sample(sample()).items() if k != "advantages"}, optimality=0)


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("robot0_eef_pos", np.zeros(2, np.float32), "episode 0, observation, robot0_eef_pos: expected 3 numbers"),
        ("robot0_eef_quat", [0.0, 0.0, np.nan, 1.0], "sample 0, state: expected finite numbers"),
        ("agentview_image", np.zeros((8, 8, 3)), "base_0_rgb: expected uint8"),
        ("agentview_image", None, r"episode 0, observation: expected the entries \['agentview_image'\], found"),
    ],
)
def test_bad_observations_of_layer_4_are_named(entry: str, value: Any, words: str) -> None:
    episode: Any = batch_to_episodes(batch(), StateLayout())[0]
    episode["observations"][0] |= {entry: value}
    if value is None:
        del episode["observations"][0][entry]
    with pytest.raises(DataError, match=words):
        episodes_to_batch([episode], StateLayout(), state_dim=14, horizon=HORIZON)
    with pytest.raises(DataError, match=r"episode 0: expected the entries \['observations'"):
        episodes_to_batch([{}], StateLayout(), state_dim=14, horizon=HORIZON)


def test_layer_4_has_the_specifications_keys_shapes_and_types() -> None:
    episode = batch_to_episodes(batch(), StateLayout())[1]
    assert set(episode) == {"observations", "actions", "action_is_pad", "task", "success", "total_reward", "optimality"}
    observation = episode["observations"][0]
    assert observation["agentview_image"].shape == (224, 224, 3)
    assert observation["robot0_eye_in_hand_image"].dtype == np.uint8
    state = sample(1)["state"]
    np.testing.assert_array_equal(observation["robot0_eef_pos"], state[:3])
    assert observation["robot0_eef_quat"] == state[3:7].tolist()
    np.testing.assert_array_equal(observation["robot0_gripper_qpos"], state[7:9])
    assert (episode["actions"][0].shape, episode["actions"][0].dtype) == ((50, 7), np.dtype("float32"))
    assert (episode["task"], episode["success"], episode["total_reward"]) == ("task 1", True, 1.5)
    flat = batch_to_episodes(batch(), StateLayout(eef_quat=None, gripper_qpos=(3, 5)))[1]["observations"][0]
    assert flat["robot0_eef_quat"] == [0.0, 0.0, 0.0, 1.0]
    np.testing.assert_array_equal(flat["robot0_gripper_qpos"], state[3:5])


def test_layer_4_goes_both_ways_and_keeps_the_padding() -> None:
    episodes = batch_to_episodes(batch(), StateLayout())
    assert_equal(episodes_to_batch(episodes, StateLayout(), state_dim=14, horizon=HORIZON), batch())


def test_rows_share_no_memory_with_the_batch() -> None:
    source = batch()
    episode = batch_to_episodes(source, StateLayout())[0]
    episode["actions"][0][:] = 0
    episode["observations"][0]["agentview_image"][:] = 0
    episode["observations"][0]["robot0_eef_pos"][:] = 0
    assert_equal(source, batch())


def test_every_window_uses_its_own_observation() -> None:
    parts = batch_to_episodes(batch(), StateLayout())
    merged: dict[str, Any] = {**parts[0]}
    for key in ("observations", "actions", "action_is_pad"):
        merged[key] = [value for part in parts for value in part[key]]  # one episode of three windows
    found = episodes_to_batch([merged], StateLayout(), state_dim=14, horizon=HORIZON)
    np.testing.assert_array_equal(found["state"], batch()["state"])
    np.testing.assert_array_equal(found["image"]["base_0_rgb"], batch()["image"]["base_0_rgb"])
    merged["observations"] = merged["observations"][:1]
    with pytest.raises(DataError, match=r"episode 0: expected an observation for each chunk.*1 for 3"):
        episodes_to_batch([merged], StateLayout(), state_dim=14, horizon=HORIZON)


def test_a_short_chunk_is_padded_and_marked() -> None:
    episode: dict[str, Any] = {**batch_to_episodes(batch(), StateLayout())[0]}
    del episode["action_is_pad"]
    episode["actions"] = [episode["actions"][0][:3]]
    found = episodes_to_batch([episode], StateLayout(), state_dim=14, horizon=5)
    assert found["action_is_pad"].tolist() == [[False, False, False, True, True]]
    np.testing.assert_array_equal(found["action"][0, 2:], np.repeat(episode["actions"][0][2:], 3, 0))
    with pytest.raises(DataError, match="chunks of 1 to 2 actions, found 3"):
        episodes_to_batch([episode], StateLayout(), state_dim=14, horizon=2)


def test_what_layer_4_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match="a state of at least 20 values"):
        batch_to_episodes(batch(), StateLayout(gripper_qpos=(18, 20)))
    with pytest.raises(
        DataError, match=r"expected images \['base_0_rgb', 'left_wrist_0_rgb'\], found \['base_0_rgb'\]"
    ):
        batch_to_episodes(
            cast(Any, {**batch(), "image": {"base_0_rgb": batch()["image"]["base_0_rgb"]}}), StateLayout()
        )
