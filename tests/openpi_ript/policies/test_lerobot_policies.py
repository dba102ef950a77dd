"""Policies from end to end against LeRobot's own classes: our weights loaded there, and theirs loaded here."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from chunkwise import load_policy
from chunkwise.config.experiment import TrainConfig
from chunkwise.data.norm_stats import NormStats
from openpi_ript.config import GemmaConfig, ModelConfig, OpenpiRiptConfig, SiglipConfig
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.data.inputs import make_inputs
from openpi_ript.data.norm import affines
from openpi_ript.model.pi0 import Pi0
from openpi_ript.model.pytorch_names import TABLE, TABLE_AS_HEAD
from openpi_ript.policies.policy import Policy
from openpi_ript.weights import model_shapes, save_pytorch
from tests.openpi_ript.policies import lerobot_cases
from tests.openpi_ript.policies.lerobot_cases import ACTION, CAMERAS, CASES, KINDS, SIZES, STATE, TOKENS
from tests.openpi_ript.robots.openpi_cases import weight
from tests.openpi_ript.toy_policy import OWN

BOUND = 1e-4
"""Of the largest action. Here as in openpi the sines of the time are those of float32 angles of up to 1,570, in LeRobot
of float64's; with the same sines the two are within 7e-6."""
PARTS: dict[str, Any] = {
    "vision": SiglipConfig(**SIZES["vision"]),
    "language": GemmaConfig(**SIZES["language"]),
    "expert": GemmaConfig(**SIZES["expert"]),
}


def config_of(kind: Any) -> OpenpiRiptConfig:
    norm: Any = {"pi0": "mean_std", "pi05": "quantile"}[kind]
    model = ModelConfig(kind=kind, prompt_tokens=TOKENS[kind], dtype="float32", remat=False, **(SIZES | PARTS))
    data = DataConfig(
        path="unused",
        robot=RobotConfig(state_dim=STATE, target_state_dim=STATE, action_dim=ACTION),
        cameras={name: f"observation.images.{name}" for name in CAMERAS},
        horizon=SIZES["action_horizon"],
        image_size=(SIZES["image_size"],) * 2,
        state_norm=norm,
        action_norm=norm,
    )
    tokenizer = str(OWN / "openpi_policies.model")
    return OpenpiRiptConfig(train=TrainConfig(steps=1, batch_size=1), model=model, data=data, tokenizer=tokenizer)


def drawn(kind: str) -> dict[str, Any]:
    """The weights that LeRobot's class was given."""
    shapes = model_shapes(Pi0(config_of(kind).model))
    return traverse_util.unflatten_dict({name: weight(name, leaf.shape) for name, leaf in shapes.items()}, sep="/")


def statistics() -> dict[str, NormStats]:
    found = lerobot_cases.statistics()
    return {
        name: NormStats(**{key: np.asarray(value, np.float64) for key, value in one.items()})
        for name, one in found.items()
    }


@functools.cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(OWN / "lerobot.npz") as arrays:
        return dict(arrays)


def their_folder(kind: str, folder: Path) -> Path:
    """What LeRobot's `save_pretrained` wrote."""
    for key, content in recorded().items():
        if key.startswith(f"{kind}/theirs/files/"):
            (folder / key.rsplit("/", 1)[1]).write_bytes(content.tobytes())
    return folder


def assert_acts_as(policy: Any, expected: np.ndarray) -> None:
    for number in range(CASES):
        seen, noise = lerobot_cases.observation(number)
        got = policy.infer(seen, noise=noise)["actions"]
        atol = BOUND * np.abs(expected).max()
        np.testing.assert_allclose(got, expected[number], rtol=0, atol=atol, err_msg=f"observation {number}")


@pytest.mark.parametrize("kind", KINDS)
def test_lerobots_class_acts_with_our_weights_as_ours(kind: str, tmp_path: Path) -> None:
    """LeRobot loaded, strictly, the very tensors that are written here."""
    params, file = drawn(kind), tmp_path / "ours.safetensors"
    save_pytorch(params, file, "lerobot")
    written, theirs = load_file(file), load_file(their_folder(kind, tmp_path) / "model.safetensors")
    assert {name: x.shape for name, x in written.items()} == {name: x.shape for name, x in theirs.items()}
    assert lerobot_cases.digest(written) == recorded()[f"{kind}/ours/digest"].tobytes().decode()
    assert_acts_as(Policy(config_of(kind), params, statistics()), recorded()[f"{kind}/ours/actions"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_lerobots_acts_here_as_there(kind: str, tmp_path: Path) -> None:
    """Weights and statistics that LeRobot wrote, its table of tokens and the head that it does not tie to it."""
    folder = their_folder(kind, tmp_path)
    tensors = {name.removeprefix("model."): x for name, x in load_file(folder / "model.safetensors").items()}
    assert (tensors[TABLE] != tensors[TABLE_AS_HEAD]).any()
    assert json.loads((folder / "config.json").read_text())["type"] == kind
    assert_acts_as(load_policy(folder, config=config_of(kind)), recorded()[f"{kind}/theirs/actions"])


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_lerobots_tokens(kind: str) -> None:
    """With the state in the prompt of pi0.5, normalised by its quantiles; padded to a fixed length."""
    config = config_of(kind)
    (state, _), _ = affines(config.data, statistics())
    inputs = make_inputs(config.model, config.data.robot, CAMERAS, config.tokenizer)
    for number, expected in enumerate(recorded()[f"{kind}/tokens"]):
        seen, _ = lerobot_cases.observation(number)
        made = inputs.observation(dict.fromkeys(CAMERAS), state.apply(seen["state"])[None], [seen["prompt"]])
        np.testing.assert_array_equal(made["tokens"][0], expected)
        assert not made["token_mask"][0, -1]
