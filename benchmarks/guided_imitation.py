"""Does guidance make a policy imitate the good half of a dataset whose other half is bad? With the real training step.

    python benchmarks/guided_imitation.py

The data are synthetic (openpi_ript/data/point.py): a point is to move to the red disc, and every other episode goes to
the blue one. A quarter of the outcomes is reported the wrong way round, as where success depends on more than the
actions: the positive label is right in three cases of four, and imitating it alone (w = 1) can reach about 75 %. Read
as a LeRobot dataset, state only. For each seed two toy pi0 models are trained with the same settings: supervised on all
episodes, and guided (CFG-RIPT, two branches) by labels from the leave-one-out advantages. Then each policy acts in a
closed loop from start states that are in no dataset, replanning after half a chunk. Printed for each: the share of
rollouts that end on the prompted disc with its 95 % interval (Wilson) over all seeds, the lowest and highest seed, and
how far a first chunk lies from the expert's.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.config.experiment import OptimConfig, RunConfig, TrainConfig
from chunkwise.reports.intervals import wilson
from chunkwise.train import rngs
from chunkwise.train.update import run_updates
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.experiment import GuidanceConfig, OpenpiRiptConfig
from openpi_ript.config.model import toy
from openpi_ript.config.rollouts import RecordConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.data.point import DISCS, ON_DISC, PROMPTS, TOKENIZER, expert_action, initial_state, move, record
from openpi_ript.policies.policy import Policy
from openpi_ript.tasks.supervised import SupervisedTask

HORIZON = 8
UPDATES_PER_CALL = 50
LAST_STEP = 20
"""Environment steps of a rollout; the expert needs 11 at most."""
PROMPTED = "red"
TEST_SEED = 10_000
"""Of the start states; the datasets have the runs' own seeds, from 0."""


def make_config(path: Path, seed: int, steps: int, *, guided: bool) -> OpenpiRiptConfig:
    return OpenpiRiptConfig(
        run=RunConfig(seed=seed),
        train=TrainConfig(steps=steps, batch_size=64),
        optim=OptimConfig(learning_rate=2e-3, warmup_steps=50, clip_norm=1.0, schedule="cosine"),
        model=dataclasses.replace(toy("pi0"), optimality=guided),
        data=DataConfig(
            path=str(path),
            robot=RobotConfig(state_dim=2, target_state_dim=2, action_dim=3, relative_dims=(0, 1)),
            cameras={},
            horizon=HORIZON,
            action_norm="mean_std",
            advantage=AdvantageConfig(),
        ),
        guidance=GuidanceConfig() if guided else None,
        tokenizer=str(path / TOKENIZER),
    )


def train(config: OpenpiRiptConfig) -> Policy:
    """A policy after all updates; the train step is the one that launch.py runs, dispatched the same way."""
    data = open_data(config.data)
    task = SupervisedTask(config, data)
    update = jax.jit(lambda state, batches, count: run_updates(task.step, state, batches, count), donate_argnums=0)
    state = jax.jit(task.init)(rngs.key(config.run.seed, "init"))
    batches = task.batches(0)
    for _ in range(config.train.steps // UPDATES_PER_CALL):
        stacked = jax.tree.map(lambda *rows: np.stack(rows), *[next(batches) for _ in range(UPDATES_PER_CALL)])
        state, _ = update(state, stacked, np.int32(UPDATES_PER_CALL))
    return Policy(config, state.params, data.stats, step=config.train.steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What a policy did from all start states of one seed."""

    reached: int
    rollouts: int
    distance: float
    """Mean distance of a first chunk's positions from the expert's, in widths of the world."""


def act(policy: Policy, scale: float | None, rollouts: int) -> Score:
    """Closed loop from `rollouts` start states."""
    goals = np.tile(DISCS[PROMPTED], (rollouts, 1))
    prompts = [PROMPTS[PROMPTED]] * rollouts
    position = np.stack([initial_state(TEST_SEED, i) for i in range(rollouts)]).astype(np.float64)
    distance = 0.0
    for step in range(0, LAST_STEP, HORIZON // 2):
        seen = {"state": position.astype(np.float32), "prompt": prompts}
        chunk = policy.infer(seen, guidance_scale=scale)["actions"]
        if step == 0:
            distance = float(np.linalg.norm(chunk[..., :2] - expert_chunk(position, goals), axis=-1).mean())
        for t in range(HORIZON // 2):
            position = move(position, np.clip(chunk[:, t, :2], 0, 1))
    reached = int((np.linalg.norm(position - goals, axis=-1) < ON_DISC).sum())
    return Score(reached=reached, rollouts=rollouts, distance=distance)


def expert_chunk(position: np.ndarray, goals: np.ndarray) -> np.ndarray:
    targets = []
    for _ in range(HORIZON):
        position = expert_action(position, goals)[0]
        targets.append(position)
    return np.stack(targets, axis=1)


def show(name: str, scores: list[Score]) -> None:
    reached, rollouts = sum(score.reached for score in scores), sum(score.rollouts for score in scores)
    low, high = wilson(reached, rollouts)
    shares = [score.reached / score.rollouts for score in scores]
    distances = [score.distance for score in scores]
    print(
        f"{name:<24}{reached / rollouts:8.1%}  [{low:.1%}, {high:.1%}]   {min(shares):.1%} to {max(shares):.1%}   "
        f"{np.mean(distances):.3f}  ({min(distances):.3f} to {max(distances):.3f})",
        flush=True,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500, help="updates of each model")
    parser.add_argument("--rollouts", type=int, default=200, help="start states a seed")
    arguments = parser.parse_args()
    began = time.monotonic()
    scores: dict[str, list[Score]] = {}
    scales: dict[str, Any] = {"guided, w = 0": 0.0, "guided, w = 1": 1.0, "guided, w = 3": 3.0}
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dataset"
            settings = RecordConfig(groups=64, rollouts=8, length=16, prompted=(PROMPTED,), luck=0.25, seed=seed)
            record(settings, path)
            plain = train(make_config(path, seed, arguments.steps, guided=False))
            guided = train(make_config(path, seed, arguments.steps, guided=True))
        scores.setdefault("supervised", []).append(act(plain, None, arguments.rollouts))
        for name, scale in scales.items():
            scores.setdefault(name, []).append(act(guided, scale, arguments.rollouts))
        print(f"seed {seed} done after {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{arguments.seeds} seeds x {arguments.rollouts} rollouts, {arguments.steps} updates each")
    print(f"{'policy':<24}{'on disc':>8}  {'95 % interval':<18}  {'seeds':<17}  distance to the expert's chunk")
    for name, of_seeds in scores.items():
        show(name, of_seeds)


if __name__ == "__main__":
    main()
