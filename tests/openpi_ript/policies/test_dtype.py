"""Weights that a policy keeps in bfloat16."""

import dataclasses
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from chunkwise.config.load import load
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import ConfigError
from chunkwise.policies.load import load_policy
from openpi_ript.model.int8 import kept_in
from openpi_ript.model.pi0 import Pi0, as_used
from openpi_ript.policies.policy import Policy
from openpi_ript.weights import by_path, model_shapes
from tests.openpi_ript.robots import openpi_cases
from tests.openpi_ript.robots.openpi_cases import POLICIES, Case
from tests.openpi_ript.robots.test_openpi_policies import config_of
from tests.test_compile import bytes_by_hand

Dtype = Literal["float32", "bfloat16", "int8"]
CASES = {case.name: case for case in POLICIES}


def make_policy(case: Case, kept: Dtype, computed: Dtype) -> Policy:
    config = config_of(case)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype=computed))
    shapes = model_shapes(Pi0(config.model))
    drawn = {name: openpi_cases.weight(name, leaf.shape) for name, leaf in shapes.items()}
    stats = {name: NormStats(**one) for name, one in openpi_cases.statistics(case).items()}
    return Policy(config, traverse_util.unflatten_dict(drawn, sep="/"), stats, dtype=kept)


@pytest.mark.long
@pytest.mark.parametrize("name", ["pi0_droid", "pi05_droid"])
def test_weights_take_half_the_memory_and_actions_lie_near(name: str) -> None:
    """Arithmetic in bfloat16 alone moves actions as far: its products round the same weights at each use."""
    kinds: tuple[Dtype, Dtype] = ("float32", "bfloat16")
    policies = {(kept, used): make_policy(CASES[name], kept, used) for kept in kinds for used in kinds}
    sizes = {key: sum(leaf.nbytes for leaf in jax.tree.leaves(one._params)) for key, one in policies.items()}
    assert sizes["bfloat16", "bfloat16"] * 2 == sizes["float32", "float32"]
    assert policies["bfloat16", "bfloat16"].metadata["dtype"] == "bfloat16"
    actions = {
        key: np.stack(
            [
                one.infer(openpi_cases.copy(sent), noise=noise)["actions"]
                for sent, noise in (openpi_cases.observation(CASES[name], number) for number in range(8))
            ]
        )
        for key, one in policies.items()
    }
    exact = actions["float32", "float32"]
    far = {key: float(np.abs(x - exact).max() / np.abs(exact).max()) for key, x in actions.items()}
    assert 0 < far["bfloat16", "float32"] < 0.05
    assert 0 < far["bfloat16", "bfloat16"] < 0.05
    assert far["bfloat16", "bfloat16"] < 3 * far["float32", "bfloat16"]


@pytest.mark.long
def test_eight_bits_take_the_bytes_computed_by_hand_and_actions_lie_near() -> None:
    case = CASES["pi05_droid"]
    exact, eight = (make_policy(case, kept, "float32") for kept in ("float32", "int8"))
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(one._params)) for one in (exact, eight)]
    assert sizes[1] == bytes_by_hand(config_of(case).model, trains=())
    assert sizes[0] == 4 * sum(leaf.size for leaf in model_shapes(Pi0(config_of(case).model)).values())
    assert eight.metadata["dtype"] == "int8"
    sent, noise = openpi_cases.observation(case, 0)
    first, second = (one.infer(openpi_cases.copy(sent), noise=noise)["actions"] for one in (exact, eight))
    far = float(np.abs(second - first).max() / np.abs(first).max())
    assert 1e-5 < far < 0.05


def test_in_eight_bits_are_matrices_of_layers_and_the_table_alone() -> None:
    shapes = model_shapes(Pi0(config_of(CASES["pi05_droid"]).model))
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=leaf.shape).astype(np.float32) for name, leaf in shapes.items()}
    kept = by_path(kept_in(traverse_util.unflatten_dict(drawn, sep="/"), "int8"))
    stacked = ("PaliGemma/llm/layers/", "PaliGemma/img/Transformer/encoderblock/")
    small = ("/scale", "/bias")
    eight = {name for name in shapes if name.startswith(stacked) and not name.endswith(small)}
    eight.add("PaliGemma/llm/embedder/input_embedding")
    assert {name for name, leaf in kept.items() if leaf.dtype == np.int8} == {f"{name}/int8" for name in eight}
    assert {name for name, leaf in kept.items() if leaf.dtype == np.float32} == {f"{name}/step" for name in eight}
    assert {name for name, leaf in kept.items() if leaf.dtype == jnp.bfloat16} == shapes.keys() - eight
    name = "PaliGemma/llm/layers/mlp/linear"
    step = np.abs(drawn[name]).max(axis=1, keepdims=True) / np.float32(127)
    np.testing.assert_array_equal(kept[f"{name}/step"], step)
    np.testing.assert_array_equal(kept[f"{name}/int8"], np.rint(drawn[name] / step))


def test_what_is_computed_in_float32_is_cast_first() -> None:
    shapes = model_shapes(Pi0(config_of(CASES["pi05_droid"]).model))
    flat = {name: jnp.zeros(leaf.shape, jnp.bfloat16) for name, leaf in shapes.items()}
    used = by_path(as_used(traverse_util.unflatten_dict(flat, sep="/")))
    kept = {name for name, leaf in used.items() if leaf.dtype == jnp.bfloat16}
    parts = ("MlpBlock_0/", "MultiHeadDotProductAttention_0/", "PaliGemma/img/head/")
    language = {name for name in shapes if name.startswith("PaliGemma/llm/") and not name.endswith("/scale")}
    assert kept == language | {name for name in shapes if any(part in name for part in parts)}
    assert "PaliGemma/llm/layers/pre_ffw_norm_1/Dense_0/kernel" in kept
    assert used["PaliGemma/img/pos_embedding"].dtype == jnp.float32


def test_a_policy_that_has_no_such_choice_refuses_it(tmp_path: Path) -> None:
    config, _ = load(["--config", str(Path(__file__).parents[3] / "configs/qchunk/debug.py")])
    with pytest.raises(ConfigError, match=r"dtype is bfloat16, and policies of qchunk are small and keep float32"):
        load_policy(tmp_path, config=config, dtype="bfloat16")
