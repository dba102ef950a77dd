"""Cases: pipes, sockets and devices where files should be."""

import os
import socket
from pathlib import Path

from tests.bombs import Command, case
from tests.bombs.hdf5 import good_episode
from tests.bombs.programs import driving_validate, openpi_inspect, qchunk_convert, qchunk_inspect, train
from tests.driving.drives import write_drive
from tests.lerobot_files import CAMERAS, record, write_v21


def pipe(path: Path) -> None:
    """Puts a FIFO in a file's place: opening it waits for a writer that never comes."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@case
def pipe_as_episode(folder: Path) -> Command:
    """A FIFO named episode_1.hdf5."""
    good_episode(folder / "episode_0.hdf5").close()
    pipe(folder / "episode_1.hdf5")
    return qchunk_inspect(folder)


@case
def pipe_as_episode_in_training(folder: Path) -> Command:
    """The same, in training."""
    good_episode(folder / "episode_0.hdf5").close()
    pipe(folder / "episode_1.hdf5")
    return train("qchunk", folder)


@case
def pipe_as_npz(folder: Path) -> Command:
    """A FIFO named play.npz."""
    pipe(folder / "play.npz")
    return qchunk_inspect(folder / "play.npz")


@case
def pipe_as_source(folder: Path) -> Command:
    """A FIFO that is to be converted."""
    pipe(folder / "demo.hdf5")
    return qchunk_convert(folder / "demo.hdf5")


@case
def pipe_as_drive(folder: Path) -> Command:
    """A FIFO named a.json."""
    pipe(folder / "a.json")
    return driving_validate(folder)


@case
def pipe_as_drive_in_training(folder: Path) -> Command:
    """The same, in training."""
    pipe(folder / "a.json")
    return train("driving", folder)


@case
def pipe_as_image(folder: Path) -> Command:
    """A FIFO named as an image."""
    write_drive(folder, "a", frames=4)
    pipe(sorted((folder / "a_images").glob("*.jpg"))[0])
    return driving_validate(folder)


@case
def pipe_as_info(folder: Path) -> Command:
    """A FIFO named meta/info.json."""
    root = write_v21(folder / "data", record((7,)), "video")
    pipe(root / "meta" / "info.json")
    return openpi_inspect(root)


@case
def pipe_as_episodes(folder: Path) -> Command:
    """A FIFO named meta/episodes.jsonl."""
    root = write_v21(folder / "data", record((7,)), "video")
    pipe(root / "meta" / "episodes.jsonl")
    return openpi_inspect(root)


@case
def pipe_as_table(folder: Path) -> Command:
    """A FIFO named as a parquet file."""
    root = write_v21(folder / "data", record((7,)), "video")
    pipe(next((root / "data").glob("*/*.parquet")))
    return openpi_inspect(root)


@case
def pipe_as_video(folder: Path) -> Command:
    """A FIFO named as an mp4."""
    root = write_v21(folder / "data", record((7,)), "video")
    pipe(next((root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4")))
    return openpi_inspect(root)


@case
def pipe_as_video_in_training(folder: Path) -> Command:
    """The same, in training."""
    root = write_v21(folder / "data", record((7,)), "video")
    pipe(next((root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4")))
    return train("openpi_ript", root)


@case
def socket_as_episode(folder: Path) -> Command:
    """A socket named episode_0.hdf5."""
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(folder)  # a socket's path has at most 107 bytes
        try:
            one.bind("episode_0.hdf5")
        finally:
            os.chdir(before)
    return qchunk_inspect(folder)


@case
def link_to_an_endless_device(folder: Path) -> Command:
    """A link to /dev/zero named play.npz."""
    (folder / "play.npz").symlink_to("/dev/zero")
    return qchunk_inspect(folder / "play.npz")
