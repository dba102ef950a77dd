"""Updates from parts of a batch, with draws that do not depend on the row."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.evened import assert_same_update, even_draws
from tests.openpi_ript.small_run import make_dataset, make_task, small_config, supervised

compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.long
@pytest.mark.parametrize("guided", [True, False])
def test_parts_make_the_update_of_the_whole(guided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = small_config(make_dataset(tmp_path), tmp_path / "run")
    config = config if guided else supervised(config)
    task = make_task(config)
    parted = make_task(dataclasses.replace(config, train=dataclasses.replace(config.train, grad_accum_steps=2)))
    state = compiled(task.init)(jax.random.key(1))
    batch: Any = jax.tree.map(jnp.asarray, next(task.batches(0)))
    pad = batch["action_is_pad"]
    batch["action_is_pad"] = pad | (jnp.arange(pad.shape[1])[None] >= jnp.array([[8], [2], [5], [8]]))
    even_draws(monkeypatch)
    assert_same_update(task, parted, state, batch, compiled)
