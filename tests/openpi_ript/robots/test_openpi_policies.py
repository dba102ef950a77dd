"""Policies from end to end against openpi's own `Policy.infer`: client's observation in, the robot's actions out."""

import dataclasses

import numpy as np
import pytest
from flax import traverse_util

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.data.norm_stats import NormStats
from openpi_ript import config as configs
from openpi_ript.config import DataConfig, GemmaConfig, ModelConfig, OpenpiRiptConfig, RobotConfig, SiglipConfig
from openpi_ript.data import norm
from openpi_ript.data.inputs import ToModel, make_inputs, pad_last
from openpi_ript.data.tokenizer import PromptTokenizer
from openpi_ript.data.transforms import RawSample, ToOpenPi
from openpi_ript.model.pi0 import Pi0
from openpi_ript.policies.policy import Policy
from openpi_ript.robots.adapter import find_adapter
from openpi_ript.weights import model_shapes
from tests.openpi_ript.robots import openpi_cases
from tests.openpi_ript.robots.openpi_cases import CASES, POLICIES, SAMPLES, SIZES, Case
from tests.openpi_ript.toy_policy import OWN

TOKENIZER = OWN / "openpi_policies.model"
CAMERAS = {name: name for name in ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")}
EXTRA_DELTA = dataclasses.replace(configs.LIBERO, relative_dims=(0, 1, 2, 3, 4, 5))
ROBOTS: dict[str, RobotConfig] = {
    "pi0_aloha": configs.ALOHA,
    "pi05_aloha": configs.ALOHA,
    "pi0_aloha_sim": dataclasses.replace(configs.ALOHA, relative_dims=()),
    "pi0_droid": configs.DROID,
    "pi05_droid": configs.DROID,
    "pi05_full_droid_finetune": configs.DROID_POSITION,
    "pi0_libero": EXTRA_DELTA,
    "pi05_libero": configs.LIBERO,
}
"""What docs/openpi_ript.md says of each config of openpi."""


def config_of(case: Case) -> OpenpiRiptConfig:
    """The run's config that stands for openpi's, with small sizes."""
    tokens = configs.PROMPT_TOKENS[case.kind]
    norm = "mean_std" if case.kind == "pi0" else "quantile"
    model = ModelConfig(
        kind=case.kind,
        vision=SiglipConfig(**SIZES["vision"]),
        language=GemmaConfig(**SIZES["language"]),
        expert=GemmaConfig(**SIZES["expert"]),
        vocab_size=PromptTokenizer(TOKENIZER, tokens).vocab_size,
        prompt_tokens=tokens,
        state_in_prompt=False if case.name == "pi05_libero" else None,
        dtype="float32",
        remat=False,
        **{name: SIZES[name] for name in ("image_size", "action_dim", "action_horizon")},
    )
    data = DataConfig(
        path="unused",
        robot=ROBOTS[case.name],
        cameras=CAMERAS,
        horizon=SIZES["action_horizon"],
        image_size=(SIZES["image_size"],) * 2,
        state_norm=norm,
        action_norm=norm,
        default_prompt=case.default_prompt,
    )
    return OpenpiRiptConfig(
        run=RunConfig(), train=TrainConfig(steps=1, batch_size=1), model=model, data=data, tokenizer=str(TOKENIZER)
    )


def make_policy(case: Case) -> Policy:
    config = config_of(case)
    shapes = model_shapes(Pi0(config.model))
    drawn = {name: openpi_cases.weight(name, leaf.shape) for name, leaf in shapes.items()}
    stats = {name: NormStats(**one) for name, one in openpi_cases.statistics(case).items()}
    return Policy(config, traverse_util.unflatten_dict(drawn, sep="/"), stats)


@pytest.mark.slow
@pytest.mark.parametrize("case", POLICIES, ids=lambda case: case.name)
def test_actions_are_those_of_openpis_own_policy(case: Case) -> None:
    with np.load(OWN / "openpi_policies.npz") as recorded:
        expected = recorded[case.name]
    policy = make_policy(case)
    for number in range(CASES):
        sent, noise = openpi_cases.observation(case, number)
        got = policy.infer(openpi_cases.copy(sent), noise=noise)["actions"]
        np.testing.assert_allclose(got, expected[number], rtol=0, atol=1e-5, err_msg=f"observation {number}")


@pytest.mark.parametrize("case", POLICIES, ids=lambda case: case.name)
def test_training_samples_are_those_of_openpis_transforms(case: Case) -> None:
    """State and actions normalised and padded, and the prompt's tokens, of the robot's own numbers."""
    to_openpi, to_model = _transforms(case)
    with np.load(OWN / "openpi_policies.npz") as recorded:
        expected = {key: recorded[f"{case.name}/{key}"] for key in ("state", "actions", "tokenized_prompt")}
    for number in range(SAMPLES):
        sent, _ = openpi_cases.observation(case, number)
        seen = to_openpi.adapter.observation(sent, tuple(CAMERAS))
        chunk = openpi_cases.actions(case, number)
        images = {name: np.zeros((28, 28, 3), np.uint8) for name in CAMERAS}
        raw: RawSample = {
            "images": images,
            "state": np.asarray(seen["state"], np.float32),
            "action": chunk,
            "action_is_pad": np.zeros(len(chunk), bool),
            "task": seen.get("prompt", ""),
            "episode": 0,
        }
        sample = to_openpi(raw)
        model = to_model.observation({name: x[None] for name, x in images.items()}, sample["state"][None], ["x"])
        np.testing.assert_allclose(model["state"][0], expected["state"][number], rtol=1e-6, atol=1e-6)
        padded = pad_last(sample["action"], SIZES["action_dim"])
        np.testing.assert_allclose(padded, expected["actions"][number], rtol=1e-6, atol=1e-6)
        tokens = to_model.observation(dict.fromkeys(CAMERAS), sample["state"][None], [sample["prompt"]])["tokens"]
        np.testing.assert_array_equal(tokens[0], expected["tokenized_prompt"][number])


def _transforms(case: Case) -> tuple[ToOpenPi, ToModel]:
    config = config_of(case)
    stats = {name: NormStats(**one) for name, one in openpi_cases.statistics(case).items()}
    (state, _), (action, _) = norm.affines(config.data, stats)
    robot = config.data.robot
    to_openpi = ToOpenPi(
        cameras=CAMERAS,
        image_size=(28, 28),
        robot=robot,
        state=state,
        action=action,
        default_prompt=case.default_prompt,
        adapter=find_adapter(robot.adapter),
    )
    return to_openpi, make_inputs(config.model, robot, tuple(CAMERAS), config.tokenizer)
