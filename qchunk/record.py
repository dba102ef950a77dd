"""Records episodes with scripted policies: OGBench's oracles at play (play.py), ALOHA's transfer cube (aloha_hdf5.py).

    python -m qchunk.record --env cube-single-v0 --episodes 100 --path data/cube-single
    python -m qchunk.record --env aloha-transfer-cube --episodes 50 --episode-length 300 --path data/aloha

One HDF5 file an episode, `episode_<i:05d>.hdf5`; what is in it stands in those two modules. The folder also holds
`dataset.json`, what made it, which is called `recording.json` until the last episode is there.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from chunkwise.cli import command as cli
from chunkwise.config.experiment import FleetConfig
from chunkwise.envs import recorder
from chunkwise.envs.recorder import MetadataFiles, Recorder
from chunkwise.errors import ConfigError
from qchunk.config import RecordConfig
from qchunk.envs import aloha, aloha_hdf5, play

MADE_BY = "qchunk.record"
METADATA = MetadataFiles(unfinished="recording.json", finished="dataset.json")


def record(
    config: RecordConfig,
    path: str | Path,
    *,
    report: Callable[[str], None] = print,
    fleet: FleetConfig | None = None,
    begun: bool = False,
) -> None:
    """Records the episodes that `path` lacks; a dataset that is complete is left as it is.

    Episode e is a function of (config.seed, e) and appears under its name only when it is whole, so that a recording
    that was killed goes on with exactly the missing episodes and ends with the same files.

    Args:
      config: What to record, and with how many processes.
      path: Folder of the dataset; made if missing.
      report: Takes one line of text at the start, at the end, and every 10 s where there is no terminal.
      fleet: A Ray cluster on which the processes run; None: this machine.
      begun: Whether it is for a run that goes on, which compares the files of a complete dataset itself.

    Raises:
      ConfigError: If the folder holds another recording (the message names the field) or other episodes, the
        environment is unknown, or the simulator is not installed.
      BusyError: If another process records into the folder.
      StorageError: If an episode could not be written.
      PreemptedError: On SIGTERM.
      RunError: If a worker process died.
    """
    path = Path(path)
    if not (path / "dataset.json").exists():  # a wrong name must fail here, before a folder is made and workers start
        open_recorder(config)
    recorder.record(_dataset(config, path), path, report=report, fleet=fleet, begun=begun)


def episode_path(path: Path, episode: int) -> Path:
    """File of one episode; of aloha-transfer-cube in a folder score_<n> of `path`."""
    return path / f"episode_{episode:05d}.hdf5"


def open_recorder(config: RecordConfig) -> Callable[[int, Path], None]:
    """Makes the environment, and returns what plays an episode into a file.

    Raises:
      ConfigError: If nothing can be recorded in that environment, or the simulator is not installed.
    """
    if config.env == aloha.NAME:
        if config.directed.task:
            raise ConfigError(
                f"record.directed is for OGBench's play; record.env is {aloha.NAME}, whose script has one task"
            )
        return aloha_hdf5.open_recorder(config)
    return play.open_recorder(config)


def steps_per_second(config: RecordConfig) -> float:
    """Of one process on one core, for the estimate at the start."""
    if config.env == aloha.NAME:
        return 1 / (0.001 + 0.04 * len(config.aloha.cameras))
    return 750.0


def _open(config: RecordConfig, path: Path) -> Recorder:
    """A worker's recorder."""
    play_into = open_recorder(config)
    return lambda episode: play_into(episode, episode_path(path, episode))


def _dataset(config: RecordConfig, path: Path) -> recorder.Dataset:
    """What is recorded. Settings of the other simulator change no episode."""
    of_aloha = config.env == aloha.NAME
    unread = {"processes", *(("noise", "random_action", "directed") if of_aloha else ("aloha",))}

    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in unread}
    if not config.directed.task and not of_aloha:
        settings["directed"] = None  # as in a recording made before there was such a field

    def missing() -> list[int]:
        for part in path.rglob("*.part"):
            part.unlink()
        there = {file.name for file in path.rglob("episode_*.hdf5")}
        return [e for e in range(config.episodes) if episode_path(path, e).name not in there]

    return recorder.Dataset(
        made_by=MADE_BY,
        metadata=METADATA,
        packages=("gym-aloha" if of_aloha else "ogbench", "mujoco"),
        settings=settings,
        episodes=config.episodes,
        processes=config.processes,
        missing=missing,
        opener=functools.partial(_open, config, path),
        words=f"episodes of {config.env}, {config.episode_length} steps each",
        holds=(float(config.episode_length), "transitions"),
        per_second=steps_per_second(config),
    )


def main() -> int:
    """Command line."""
    return recorder.command_line(
        RecordConfig,
        record,
        "python -m qchunk.record",
        "Record episodes with scripted policies. A recording that was stopped goes on where it was.",
    )


if __name__ == "__main__":
    cli.run(main)
