"""Rounds of drives that two processes play together, against those that one process plays."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.distributed import processes
from chunkwise.envs.collect import Job
from chunkwise.envs.divided import MANIFEST
from chunkwise.envs.rollout import Rollout
from chunkwise.state import TrainState
from chunkwise.train import interaction, rngs
from driving.config import DrivingConfig
from driving.online.round import EXPERT, ROLLOUTS, Rounds
from driving.tasks import waypoints
from tests.chunkwise.distributed.test_processes import run_two
from tests.driving.online.test_round import FakeCollector

ALONE = """
import sys
from pathlib import Path
from tests.driving.online import test_together
test_together.play_whole(Path(sys.argv[1]), sys.argv[2])
"""
TOGETHER = """
from tests.driving.online import test_together
test_together.play_whole(Path(sys.argv[1]), sys.argv[2])
test_together.play_the_rest(Path(sys.argv[3]), sys.argv[2])
processes.leave(0, together=True)
"""
STEPS = (20, 30)
"""Updates before the two rounds; both are played with the same weights."""


def state_of(config: DrivingConfig) -> TrainState:
    """Weights of equally probable modes that turn as the car turns, at its speed, 0.3 and 0.6 m/s slower."""
    assert config.waypoints is not None
    params = jax.tree.map(jnp.zeros_like, waypoints.init_params(config, rngs.key(0, "init")))
    seconds = config.data.waypoint_dt_s * np.arange(1, config.data.waypoint_steps + 1)
    slower = np.zeros((config.waypoints.modes, len(seconds), 2), np.float32)
    slower[..., 0] = -0.3 * np.arange(config.waypoints.modes)[:, None] * seconds
    params = {**params, "out": {**params["out"], "bias": jnp.asarray(slower.reshape(-1))}}
    return TrainState(step=np.int32(STEPS[0]), params=params, opt_state={}, target={})


class Quick(FakeCollector):
    """Drives without a town, of which each of the policy's is worth more than the one before it."""

    def __init__(self, who: str) -> None:
        super().__init__(lambda job: {} if who == EXPERT else {"metres": 50.0 + job.number})

    def play(
        self, jobs: Sequence[Job], actor: Any, done: Callable[[Job, Rollout], None], stopping: Callable[[], bool]
    ) -> bool:
        return all(not stopping() and super(Quick, self).play([job], actor, done, stopping) for job in jobs)

    def close(self) -> None:
        """Has no workers."""


class Driven:
    """Rounds of the debug config in a folder, and the names of the drives that this process played."""

    def __init__(self, folder: Path, where: str) -> None:
        from configs.driving.debug_rollouts import get_config

        config = get_config()
        assert config.rollout is not None
        alone = not processes.is_multiprocess()
        config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, num_envs=1 + alone))
        self.rounds, self.state = Rounds(config, folder), state_of(config)
        self.names, self.ended = list[str](), list[str]()
        made = self.rounds._collector

        def collector(who: str) -> Any:
            played: Any = made(who) if where == "town" else Quick(who)

            class Noting:
                close = staticmethod(played.close)

                @staticmethod
                def play(jobs: list[Job], actor: Any, done: Any, stopping: Callable[[], bool]) -> bool:
                    def ended(job: Job, drive: Rollout) -> None:
                        done(job, drive)
                        self.ended.append(name_of(job.path))

                    self.names += [name_of(job.path) for job in jobs]
                    return played.play(jobs, actor, ended, stopping)

            return Noting

        self.rounds._collector = collector  # pyright: ignore[reportAttributeAccessIssue]

    def interact(self, step: int, stopping: Callable[[], bool] = lambda: False) -> Any:
        """Metrics of a round, as the loop asks for them."""
        return interaction.interact(self.rounds, self.state, step, stopping, lambda work: work(), lambda _: None)


def play_whole(folder: Path, where: str) -> None:
    """Plays two rounds, and tells what came of them, who drove what, and a batch of what the first one teaches."""
    driven = Driven(folder, where)
    told: dict[str, Any] = {}
    try:
        for step in STEPS:
            told[f"metrics {step}"] = dict(driven.interact(step))
            told[f"position {step}"] = driven.rounds.position()
            if step == STEPS[0]:
                assert driven.rounds._decisions is not None, "two drives from one start are worth different scores"
                batch = driven.rounds._decisions.batch(step, slice(0, 8), 8)
                told["batch"] = {name: value.tolist() for name, value in batch.items()}
    finally:
        driven.rounds.close()
    (folder / f"told.{processes.index()}.json").write_text(json.dumps(told | {"names": driven.names}))


def play_the_rest(folder: Path, where: str) -> None:
    """Plays a round of which something is there already, and one in which the second process is stopped."""
    driven = Driven(folder, where)
    metrics = dict(driven.interact(STEPS[0]))
    (folder / f"told.{processes.index()}.json").write_text(json.dumps({"metrics": metrics, "names": driven.names}))
    position = driven.rounds.position()
    stop = f"step_{STEPS[1]:08d}"
    found = driven.interact(STEPS[1], lambda: bool(processes.index()) and any(stop in one for one in driven.ended))
    assert found is None
    assert driven.rounds.position() == position, "as if the round had not been begun"
    driven.rounds.close()


def files(folder: Path) -> dict[str, bytes]:
    """All files of the rounds, by folder and name, without the digest of the weights."""
    return {name_of(path): path.read_bytes() for path in (folder / ROLLOUTS).rglob("*") if path.is_file()}


def name_of(path: Path) -> str:
    return f"{path.parent.name[:13]}/{path.name}"


@pytest.mark.long
@pytest.mark.parametrize("where", ["nowhere", "town"])
def test_two_processes_drive_what_one_drives(where: str, tmp_path: Path):
    """Files, metrics and batches are those of one process; each plays its half, and what lies there is not played."""
    one, two, cut = (tmp_path / name for name in ("one", "two", "cut"))
    one.mkdir()
    subprocess.run([sys.executable, "-c", ALONE, str(one), where], check=True)
    alone, told = files(one), json.loads((one / "told.0.json").read_text())
    by_step = [[name for name in told["names"] if f"step_{step:08d}/" in name] for step in STEPS]
    experts = [name for name in told["names"] if name.startswith(EXPERT)]
    assert [len(names) for names in by_step] == [4, 4]
    assert sorted(alone) == sorted([*told["names"], *(f"step_{step:08d}/{MANIFEST}" for step in STEPS)])
    kept = [experts[1], by_step[0][0], by_step[0][3]]  # as after a kill in the middle
    for name in kept:
        lay = next(path for path in (one / ROLLOUTS).rglob(Path(name).name) if name_of(path) == name)
        there = cut / lay.relative_to(one)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(alone[name])

    ended = run_two(TOGETHER, str(two), where, str(cut), seconds=400)
    said = "\n".join(output for _, output in ended)
    assert [code for code, _ in ended] == [0, 0], said
    assert files(two) == alone
    played = []
    for me in (0, 1):
        whole, rest = (json.loads((folder / f"told.{me}.json").read_text()) for folder in (two, cut))
        assert {name: whole[name] for name in whole if name != "names"} == {
            name: told[name] for name in told if name != "names"
        }
        drives = [name for name in whole["names"] if not name.startswith(EXPERT)]
        assert drives == [*by_step[0][me::2], *by_step[1][me::2]]
        assert rest["metrics"] == told[f"metrics {STEPS[0]}"]
        assert rest["names"] == [name for name in [experts[me], *by_step[0][me::2]] if name not in kept]
        played += whole["names"]
    assert sorted(played) == sorted(told["names"]), "the town's own driver drives each route once, too"
    left = files(cut)
    assert f"step_{STEPS[0]:08d}/{MANIFEST}" in left
    assert f"step_{STEPS[1]:08d}/{MANIFEST}" not in left, "a round that was broken off has none"
    assert by_step[1][1] in left
    assert by_step[1][3] not in left
    assert left.items() <= alone.items()
