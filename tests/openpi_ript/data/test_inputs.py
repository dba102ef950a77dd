import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from chunkwise.errors import ConfigError, DataError
from openpi_ript.config.data import RobotConfig
from openpi_ript.config.model import toy
from openpi_ript.data.batch import TrainingBatch
from openpi_ript.data.inputs import ToModel, make_inputs, pad_last
from openpi_ript.data.tokenizer import PromptTokenizer
from tests.openpi_ript.small_run import make_dataset, other_tokenizer

ROBOT = RobotConfig(state_dim=3, target_state_dim=4, action_dim=2)
CAMERAS = ("left_wrist_0_rgb", "base_0_rgb")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_dataset(tmp_path_factory.mktemp("inputs")) / "tokenizer.model")


def inputs(
    tokenizer: str, kind: Literal["pi0", "pi05"] = "pi0", robot: RobotConfig = ROBOT, cameras=CAMERAS
) -> ToModel:
    return make_inputs(toy(kind), robot, cameras, tokenizer)


def make_batch(rows: int = 2, steps: int = 8, size: int = 28) -> TrainingBatch:
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (rows, size, size, 3)).astype(np.uint8) for name in CAMERAS}
    state = np.pad(rng.normal(size=(rows, 3)), ((0, 0), (0, 1))).astype(np.float32)
    return {
        "image": images,
        "state": state,
        "action": rng.normal(size=(rows, steps, 2)).astype(np.float32),
        "action_is_pad": np.arange(steps)[None] >= np.array([[5], [8]]),
        "prompt": ["move to the red disc", "move to the blue disc"][:rows],
        "advantages": np.array([0.5, 1.5], np.float32)[:rows],
        "optimality": np.array([0, 1], np.int32)[:rows],
    }


def test_widths_are_padded_with_zeros_and_cameras_sorted(tokenizer: str):
    batch = make_batch()
    got = inputs(tokenizer)(batch)
    assert got["actions"].shape == (2, 8, 8)
    np.testing.assert_array_equal(got["actions"][..., :2], batch["action"])
    assert not got["actions"][..., 2:].any()
    seen = got["observation"]
    np.testing.assert_array_equal(seen["state"][:, :4], batch["state"])
    assert not seen["state"][:, 4:].any()
    np.testing.assert_array_equal(seen["images"][:, 0], batch["image"]["base_0_rgb"])
    np.testing.assert_array_equal(seen["images"][:, 1], batch["image"]["left_wrist_0_rgb"])
    assert seen["images"].dtype == np.uint8
    assert seen["image_mask"].tolist() == [[True, True]] * 2
    for key in ("action_is_pad", "optimality", "advantages"):
        np.testing.assert_array_equal(got[key], batch[key])


def test_pi0_reads_the_prompt_alone(tokenizer: str):
    batch = make_batch()
    seen = inputs(tokenizer)(batch)["observation"]
    expected = PromptTokenizer(tokenizer, toy("pi0").prompt_tokens).encode_batch(batch["prompt"])
    np.testing.assert_array_equal(seen["tokens"], expected[0])
    np.testing.assert_array_equal(seen["token_mask"], expected[1])


def test_pi05_without_the_state_in_its_prompt_reads_pi0s(tokenizer: str):
    batch, model = make_batch(), dataclasses.replace(toy("pi05"), state_in_prompt=False)
    seen = make_inputs(model, ROBOT, CAMERAS, tokenizer)(batch)["observation"]
    expected = PromptTokenizer(tokenizer, model.prompt_tokens).encode_batch(batch["prompt"])
    np.testing.assert_array_equal(seen["tokens"], expected[0])
    said = make_inputs(dataclasses.replace(model, state_in_prompt=True), ROBOT, CAMERAS, tokenizer)(batch)
    silent = make_inputs(toy("pi05"), ROBOT, CAMERAS, tokenizer)(batch)
    np.testing.assert_array_equal(said["observation"]["tokens"], silent["observation"]["tokens"])
    for value in (True, False):
        with pytest.raises(ValueError, match=f"state_in_prompt is {value} and model.kind pi0, which reads the state"):
            dataclasses.replace(toy("pi0"), state_in_prompt=value)


@pytest.mark.parametrize(("target", "kept"), [(4, 3), (2, 2)])
def test_pi05_reads_the_robots_own_state_without_the_padding(tokenizer: str, target: int, kept: int):
    batch = make_batch()
    robot = dataclasses.replace(ROBOT, target_state_dim=target)
    batch["state"] = batch["state"][:, :target]
    seen = inputs(tokenizer, "pi05", robot)(batch)["observation"]
    pieces = PromptTokenizer(tokenizer, toy("pi05").prompt_tokens)
    expected = pieces.encode_batch(batch["prompt"], batch["state"][:, :kept])
    np.testing.assert_array_equal(seen["tokens"], expected[0])


def test_a_camera_that_is_off_is_black_and_masked(tokenizer: str):
    batch = make_batch()
    images = {"base_0_rgb": None, "left_wrist_0_rgb": batch["image"]["left_wrist_0_rgb"]}
    seen = inputs(tokenizer).observation(images, batch["state"], batch["prompt"])
    assert not seen["images"][:, 0].any()
    assert seen["image_mask"].tolist() == [[False, True]] * 2


def test_a_dataset_without_images_gives_one_masked_image(tokenizer: str):
    batch = make_batch() | {"image": {}}
    seen = inputs(tokenizer, cameras=())(batch)["observation"]  # pyright: ignore[reportArgumentType]
    assert seen["images"].shape == (2, 1, 28, 28, 3)
    assert seen["image_mask"].tolist() == [[False], [False]]


def test_what_does_not_fit_is_refused(tokenizer: str, tmp_path: Path):
    transform = inputs(tokenizer)
    with pytest.raises(DataError, match=r"chunks of 8 steps as model\.action_horizon says, found 5"):
        transform(make_batch(steps=5))
    with pytest.raises(DataError, match=r"image base_0_rgb: expected uint8 \[2, 28, 28, 3\], found uint8 \[2, 14"):
        transform(make_batch(size=14))
    other = make_batch()
    other["image"] = {"top": other["image"]["base_0_rgb"]}
    with pytest.raises(DataError, match=r"expected the cameras \['base_0_rgb', 'left_wrist_0_rgb'\], found \['top'\]"):
        transform(other)
    big = tmp_path / "tokenizer.model"
    big.write_bytes(other_tokenizer(300))
    small = dataclasses.replace(toy("pi0"), vocab_size=100)
    with pytest.raises(ConfigError, match=r"pieces and model\.vocab_size is 100"):
        make_inputs(small, ROBOT, CAMERAS, str(big))
    pieces = PromptTokenizer(str(big), 8).vocab_size
    exact = dataclasses.replace(toy("pi0"), vocab_size=pieces)
    assert make_inputs(exact, ROBOT, CAMERAS, str(big)).tokenizer.vocab_size == pieces
    with pytest.raises(ConfigError, match=rf"it has {pieces} pieces"):
        make_inputs(dataclasses.replace(exact, vocab_size=pieces - 1), ROBOT, CAMERAS, str(big))


def test_pad_last_leaves_what_is_wide_enough():
    x = np.ones((2, 3), np.float32)
    assert pad_last(x, 3) is x
    assert pad_last(x, 5).tolist() == [[1, 1, 1, 0, 0]] * 2
