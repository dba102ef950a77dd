"""A policy of openpi_ript as files: the same actions as the policy in this process, from ids and raw numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from chunkwise.policies import runner
from chunkwise.policies.export import export
from openpi_ript.data.dataset import open_data
from openpi_ript.data.point import render
from openpi_ript.data.tokenizer import PromptTokenizer
from openpi_ript.model.pi0 import Pi0
from openpi_ript.policies.policy import Policy
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config
from tests.openpi_ript.toy_policy import random_params

PROMPT = "move to the red_disc"
_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guidance_scal": 5.0}, "guidance_scal: expected entries among .*'guidance_scale'"),
    ({"image_masks": [True, False]}, "image_masks: expected entries among .*'image_mask'"),
    ({"state": [np.nan, 0.0]}, "state: expected finite numbers of .* found nan"),
    ({"state": [0.0, 1e39]}, r"state: expected finite numbers of .* found 1e\+39"),
    ({"state": [0.0, 1e30]}, r"state: expected at most 1e\+06 normalised, found .*e\+30"),
    ({"state": ["0.1", "0.2"]}, r"state: expected float32 \[1, 2\], found <U3"),
    ({"state": np.array([1 + 2j, 0])}, r"state: expected float32 \[1, 2\], found complex128"),
    ({"noise": np.full((8, 8), np.inf)}, "noise: expected finite numbers of .* found inf"),
    ({"guidance_scale": np.nan}, "guidance_scale: expected finite numbers of 0 to .* found nan"),
    ({"guidance_scale": -1.0}, "guidance_scale: expected finite numbers of 0 to .* found -1"),
    ({"tokens": [2.5, 5]}, "tokens: expected whole numbers of 0 to 511, found 2.5"),
    ({"tokens": [-3, 5]}, "tokens: expected whole numbers of 0 to 511, found -3"),
    ({"tokens": [5, 512]}, "tokens: expected whole numbers of 0 to 511, found 512"),
    ({"tokens": [2**32 + 5]}, "tokens: expected whole numbers of 0 to 511, found 4.29"),
    ({"tokens": []}, r"tokens: expected 1 lists of 1 to \d+ ids, found those of \[0\]"),
    ({"tokens": 5}, "tokens: expected a list of ids, found 5"),
    ({"tokens": "pick"}, r"tokens: expected int32 \[1, \d+\], found <U"),
    ({"image_mask": [1, 0]}, r"image_mask: expected bool \[1, 2\], found int64"),
]
"""Entries of an observation that `Policy.infer` refuses too, and that must not become other actions in silence."""


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("export")
    with quick_compiling(folder / "cache"):
        config = small_config(make_dataset(folder), folder)
        yield Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats)


def seen(rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the policy is shown, and what the export is: images in the order of the cameras' names, no prompt."""
    state = np.random.default_rng(3).uniform(0.2, 0.8, (rows, 2)).astype(np.float32)
    keys = {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}
    image = {name: np.stack([render(row, key) for row in state]) for name, key in keys.items()}
    images = np.stack([image["base_0_rgb"], image["left_wrist_0_rgb"]], axis=1)
    return {"image": image, "state": state, "prompt": [PROMPT] * rows}, {"state": state, "images": images}


def first(tree: Any) -> Any:
    return {name: first(value) if isinstance(value, dict) else value[0] for name, value in tree.items()}


def test_an_export_acts_alike(acting: Policy, tmp_path: Path):
    export(acting.exportable(), tmp_path / "out", platforms=["cpu"])
    act: Any = runner.load(tmp_path / "out")
    order = json.loads((tmp_path / "out/spec.json").read_text())["order"]
    assert order["images"] == ["base_0_rgb", "left_wrist_0_rgb"], "as `seen` stacks them"
    both, tokenizer = seen(1), PromptTokenizer(tmp_path / "out/tokenizer.model", acting.config.model.prompt_tokens)
    asked, given = first(both[0]), first(both[1])
    tokens, mask = tokenizer.encode(PROMPT)
    expected = acting.infer(asked, seed=7)["actions"]
    ids = tokens[mask].tolist()
    np.testing.assert_array_equal(act({**given, "tokens": ids}, seed=7), expected)
    np.testing.assert_array_equal(act({**given, "tokens": tokens, "token_mask": mask}, seed=7), expected)
    other = act({**given, "tokens": ids}, seed=8)
    assert np.abs(other - expected).max() > 1e-3
    # Noise, scale and cameras as they are given, in place of what is drawn and of the config's.
    noise = np.random.default_rng(8).standard_normal((8, 8), np.float32)
    np.testing.assert_array_equal(act({**given, "tokens": ids, "noise": noise}, seed=7), other)
    one_camera = {**given, "tokens": ids, "image_mask": np.array([True, False]), "guidance_scale": 1.5}
    without = {**asked, "image": {**asked["image"], "left_wrist_0_rgb": None}}
    got = act(one_camera, seed=7)
    np.testing.assert_array_equal(got, acting.infer(without, seed=7, guidance_scale=1.5)["actions"])
    assert np.abs(got - expected).max() > 1e-3
    with pytest.raises(ValueError, match=r"tokens: expected it in the observation, found \['images', 'state'\]"):
        act(given)
    for wrong, message in _WRONG:
        with pytest.raises(ValueError, match=message):
            act({**given, "tokens": ids, **wrong}, seed=7)
    with pytest.raises(ValueError, match=rf"tokens: expected 1 lists of 1 to {len(mask)} ids, found those of \[99\]"):
        act({**given, "tokens": [5] * 99})
    for seed in (-1, 2**32, 1.5, float("nan"), "7", [7]):
        with pytest.raises(ValueError, match="seed: expected a whole number of 0 to 4294967295, found"):
            act({**given, "tokens": ids}, seed=seed)
    np.testing.assert_array_equal(act({**given, "tokens": ids}, seed=np.int64(7)), expected)
    with pytest.raises(DataError, match="seed: expected a whole number"):
        acting.infer(asked, seed=-1)


def test_rows_of_an_export_draw_by_seeds_that_follow_one_another(acting: Policy, tmp_path: Path):
    export(acting.exportable(), tmp_path / "out", rows=2, platforms=["cpu"])
    asked, given = seen(2)
    tokens, mask = PromptTokenizer(acting.config.tokenizer, acting.config.model.prompt_tokens).encode(PROMPT)
    ids = [tokens[mask].tolist()] * 2
    noise = np.stack([np.random.default_rng(seed).standard_normal((8, 8), np.float32) for seed in (7, 8)])
    expected = acting.infer(asked, noise=noise)["actions"]
    np.testing.assert_array_equal(runner.load(tmp_path / "out")({**given, "tokens": ids}, seed=7), expected)
