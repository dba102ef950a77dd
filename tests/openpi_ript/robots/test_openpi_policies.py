"""Policies from end to end against openpi's own `Policy.infer`: client's observation in, the robot's actions out."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from flax import traverse_util

from chunkwise.config.saved import fingerprint, flatten, read_config, resume_rules, without_younger
from chunkwise.data.norm_stats import NormStats
from openpi_ript.config import GemmaConfig, OpenpiRiptConfig, SiglipConfig
from openpi_ript.config.published import PUBLISHED, published
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
HORIZONS = {
    "pi0_aloha": 50,
    "pi05_aloha": 50,
    "pi0_aloha_sim": 50,
    "pi0_droid": 10,
    "pi05_droid": 15,
    "pi05_full_droid_finetune": 16,
    "pi0_libero": 50,
    "pi05_libero": 10,
}
"""openpi's `action_horizon`; here all have that of openpi_cases.py."""


def config_of(case: Case) -> OpenpiRiptConfig:
    """openpi's config, with small sizes. Its model masks the places that a robot has no camera for; ours has none."""
    config = published(case.name, tokenizer=str(TOKENIZER))
    model = dataclasses.replace(
        config.model,
        vision=SiglipConfig(**SIZES["vision"]),
        language=GemmaConfig(**SIZES["language"]),
        expert=GemmaConfig(**SIZES["expert"]),
        vocab_size=PromptTokenizer(TOKENIZER, config.model.prompt_tokens).vocab_size,
        dtype="float32",
        remat=False,
        **{name: SIZES[name] for name in ("image_size", "action_dim", "action_horizon")},
    )
    size = (SIZES["image_size"],) * 2
    data = dataclasses.replace(config.data, horizon=SIZES["action_horizon"], image_size=size)
    return dataclasses.replace(config, model=model, data=data)


def make_policy(case: Case) -> Policy:
    config = config_of(case)
    shapes = model_shapes(Pi0(config.model))
    drawn = {name: openpi_cases.weight(name, leaf.shape) for name, leaf in shapes.items()}
    stats = {name: NormStats(**one) for name, one in openpi_cases.statistics(case).items()}
    return Policy(config, traverse_util.unflatten_dict(drawn, sep="/"), stats)


@pytest.mark.parametrize("case", POLICIES, ids=lambda case: case.name)
def test_published_policies_have_openpis_sizes(case: Case) -> None:
    config = published(case.name, tokenizer="tokenizer.model")
    assert (config.model.kind, config.model.action_horizon) == (case.kind, HORIZONS[case.name])
    assert (config.model.action_dim, config.data.default_prompt) == (32, case.default_prompt)


def test_all_published_names_make_a_config_and_others_say_which_there_are() -> None:
    for name in PUBLISHED:
        config = published(name, tokenizer="tokenizer.model", path="set")
        assert config.data.path == "set"
        assert (config.model.language.lora is not None) == ("low_mem" in name)
    with pytest.raises(ValueError, match=r"'pi0_fast_droid': expected one of pi0_aloha, .*writes actions as tokens"):
        published("pi0_fast_droid", tokenizer="tokenizer.model")
    with pytest.raises(ValueError, match=r"'pi0_alhoa': expected one of pi0_aloha, .*pi05_libero$"):
        published("pi0_alhoa", tokenizer="tokenizer.model")


def test_policies_with_a_prompt_of_their_own_are_trained_on_it_as_openpi_trains_them() -> None:
    """Its ALOHA configs drop the dataset's task; those of its other robots have prompt_from_task."""
    own = {name for name in PUBLISHED if not published(name, tokenizer="x", path="set").data.prompt_from_task}
    pens = {"pi0_aloha_pen_uncap", "pi05_aloha_pen_uncap"}
    assert own == {"pi0_aloha_towel", "pi0_aloha_tupperware", "pi0_aloha_sim"} | pens


def test_the_simulated_aloha_is_trained_on_the_one_camera_of_its_dataset_and_acts_with_three() -> None:
    trained = published("pi0_aloha_sim", tokenizer="x", path="set").data.cameras
    assert trained == {"base_0_rgb": "observation.images.top"}
    assert len(published("pi0_aloha_sim", tokenizer="x").data.cameras) == 3
    assert len(published("pi0_aloha_pen_uncap", tokenizer="x", path="set").data.cameras) == 3


def test_a_run_that_was_trained_on_tasks_goes_on_with_them_alone(tmp_path: Path) -> None:
    """An earlier version had no data.prompt_from_task, and took the task."""
    now = published("pi0_aloha_pen_uncap", tokenizer="x", path="set")
    before = flatten(now)
    del before["data.prompt_from_task"]
    (tmp_path / "config.json").write_text(json.dumps(before))
    assert read_config(tmp_path, OpenpiRiptConfig).data.prompt_from_task
    rules = resume_rules(OpenpiRiptConfig)
    saved = fingerprint(before, rules)
    assert without_younger(fingerprint(flatten(now), rules), saved, rules) != saved
    as_it_was = dataclasses.replace(now, data=dataclasses.replace(now.data, prompt_from_task=True))
    assert without_younger(fingerprint(flatten(as_it_was), rules), saved, rules) == saved


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
    cameras = tuple(to_openpi.cameras)
    with np.load(OWN / "openpi_policies.npz") as recorded:
        expected = {key: recorded[f"{case.name}/{key}"] for key in ("state", "actions", "tokenized_prompt")}
    for number in range(SAMPLES):
        sent, _ = openpi_cases.observation(case, number)
        seen = to_openpi.adapter.observation(sent, cameras)
        chunk = openpi_cases.actions(case, number)
        images = {name: np.zeros((28, 28, 3), np.uint8) for name in cameras}
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
        tokens = to_model.observation(dict.fromkeys(cameras), sample["state"][None], [sample["prompt"]])["tokens"]
        np.testing.assert_array_equal(tokens[0], expected["tokenized_prompt"][number])


def _transforms(case: Case) -> tuple[ToOpenPi, ToModel]:
    config = config_of(case)
    stats = {name: NormStats(**one) for name, one in openpi_cases.statistics(case).items()}
    (state, _), (action, _) = norm.affines(config.data, stats)
    robot = config.data.robot
    to_openpi = ToOpenPi(
        cameras={name: name for name in config.data.cameras},
        image_size=(28, 28),
        robot=robot,
        state=state,
        action=action,
        default_prompt=case.default_prompt,
        adapter=find_adapter(robot.adapter),
    )
    return to_openpi, make_inputs(config.model, robot, tuple(config.data.cameras), config.tokenizer)
