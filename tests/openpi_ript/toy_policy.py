"""Toy policies and inputs that the tests of the model share."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from openpi_ript.config.model import ModelConfig, toy
from openpi_ript.model.pi0 import Observation, Pi0, init_params
from openpi_ript.weights import by_path
from tests import xla

# Compiling dominates these tests: without LLVM's passes and XLA's fusion a gradient compiles in 1.5 s instead of 11 s.
compiled = functools.partial(jax.jit, compiler_options=xla.QUICK)

OWN = Path(__file__).resolve().parents[1] / "fixtures"
"""Recorded from openpi's own code by record_openpi.py there, at small sizes."""
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "fixtures"
"""The same of openpi's `dummy` sizes, 15 MB: beside the repository, where somebody has put them there."""
PARITY = [
    path for path in (OWN / "openpi.npz", BESIDE / "openpi_tiny.npz") if path == OWN / "openpi.npz" or path.exists()
]
"""Fixtures for `openpi_ript.parity`."""
CHECKPOINTS = [(PARITY[0], OWN / "openpi_checkpoints" / folder) for folder in ("pi0/params", "pi05/params_trained")] + [
    (fixture, BESIDE / "openpi_tiny_ckpt" / kind / flavour)
    for fixture in PARITY[1:]
    for kind in ("pi0", "pi05")
    for flavour in ("params", "params_trained")
]
"""Checkpoints that openpi's own code wrote, each beside the fixture that holds the same weights. `params_trained` is
of a training run, which nests every leaf a level deeper."""


def make_model(kind: Literal["pi0", "pi05"], **changes: Any) -> Pi0:
    return Pi0(dataclasses.replace(toy(kind), **changes))


def random_params(model: Pi0, seed: int = 0) -> Any:
    """Weights without a zero or a one among them, so that no term of the model is switched off."""
    shapes = jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0))
    rng = np.random.default_rng(seed)

    def draw(leaf: Any) -> jax.Array:
        fan_in = leaf.shape[-2] if len(leaf.shape) > 1 else 10
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(fan_in), jnp.float32)

    return jax.tree.map(draw, shapes)


def make_observation(config: ModelConfig, *, batch: int = 3, cameras: int = 2, seed: int = 1) -> Observation:
    """Random inputs; the last camera is missing in row 0, prompts have different lengths."""
    rng = np.random.default_rng(seed)
    n, size = config.prompt_tokens, config.image_size
    mask = np.ones((batch, cameras), bool)
    mask[0, -1] = False
    lengths = rng.integers(2, n, batch)
    return Observation(
        images=jnp.asarray(rng.integers(0, 256, (batch, cameras, size, size, 3)), jnp.uint8),
        image_mask=jnp.asarray(mask),
        state=jnp.asarray(rng.normal(size=(batch, config.action_dim)), jnp.float32),
        tokens=jnp.asarray(rng.integers(0, config.vocab_size, (batch, n)), jnp.int32),
        token_mask=jnp.asarray(np.arange(n)[None] < lengths[:, None]),
    )


def make_actions(config: ModelConfig, *, batch: int = 3, seed: int = 2) -> jax.Array:
    shape = (batch, config.action_horizon, config.action_dim)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_trees_close(got: Mapping[str, Any], expected: Mapping[str, Any], relative: float) -> None:
    """Each leaf within `relative` of its largest entry, or a hundredth of the largest of all leaves if that is more."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        other: Any = got
        for key in path:
            other = other[key.key]
        scale = max(float(jnp.abs(leaf).max()), 0.01 * largest)
        np.testing.assert_allclose(other, leaf, rtol=0, atol=relative * scale, err_msg=jax.tree_util.keystr(path))


def save_safetensors(params: Any, file: Path) -> None:
    """Writes weights as one safetensors file, tensors named by path, "a/b/c"."""
    save_file({name: np.ascontiguousarray(leaf) for name, leaf in by_path(params).items()}, file)
