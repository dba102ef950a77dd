"""Writes the rollouts of a run as a LeRobot dataset (v2.1), which trains here and opens in LeRobot.

    python -m openpi_ript.convert RUN OUT [--first-step 400] [--fps 20] [--layer-4] [--allow-env my_sim:Env]

Every rollout that the run's rounds played becomes an episode, in the order of step and initial state: state and images
as the policy saw them, actions as executed, the outcome in the last frame, the prompt as its task. The column `group`
numbers the rounds' initial states, so that `data.init_key group` with `data.advantage` finds RIPT's groups again;
`initial_state` is the seed of the environment's reset, the same in every round. Images become PNG. The same rollouts
give the same bytes, by any number of --workers or on a --fleet; given again after a kill, the command goes on.

With --layer-4 OUT/layer_4/episode_<number>.npz is the same episode as layer 4 of the data specification, with the
advantage of each rollout in its group (openpi_ript/ript/layer_4.py): as the environment shows it, before any adapter.
"""

import argparse
import dataclasses
import functools
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.data.convert import Jobs, Joined, add_job_options, build
from chunkwise.data.parts import Part
from chunkwise.data.problems import Problem, refuse
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.trust import require_own_files
from chunkwise.printable import say
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.lerobot_writer import (
    Recorded,
    features_of,
    outcome_columns,
    require_one_rate,
    write_episode,
    write_meta,
)
from openpi_ript.envs.layer_4 import IMAGES, policy_state
from openpi_ript.envs.make import ALLOWED, code_of, make, names_of, require_own_code
from openpi_ript.policies.saved import read_config
from openpi_ript.ript.layer_4 import FOLDER, advantages_of, layer_4, save_layer_4
from openpi_ript.ript.recordings import FOLDER as ROLLOUTS
from openpi_ript.ript.recordings import places_of
from openpi_ript.robots.adapter import OWN, Adapter, find_adapter

GROUP = "group"
"""Column of the number of a rollout's round and initial state, in their order, from 0."""
INITIAL_STATE = "initial_state"
"""Column of the seed with which the environment was reset."""


def find_rollouts(run: Path, first_step: int = 0) -> list[Path]:
    """Returns the files of a run's rollouts from an update on, in the order of update and initial state; no dump of
    one whose policy gave NaN.

    Raises:
      DataError: There is none, or links lead out of the folder.
    """
    require_own_files(run)
    root = run / ROLLOUTS
    found = [root / place.round / place.file for place in places_of(root) if place.step >= first_step]
    if not found:
        raise DataError(f"{run}: expected rollouts of update {first_step} or later in rollouts/, found none")
    return found


def recorded(
    rollout: Rollout, config: OpenpiRiptConfig, path: Path, adapter: Adapter = OWN, group: int = 0
) -> Recorded:
    """Returns a rollout as an episode of a dataset with the config's columns: state and images as its robot has them.

    Args:
      rollout: With its observations.
      config: Of the run.
      path: Of the rollout, for errors.
      adapter: The robot's.
      group: Number of its group.

    Raises:
      DataError: The rollout's observations were not kept, or lack a camera.
    """
    env, data = config.env, config.data
    assert env is not None
    shown = {key: env.cameras[name] for name, key in data.cameras.items()}
    if missing := sorted({*env.state, *shown.values()} - set(rollout.observations)):
        raise DataError(f"{path}: expected observations {missing}, found {sorted(rollout.observations)}")
    state = policy_state(rollout.observations, env.state, env.state_function)
    columns = {
        data.state_key: adapter.simulated_state(state[:-1]).astype(np.float32),
        data.action_key: rollout.actions,
        **outcome_columns(rollout.success, rollout.length, data),
        INITIAL_STATE: np.full(rollout.length, rollout.seed, np.int64),
        GROUP: np.full(rollout.length, group, np.int64),
    }
    images = {key: list(adapter.simulated_image(rollout.observations[name][:-1])) for key, name in shown.items()}
    return Recorded(columns=columns, images=images, task=rollout.prompt)


def convert(
    run: Path,
    out: Path,
    *,
    first_step: int = 0,
    fps: float | None = None,
    as_layer_4: bool = False,
    allow_env: str | None = None,
    allow_code: str | None = None,
    jobs: Jobs | None = None,
) -> int:
    """Writes the dataset; returns the number of rollouts.

    Args:
      run: Folder of a run with rounds of rollouts.
      out: Folder to make; it must not exist.
      first_step: Updates behind the first round that is taken.
      fps: Frames a second of the simulation; None asks the environment.
      as_layer_4: Whether layer 4 is written too.
      allow_env: `code_of` the run's env, where it is code that the user trusts.
      allow_code: data.robot.adapter of the run, where it is code that the user trusts.
      jobs: By how many processes, where, and what becomes of rollouts that are bad.

    Raises:
      ConfigError: `out` exists, or the run has no environment.
      DataError: A rollout is missing or bad.
      StorageError: The dataset could not be written.
    """
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; convert into a folder that does not exist yet")
    if (run / "meta" / "info.json").is_file():
        raise ConfigError(
            f"{run} is a LeRobot dataset already; `chunkwise convert qchunk` and `chunkwise convert driving` make "
            "datasets of theirs of one"
        )
    config = read_config(run)
    if config.env is None:
        raise ConfigError(f"{run}: expected a run with env, found one that never acted")
    _adapter(config, allow_code)
    require_own_code(config.env, allow_code=allow_env == code_of(config.env))
    if as_layer_4 and (missing := [name for name in IMAGES if name not in config.env.cameras.values()]):
        raise ConfigError(
            f"{run}: layer 4 holds the images {list(IMAGES)}, and env.cameras of the run has no {missing}; leave out "
            "--layer-4, or train with both cameras"
        )
    # Listed once: a run that goes on adds rollouts, which would give those of each process other numbers.
    names = [path.relative_to(run) for path in find_rollouts(run, first_step)]
    if as_layer_4:
        labels = advantages_of([run / name for name in names], config.rollout)
        if cut := labels.count(None):
            say(f"{cut} of {len(names)} rollouts are of groups that are not there whole: no advantage, and no layer 4")
    if fps is None:
        rates = {}
        for name in names_of(config.env):
            plain = dataclasses.replace(config.env, initial_states="")
            world = make(plain, name, allow_code=allow_env == code_of(config.env))
            rates[name] = world.fps
            world.close()
        require_one_rate(rates)
        fps = float(next(iter(rates.values())))
    tasks = ", ".join(names_of(config.env))
    made = {"made_by": "openpi_ript.convert: rollouts of a policy", "env": config.env.suite, "task": tasks}
    build(
        functools.partial(_Conversion, run.absolute(), names, fps, allow_code, made, as_layer_4),
        out,
        about=made,
        identity={"run": str(run.resolve()), "first_step": first_step, "fps": fps, "layer_4": as_layer_4},
        description=None,
        done="converted {count} of {total} rollouts",
        jobs=jobs or Jobs(),
        report=print,
    )
    return len(names)


def _adapter(config: OpenpiRiptConfig, allow_code: str | None) -> Adapter:
    named = config.data.robot.adapter
    return find_adapter(named, allow_code=allow_code == named)


class _Conversion:
    """The rollouts of a run; an episode's number and rows depend on all before it, so they are looked at first."""

    def __init__(
        self,
        run: Path,
        names: Sequence[Path],
        fps: float,
        allow_code: str | None,
        provenance: Mapping[str, Any],
        as_layer_4: bool,
    ) -> None:
        self._config, self._fps, self._provenance = read_config(run), fps, provenance
        self._adapter = _adapter(self._config, allow_code)
        self._paths = [run / name for name in names]
        self._labels = advantages_of(self._paths, self._config.rollout) if as_layer_4 else []

    @property
    def units(self) -> Sequence[str]:
        return [f"{path.parent.name}/{path.name}" for path in self._paths]

    def files(self, unit: int) -> Sequence[Path]:
        return [self._paths[unit]]

    def look(self, unit: int) -> Part:
        episode = self._recorded(unit)
        length = len(next(iter(episode.columns.values())))
        return Part(said={"length": length, "task": episode.task, "features": features_of(episode, {})})

    def settle(self, looks: Mapping[int, Part]) -> tuple[Any, Mapping[int, Sequence[Problem]]]:
        """Number, first row, task and group of each; one with other features than the first is a problem."""
        known, problems = dict[str, list[int]](), dict[int, list[Problem]]()
        tasks: dict[str, int] = {}
        groups: dict[tuple[str, str], int] = {}
        first = next((look.said["features"] for look in looks.values()), None)
        place = start = 0
        for number, look in looks.items():
            if look.said["features"] != first:
                wrong = Problem(file=self.units[number], expected=f"{first}", found=f"{look.said['features']}")
                problems[number] = [wrong]
                continue
            task = tasks.setdefault(look.said["task"], len(tasks))
            path = self._paths[number]
            group = groups.setdefault((path.parent.name, path.stem.rpartition("-")[0]), len(groups))
            known[str(number)] = [place, start, task, group]
            place += 1
            start += look.said["length"]
        return known, problems

    def write(self, unit: int, folder: Path, known: Any) -> Part:
        index, start, task, group = known[str(unit)]
        episode = self._recorded(unit, group)
        features = features_of(episode, {})
        stats = write_episode(folder, episode, features, fps=self._fps, index=index, start=start, task=task)
        if self._labels and self._labels[unit] is not None:
            self._write_layer_4(unit, folder / FOLDER / f"episode_{index:06d}.npz")
        length = len(next(iter(episode.columns.values())))
        row = {"episode_index": index, "tasks": [episode.task], "length": length}
        return Part(said={"row": row, "stats": stats, "features": features})

    def join(self, parts: Mapping[int, Part], folder: Path) -> Joined:
        if changed := [problem for part in parts.values() for problem in part.problems]:
            raise refuse(changed, "The rollouts changed while they were converted.")
        rows = [part.said["row"] for part in parts.values()]
        tasks = list(dict.fromkeys(row["tasks"][0] for row in rows))
        assert self._config.env is not None
        robot, features = self._config.env.suite, parts[min(parts)].said["features"]
        stats = [part.said["stats"] for part in parts.values()]
        write_meta(folder, rows, stats, tasks, features, fps=self._fps, robot=robot, provenance=self._provenance)
        return Joined(summary=f"wrote {len(rows)} episodes into {{out}}")

    def close(self) -> None:
        """Nothing stays open."""

    def _write_layer_4(self, unit: int, path: Path) -> None:
        data, label = self._config.data, self._labels[unit]
        assert label is not None
        advantage, optimality = label
        rollout, size = load(self._paths[unit]), data.image_size
        save_layer_4(
            path,
            layer_4(rollout, horizon=data.horizon, advantage=advantage, optimality=optimality, image_size=size),
        )

    def _recorded(self, unit: int, group: int = 0) -> Recorded:
        path = self._paths[unit]
        return recorded(load(path), self._config, path, self._adapter, group)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(
        prog="python -m openpi_ript.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run with rounds of rollouts")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument("--first-step", type=int, default=0, metavar="N", help="rounds from this update on; default: 0")
    parser.add_argument("--fps", type=float, help="frames a second; by default the environment is asked")
    parser.add_argument("--layer-4", action="store_true", help="write layer 4 of the data specification too")
    parser.add_argument("--allow-env", metavar="MODULE:FACTORY", help=f"{ALLOWED} of the run, that you trust")
    parser.add_argument("--allow-code", metavar="MODULE:FACTORY", help="data.robot.adapter of the run, that you trust")
    add_job_options(parser)
    found = parser.parse_args(argv)
    try:
        jobs = Jobs(workers=found.workers, fleet=found.fleet, on_bad=found.on_bad)
        if found.fps is not None and not 0 < found.fps < math.inf:
            raise ConfigError(f"--fps is {found.fps:g}; expected a number above 0")
        convert(
            found.run,
            found.out,
            first_step=found.first_step,
            fps=found.fps,
            as_layer_4=found.layer_4,
            allow_env=found.allow_env,
            allow_code=found.allow_code,
            jobs=jobs,
        )
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    out = shlex.quote(str(found.out))
    print(
        f"next: python -m openpi_ript.inspect {out}, then train on it with --data.path {out}; where data.advantage is "
        f"on, --data.init-key {GROUP} finds the groups"
    )
    return 0


if __name__ == "__main__":
    command.run(main, "stopped; the same command goes on with what is missing")
