"""Writes the rollouts of a run as a LeRobot dataset (v2.1), which trains here and opens in LeRobot.

    python -m openpi_ript.convert RUN OUT [--first-step 400] [--fps 20] [--allow-env my_sim:Env]

Every rollout that the run's rounds played becomes an episode, in the order of step and initial state: state and images
as the policy saw them, actions as executed, the outcome in the last frame, the prompt as its task. The column
`initial_state` is the seed of the environment's reset, so that `data.init_key initial_state` with `data.advantage`
finds RIPT's groups again. Images become PNG. The same rollouts give the same bytes.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.cli.progress import follow
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.new_folder import new_folder
from chunkwise.files.trust import require_own_files
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.lerobot_writer import Recorded, write_lerobot
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import ALLOWED, code_of, make, require_own_code
from openpi_ript.policies.saved import read_config
from openpi_ript.robots.adapter import OWN, Adapter, find_adapter

INITIAL_STATE = "initial_state"
"""Column of the seed with which the environment was reset."""


def find_rollouts(run: Path, first_step: int = 0) -> list[Path]:
    """Returns the files of a run's rollouts from an update on, in the order of update and initial state.

    Raises:
      DataError: There is none, or links lead out of the folder.
    """
    require_own_files(run)
    found = sorted((run / "rollouts").glob("step_*/state_*.npz"))
    found = [path for path in found if int(path.parent.name.removeprefix("step_").split("-")[0]) >= first_step]
    if not found:
        raise DataError(f"{run}: expected rollouts of update {first_step} or later in rollouts/, found none")
    return found


def recorded(rollout: Rollout, config: OpenpiRiptConfig, path: Path, adapter: Adapter = OWN) -> Recorded:
    """Returns a rollout as an episode of a dataset with the config's columns: state and images as its robot has them.

    Raises:
      DataError: The rollout's observations were not kept, or lack a camera.
    """
    env, data = config.env, config.data
    assert env is not None
    shown = {key: env.cameras[name] for name, key in data.cameras.items()}
    if missing := sorted({*env.state, *shown.values()} - set(rollout.observations)):
        raise DataError(f"{path}: expected observations {missing}, found {sorted(rollout.observations)}")
    outcome = np.zeros(rollout.length, bool)
    outcome[-1] = rollout.success
    state = policy_state(rollout.observations, env.state, env.state_function)
    columns = {
        data.state_key: adapter.simulated_state(state[:-1]).astype(np.float32),
        data.action_key: rollout.actions,
        data.success_key: outcome,
        data.reward_key: outcome.astype(np.float32),
        INITIAL_STATE: np.full(rollout.length, rollout.seed, np.int64),
    }
    images = {key: list(adapter.simulated_image(rollout.observations[name][:-1])) for key, name in shown.items()}
    return Recorded(columns=columns, images=images, task=rollout.prompt)


def convert(
    run: Path,
    out: Path,
    *,
    first_step: int = 0,
    fps: int | None = None,
    allow_env: str | None = None,
    allow_code: str | None = None,
) -> int:
    """Writes the dataset; returns the number of episodes.

    Args:
      run: Folder of a run with rounds of rollouts.
      out: Folder to make; it must not exist.
      first_step: Updates behind the first round that is taken.
      fps: Frames a second of the simulation; None asks the environment.
      allow_env: `code_of` the run's env, where it is code that the user trusts.
      allow_code: data.robot.adapter of the run, where it is code that the user trusts.

    Raises:
      ConfigError: `out` exists, or the run has no environment.
      DataError: A rollout is missing or bad.
      StorageError: The dataset could not be written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; convert into a folder that does not exist yet")
    if (run / "meta" / "info.json").is_file():
        raise ConfigError(
            f"{run} is a LeRobot dataset already; `chunkwise convert qchunk` and `chunkwise convert driving` make "
            "datasets of theirs of one"
        )
    config = read_config(run)
    if config.env is None:
        raise ConfigError(f"{run}: expected a run with env, found one that never acted")
    named = config.data.robot.adapter
    adapter = find_adapter(named, allow_code=allow_code == named)
    require_own_code(config.env, allow_code=allow_env == code_of(config.env))
    paths = find_rollouts(run, first_step)
    if fps is None:
        world = make(dataclasses.replace(config.env, initial_states=""), allow_code=allow_env == code_of(config.env))
        fps = world.fps
        world.close()
    done = "converted {count} of {total} rollouts"

    def episodes() -> Iterator[Recorded]:
        for path in follow(paths, len(paths), "converting", done, rate=None, say=print):
            yield recorded(load(path), config, path, adapter)

    made = {"made_by": "openpi_ript.convert: rollouts of a policy", "env": config.env.suite, "task": config.env.task}
    with new_folder(out) as scratch:
        write_lerobot(scratch, episodes(), fps=fps, robot=config.env.suite, provenance=made, names={})
    return len(paths)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(
        prog="python -m openpi_ript.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run with rounds of rollouts")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument("--first-step", type=int, default=0, metavar="N", help="rounds from this update on; default: 0")
    parser.add_argument("--fps", type=int, help="frames a second; by default the environment is asked")
    parser.add_argument("--allow-env", metavar="MODULE:FACTORY", help=f"{ALLOWED} of the run, that you trust")
    parser.add_argument("--allow-code", metavar="MODULE:FACTORY", help="data.robot.adapter of the run, that you trust")
    found = parser.parse_args(argv)
    try:
        if found.fps is not None and found.fps < 1:
            raise ConfigError(f"--fps is {found.fps}; expected at least 1")
        count = convert(
            found.run,
            found.out,
            first_step=found.first_step,
            fps=found.fps,
            allow_env=found.allow_env,
            allow_code=found.allow_code,
        )
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"wrote {count} episodes to {found.out}\nnext: python -m openpi_ript.inspect {found.out}, then train on it "
        f"with --data.path {found.out} --data.init-key {INITIAL_STATE}"
    )
    return 0


if __name__ == "__main__":
    command.run(main)
