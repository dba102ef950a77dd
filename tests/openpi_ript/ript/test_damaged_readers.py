"""Rollouts and tokenizers, damaged at random: only errors of the project come out."""

import json
import random
from pathlib import Path

import numpy as np

from chunkwise.envs.rollout import load, save
from openpi_ript.data.tokenizer import PromptTokenizer
from tests.fuzz import attack, attempt, damaged, exchanged
from tests.openpi_ript.data.test_tokenizer import model_file  # noqa: F401
from tests.openpi_ript.toy_rollouts import make_rollout


def test_a_damaged_rollout(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", make_rollout())
    attack(tmp_path, lambda: load(tmp_path / "a.npz"), 100)


def test_a_rollout_with_other_values(tmp_path: Path) -> None:
    file, rng = tmp_path / "a.npz", random.Random(0)
    save(file, make_rollout())
    with np.load(file) as stored:
        arrays = dict(stored)
    facts = json.loads(str(arrays["facts"]))
    other = [np.zeros(0), np.array(1.0), np.array("text"), np.zeros((2, 2, 2), np.int8), np.array([np.nan])]
    for _ in range(100):
        changed = dict(arrays)
        if rng.random() < 0.5:
            changed["facts"] = np.array(json.dumps(exchanged(facts, rng)))
        else:
            changed[rng.choice(sorted(arrays))] = rng.choice(other)
        np.savez(file, **changed)
        attempt(lambda: load(file))


def test_a_damaged_tokenizer(model_file: Path, tmp_path: Path) -> None:  # noqa: F811
    good, rng = model_file.read_bytes(), random.Random(0)
    for _ in range(60):
        (tmp_path / "a.model").write_bytes(damaged(good, rng))
        attempt(lambda: PromptTokenizer(tmp_path / "a.model", 48).encode("grab the cube", np.zeros(3)))
