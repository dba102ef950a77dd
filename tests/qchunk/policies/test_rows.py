"""A row of a batch has no part in another's chunk, whatever its place: so the collector may take whoever is ready."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.data.norm_stats import Affine
from chunkwise.policies.execution import Committed
from configs.qchunk import debug
from qchunk.agents.make import make_agent
from qchunk.config import EncoderConfig
from qchunk.data.dataset import Dims
from qchunk.policies.policy import QChunkPolicy
from tests.rows import assert_rows_stand_alone

CONTENTS, CAMERAS, SIZE = 12, ("top", "wrist"), (24, 32)


def make_policy(policy: str, *, images: bool) -> QChunkPolicy:
    """Networks of 64 units, with weights that are not near zero."""
    base = debug.get_config()
    encoder = EncoderConfig(widths=(4, 8), blocks=1, feature_size=16) if images else None
    agent: Any = {"policy": policy, "hidden_sizes": (64, 64), "encoder": encoder}
    data: Any = {"cameras": CAMERAS, "image_size": SIZE} if images else {}
    config = dataclasses.replace(
        base, agent=dataclasses.replace(base.agent, **agent), data=dataclasses.replace(base.data, **data)
    )
    made = make_agent(config, Dims(observation=19, action=5, **data))
    rng = np.random.default_rng(5)
    params = jax.tree.map(
        lambda leaf: leaf + 0.2 * rng.normal(size=leaf.shape).astype(leaf.dtype), made.init(jax.random.key(3)).params
    )
    norm, action_norm = (Affine(scale=np.full(n, 0.7), offset=np.full(n, 0.1)) for n in (19, 5))
    return QChunkPolicy(made, params, observation_norm=norm, action_norm=action_norm)


@pytest.mark.parametrize(
    ("policy", "images", "committed", "rows"),
    [
        pytest.param("best_of_n", False, False, 1, marks=pytest.mark.long),
        ("best_of_n", False, False, 5),
        pytest.param("best_of_n", False, False, 10, marks=pytest.mark.long),
        pytest.param("best_of_n", True, False, 5, marks=pytest.mark.long),
        ("best_of_n", False, True, 5),
        ("distill", False, False, 5),
        pytest.param("distill", True, False, 4, marks=pytest.mark.long),
    ],
)
def test_a_row_does_not_depend_on_its_neighbours_nor_its_place(policy: str, images: bool, committed: bool, rows: int):
    acting, rng = make_policy(policy, images=images), np.random.default_rng(0)
    state = rng.normal(size=(CONTENTS, 19)).astype(np.float32)
    image = rng.integers(0, 256, (CONTENTS, len(CAMERAS), *SIZE, 3)).astype(np.uint8)
    seeds = rng.integers(0, 2**32, CONTENTS).astype(np.uint32)
    known = [
        Committed(actions=rng.normal(size=(n % 4, 5)).astype(np.float32), weights=np.ones(n % 4, np.float32))
        for n in range(CONTENTS)
    ]

    def ask(chosen: np.ndarray) -> np.ndarray:
        seen = {acting.config.data.observation: state[chosen]} | ({"images": image[chosen]} if images else {})
        return acting.chunks(seen, seeds[chosen], [known[n] for n in chosen] if committed else None)

    assert_rows_stand_alone(ask, contents=CONTENTS, rows=rows)
