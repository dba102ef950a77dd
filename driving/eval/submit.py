"""Writes what Waymo's end-to-end challenge takes: a run's waypoints at the last frame of every test segment.

    python -m driving.eval.submit RUN OUT.tar.gz --account EMAIL --method NAME

The run's dataset was converted with --format waymo_e2e, its test segments among the others; or --data says where they
are. Test segments are those whose source.split is a word for a test (test, TESTING, v1.0-test), whatever _split.json
holds. The run's waypoints reach 5 s; at other rates than 4 Hz they are interpolated.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from chunkwise.checkpoint.weights import read_weights
from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.config.saved import read_config
from chunkwise.data.shards import is_pack
from chunkwise.errors import ConfigError, DataError, NonFiniteError, RunError
from chunkwise.files.durable import write_durably
from chunkwise.files.place import prepare_place, told_place
from chunkwise.files.strict_json import read_json
from chunkwise.printable import say
from chunkwise.train import rngs
from driving import evaluate
from driving.config import DrivingConfig
from driving.data.batches import DrivingData, open_data
from driving.data.rater import RATE_HZ, TIMES_S, at_rate, reaches
from driving.data.split import side_of_word
from driving.eval.submission import About, archive, submission
from driving.tasks import waypoints

ENDING = ".tar.gz"


def submit(run: Path, out: Path, about: About, *, data: str | None = None) -> int:
    """Writes the archive; returns how many segments are in it.

    Raises:
      ConfigError: The run learnt no waypoints, or they end before 5 s; or the archive's name ends otherwise, or what is
        said of the method is no text.
      DataError: There is no whole checkpoint, the dataset is bad or has no test segments, or says no frame's name, or
        one twice.
      NonFiniteError: The run's waypoints are NaN or infinite.
      StorageError: Nothing can be written there; found before the run is opened.
    """
    if not out.name.endswith(ENDING):
        raise ConfigError(f"{out}: expected a name that ends in {ENDING}")
    if out.name == ENDING:
        raise ConfigError(f"{out}: expected a name before {ENDING}, which the archive's folder has")
    for name, value in dataclasses.asdict(about).items():
        for text in (value,) if isinstance(value, str) else value:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{name} is {text!r}: expected text in UTF-8; mind the terminal's locale") from error
    prepare_place(out, "OUT")
    config = read_config(run, DrivingConfig)
    if config.waypoints is None:
        raise ConfigError(f"{run}: expected a run that learnt waypoints, found a pretraining")
    if data is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=data))
    steps, dt_s = config.data.waypoint_steps, config.data.waypoint_dt_s
    if not reaches(steps, dt_s):
        wanted = f"--data.waypoint-steps {round(max(TIMES_S) * RATE_HZ)} --data.waypoint-dt-s {1 / RATE_HZ:g}"
        raise ConfigError(f"{run}: its waypoints end after {steps * dt_s:g} s, expected 5; train with {wanted}")
    step, params = read_weights(run, config, lambda: waypoints.init_params(config, rngs.key(0, "init")))
    opened = open_data(config.data, "all")
    test = np.flatnonzero([side_of_word(split) == "test" for split in opened.index.splits])
    if not len(test):
        stated = sorted(set(opened.index.splits))
        raise DataError(
            f"{config.data.path}: source.split: expected test segments, by a word such as 'test', found "
            f"{stated[:5]} in {len(opened.index.ids)} episode(s); say with --data where they are"
        )
    rows = opened.index.starts[test] + opened.index.lengths[test] - 1
    names = _names(opened, test.tolist())
    predicted = evaluate.predict(config, params, opened, rows)
    if len(wrong := np.flatnonzero(~np.isfinite(predicted).all(axis=(1, 2)))):
        raise NonFiniteError(
            f"{run}: at step {step} its waypoints at {names[wrong[0]]} are not finite, as those at {len(wrong)} of "
            f"{len(names)} frames; submit a run whose loss is finite"
        )
    places = [at_rate(one.astype(np.float64), dt_s) for one in predicted]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    message = submission(dict(zip(names, places, strict=True)), about, parameters=parameters)
    with told_place(out, "OUT"):
        write_durably(out, archive(message, out.name.removesuffix(ENDING)))
    return len(names)


def _names(data: DrivingData, episodes: Sequence[int]) -> list[str]:
    """The source's name of each episode's last frame. Raises DataError where two have one."""
    names: dict[str, int] = {}
    for episode in episodes:
        name = _name(data, episode)
        if name in names:
            file, other = (data.index.files[of] for of in (episode, names[name]))
            raise DataError(
                f"{data.config.path}: expected each test segment once, found the frame {name} at the end of {other} "
                f"and of {file}; remove one of them"
            )
        names[name] = episode
    return list(names)


def _name(data: DrivingData, episode: int) -> str:
    """The source's name of an episode's last frame."""
    path = Path(data.config.path)
    if is_pack(path):
        raise DataError(f"{path}: a pack keeps no names of frames; say --data and the episodes that it was made of")
    file = path / data.index.files[episode]
    name = read_json(file)["frames"][-1].get("name")
    if not name:
        raise DataError(
            f"{file}: frames[-1].name: expected the name that Waymo gives the frame, found none; convert anew"
        )
    return name


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(
        prog="python -m driving.eval.submit",
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run that learnt waypoints of 5 s")
    parser.add_argument("out", type=Path, metavar="OUT", help=f"archive to write, NAME{ENDING}")
    parser.add_argument("--data", help="folder of the converted test segments; default: the run's dataset")
    parser.add_argument("--account", required=True, help="address registered at waymo.com/open")
    parser.add_argument("--method", required=True, help="unique name of the method")
    parser.add_argument("--author", action="append", default=[], help="may be repeated")
    parser.add_argument("--affiliation", default="", help="of the authors")
    parser.add_argument("--description", default="", help="of the method")
    parser.add_argument("--link", default="", help="to a paper")
    words = "public language or vision model that was pretrained with; may be repeated"
    parser.add_argument("--public-model", action="append", default=[], help=words)
    args = parser.parse_args(argv)
    about = About(
        account_name=args.account,
        unique_method_name=args.method,
        authors=args.author,
        affiliation=args.affiliation,
        description=args.description,
        method_link=args.link,
        public_model_names=args.public_model,
    )
    try:
        count = submit(args.run, args.out, about, data=args.data)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    say(f"wrote {count} trajectories into {args.out}")
    return 0


if __name__ == "__main__":
    command.run(main)
