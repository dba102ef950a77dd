"""Writes transfers of the cube as ALOHA's own tools write episodes, 50 frames a second; frame T of each array:

  /observations/qpos           float32  joints of the left arm (6, rad), its gripper (0 closed to 1 open), the right's
  /observations/qvel           float32  their velocities, per second
  /observations/state          float32  qpos, and the cube's position (m) and quaternion
  /observations/images/<name>  uint8    a JPEG a row, padded with zeros to the longest; attribute compress = True
  /compress_len                float64  bytes of each JPEG, by camera and frame; the cameras in alphabetical order
  /action                      float32  joint positions that were commanded, in the order of qpos
  /reward                      float32  stage / 4 - 1, where the stage is gym-aloha's reward of 0 to 4
  /terminated                  bool     true where the task was done

A success lies in the folder score_<success_score>, a failure in score_<failure_score>. Root attributes: sim, compress,
success, env, fps, seed, source, noise (m).
"""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import encode_jpeg
from chunkwise.envs.environment import EnvSpec
from chunkwise.errors import ConfigError
from chunkwise.files.aloha_hdf5 import COMPRESS_LEN, padded_rows
from chunkwise.files.durable import make_folders, scratch_file
from qchunk.config import RecordConfig
from qchunk.envs import aloha
from qchunk.envs.transfer_cube import Transfer, transfer


def open_recorder(config: RecordConfig) -> Callable[[int, Path], None]:
    """Makes the environment, and returns what plays an episode into a file.

    Raises:
      ConfigError: If the simulator is not installed, a camera does not exist, or the machine cannot render.
    """
    if config.episode_length > aloha.EPISODE_LENGTH:
        raise ConfigError(
            f"record.episode_length is {config.episode_length}; expected at most {aloha.EPISODE_LENGTH}, "
            f"the length of an episode of {aloha.NAME} (300 is enough for the script)"
        )
    spec = EnvSpec(suite="aloha", cameras=config.aloha.cameras, image_size=config.aloha.image_size)
    env = aloha.TransferCube(spec)
    env.reset(0)
    env.images()

    def record(episode: int, path: Path) -> None:
        write(path, transfer(env, config, episode), config)

    return record


def write(path: Path, episode: Transfer, config: RecordConfig) -> None:
    """Writes an episode under the name of `path` in its score's folder; it appears there when it is whole."""
    score = config.aloha.success_score if episode.success else config.aloha.failure_score
    folder = path.parent / f"score_{score}"
    make_folders(folder)
    with scratch_file(folder / path.name) as part, h5py.File(part, "w") as file:
        for name, values in episode.arrays.items():
            file.create_dataset(name, data=values, chunks=values.shape, fletcher32=True)
        _write_images(file, episode.images, config.aloha.jpeg_quality)
        file.attrs.update(
            sim=True,
            compress=bool(episode.images),
            success=episode.success,
            env=config.env,
            fps=aloha.TransferCube.fps,
            seed=config.seed,
            source="scripted transfer",
            noise=episode.noise,
        )


def _write_images(file: h5py.File, images: dict[str, list[UInt8[np.ndarray, "h w 3"]]], quality: int) -> None:
    """JPEG rows of each camera, and their lengths."""
    lengths = []
    for camera in sorted(images):
        padded, length = padded_rows([encode_jpeg(image, quality=quality) for image in images[camera]])
        lengths.append(length)
        stored = file.create_dataset(
            f"/observations/images/{camera}", data=padded, chunks=(1, padded.shape[1]), fletcher32=True
        )
        stored.attrs["compress"] = True
    if lengths:
        file.create_dataset(COMPRESS_LEN, data=np.array(lengths, np.float64))
