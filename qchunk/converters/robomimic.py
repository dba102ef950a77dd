"""robomimic HDF5: one file, a group /data/demo_<i> for each episode.

  data/                     attribute env_args: JSON {env_name, env_type, env_kwargs}
    demo_<i>/               attribute num_samples: frames
      obs/<key>             [T, d] numbers, or [T, h, w, 3] uint8 images
      actions [T, a]  rewards [T]  dones [T]      (states, next_obs and the rest are left alone)
  mask/<filter key>         names of episodes

Source: https://robomimic.github.io/docs/datasets/overview.html. `dones` is 1 where the next state is a success
(done_mode 0), in the last frame (1), or both (2).
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import require_pixels
from chunkwise.data.problems import Problem, refuse
from chunkwise.errors import ConfigError, DataError, one_line
from chunkwise.files import budget
from chunkwise.files.strict_json import parse_json
from qchunk.converters.hdf5_arrays import read_flags, read_numbers
from qchunk.converters.recording import (
    ConvertSettings,
    Images,
    Reading,
    Recording,
    as_float32,
    check_arrays,
    concatenate,
)
from qchunk.data.conventions import SUCCESS_REWARD, ends_by_rewards, terminations
from qchunk.data.readers.aloha import natural_order
from qchunk.data.readers.hdf5 import (
    HERE,
    UNREADABLE,
    Refused,
    members,
    read_attribute,
    read_texts,
    require_affordable,
    require_readable,
    resolve,
)

DEFAULT_KEYS = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""Low-dimensional keys of robomimic's published configs for one arm."""
LONGEST_NAME = 255
"""Characters of an episode's name, which becomes part of names of files and messages."""
_FRAMES_READ = 64  # images read at a time


class RobomimicReader:
    """Reads one robomimic file; a Reader."""

    def __init__(self, path: Path, settings: ConvertSettings) -> None:
        """Opens the file and lists its episodes.

        Raises:
          DataError: It is no robomimic file, or its env_args or mask are bad.
          ConfigError: The filter key or a camera is not in it.
        """
        self._name, self._settings = path.name, settings
        self._keys = settings.observation_keys or DEFAULT_KEYS
        try:
            budget.regular(path)
            self._file = h5py.File(path, "r")
            self._all_demos = members(self._file, "data")
        except (*UNREADABLE, Refused) as error:
            raise DataError(
                f"{path}: expected a whole HDF5 file with the group /data, found {one_line(error)}"
            ) from error
        if not self._all_demos:
            raise DataError(f"{path}: expected episodes /data/demo_<i>, found none; there are {sorted(self._file)}")
        try:
            self._env_args = _env_args(path.name, read_attribute(self._file["data"], "env_args"))
        except (*UNREADABLE, Refused) as error:
            raise DataError(f"{path}: /data, attribute env_args: {one_line(error)}") from error
        self._masks = self._read_masks()
        self._demos = self._choose()
        self._require_keys()
        self._cameras, self._left_out = self._choose_cameras()
        keys = [*(f"obs/{key}" for key in (*self._keys, *self._cameras)), "actions", "rewards", "dones"]
        names = [f"data/{demo}/{key}" for demo in self._demos for key in keys]
        require_affordable(self._file, names, streamed=True)

    def __len__(self) -> int:
        return len(self._demos)

    def describe(self) -> Mapping[str, Any]:
        return {
            "env_args": self._env_args,
            "observation_keys": list(self._keys),
            "cameras": self._cameras,
            "observations_left_out": self._left_out,
            "filter_keys": sorted(self._masks),
        }

    def close(self) -> None:
        self._file.close()

    def read(self, index: int) -> Reading:
        demo = self._demos[index]
        name = f"{self._name}/data/{demo}"
        group = f"data/{demo}"
        keys = [f"obs/{key}" for key in self._keys]
        columns = {"actions": read_numbers(self._file, "actions", name, group=group, vector=False)}
        columns |= {key: read_numbers(self._file, key, name, group=group, vector=False) for key in keys}
        columns |= {"rewards": read_numbers(self._file, "rewards", name, group=group, vector=True, needed=False)}
        columns |= {"dones": read_flags(self._file, "dones", name, group=group)}
        problems = [x for x in columns.values() if isinstance(x, Problem)]
        arrays = {key: x for key, x in columns.items() if not isinstance(x, Problem) and not _absent(key, x)}
        if "actions" in arrays:
            problems += check_arrays(name, {key: as_float32(x) for key, x in arrays.items()})
            problems += self._num_samples_problem(name, group, len(arrays["actions"]))
            problems += self._image_problems(name, group, len(arrays["actions"]))
        if problems:
            return Reading(recording=None, problems=tuple(problems))
        reward = arrays["rewards"].astype(np.float64) if "rewards" in arrays else None
        done = arrays.get("dones")
        terminated = None
        if reward is not None and done is not None:
            solved = bool(reward[-1] >= SUCCESS_REWARD)
            terminated = terminations(done, solved=solved, final_done=self._settings.final_done)
            last_alone = bool(done[-1]) and not done[:-1].any()
            if last_alone and self._settings.final_done == "time_limit" and self._ends_by_rewards:
                terminated = None
        filters = [key for key, demos in sorted(self._masks.items()) if demo in demos]
        attributes: dict[str, Any] = {"observation_keys": list(self._keys), "filter_keys": filters}
        if "env_name" in self._env_args:
            attributes["env"] = str(self._env_args["env_name"])
        recording = Recording(
            id=name,
            observation=concatenate([arrays[f"obs/{key}"] for key in self._keys]),
            action=as_float32(arrays["actions"]),
            reward=reward,
            terminated=terminated,
            attributes=attributes,
            images=self._images(group) if self._cameras else None,
        )
        return Reading(recording=recording)

    @functools.cached_property
    def _ends_by_rewards(self) -> bool:
        """See `ends_by_rewards`; of rewards that are bad, `read` tells."""
        found = [
            read_numbers(self._file, "rewards", demo, group=f"data/{demo}", vector=True, needed=False)
            for demo in self._demos
        ]
        return ends_by_rewards(x.astype(np.float64) for x in found if isinstance(x, np.ndarray) and x.size)

    def _read_masks(self) -> dict[str, list[str]]:
        masks: dict[str, list[str]] = {}
        problems = []
        for key in sorted(members(self._file, "mask")):
            try:
                dataset = resolve(self._file, f"mask/{key}")
                if dataset is None or len(dataset.shape) != 1:
                    raise Refused("a list of names", f"{dataset}")
                require_readable(dataset, kinds="SO")
                masks[key] = read_texts(dataset)
                unknown = [name for name in masks[key] if name not in self._all_demos]
                if unknown:
                    found = f"{unknown[:5]} ({len(unknown)} unknown)"
                    raise Refused("names of episodes under /data", found)
            except Refused as refused:
                problems.append(refused.problem(self._name, f"mask/{key}"))
        if problems:
            raise refuse(problems, "Repair the lists of episodes, or remove them.")
        return masks

    def _choose(self) -> list[str]:
        wanted = self._settings.filter_key
        if wanted is not None and wanted not in self._masks:
            raise ConfigError(f"{self._name}: there is no filter key {wanted!r}; /mask holds {sorted(self._masks)}")
        names = self._masks[wanted] if wanted is not None else self._all_demos
        if not names:
            raise DataError(f"{self._name}: expected episodes in /mask/{wanted}, found none")
        if strange := [name for name in names if len(name) > LONGEST_NAME or not name.isprintable()]:
            raise DataError(
                f"{self._name}/data: expected names of at most {LONGEST_NAME} printable characters, such as demo_0; "
                f"found {strange[0]!r:.80}"
            )
        return sorted(set(names), key=natural_order)

    def _observations(self, demo: str) -> list[str]:
        """Keys of an episode's observations; none where they cannot be read, which `read` reports."""
        try:
            return members(self._file, f"data/{demo}/obs")
        except Refused:
            return []

    def _require_keys(self) -> None:
        """Refuses keys that no episode has, in one line instead of one an episode."""
        found = {key for demo in self._demos for key in self._observations(demo)}
        if not found:
            raise DataError(
                f"{self._name}: expected /obs in each episode, found it in none: make them with robomimic's "
                "dataset_states_to_obs.py first"
            )
        unknown = [key for key in self._keys if key not in found]
        if unknown:
            raise ConfigError(
                f"{self._name}: no episode has the observations {unknown}; there are {sorted(found)}: choose with "
                "--observation-keys"
            )

    def _choose_cameras(self) -> tuple[dict[str, str], list[str]]:
        """Images to keep, key to name, and observations that are left out: those that any episode has.

        An episode without one of the images is bad, which `read` says.

        Raises:
          DataError: A link leads to one that may be a camera, in each episode that has it.
          ConfigError: A camera that was asked for is none.
        """
        observations, cameras, refused = set[str](), set[str](), dict[str, str]()
        for demo in self._demos:
            found = self._observations(demo)
            observations.update(found)
            for key in (key for key in found if key not in cameras):
                path = f"data/{demo}/obs/{key}"
                if (problem := self._elsewhere(path)) is not None:
                    refused.setdefault(key, f"{self._name}/{path}: {problem}")
                if self._is_camera(path):
                    cameras.add(key)
        asked = set(self._settings.cameras) or observations - set(self._keys)
        lost = [refused[key] for key in sorted(asked & refused.keys() - cameras)]
        if lost and self._settings.images != "none":
            raise DataError(*lost, "Put the data there, name other --camera, or leave images out with --images none")
        unknown = sorted(set(self._settings.cameras) - cameras)
        if unknown:
            raise ConfigError(f"{self._name}: there are no cameras {unknown}; it has {sorted(cameras)}")
        chosen = dict(self._settings.cameras) or {key: key for key in sorted(cameras)}
        if self._settings.images == "none":
            chosen = {}
        return chosen, sorted(observations - set(chosen) - set(self._keys))

    def _elsewhere(self, path: str) -> str | None:
        """What is wrong with a link that may lead to a camera's images; None where it does not, or there is none."""
        above, _, key = path.rpartition("/")
        try:
            resolve(self._file, path)
        except Refused as refused:
            if not refused.expected.startswith(HERE):
                return None
            group = self._file[above]
            link = group.get(key, getlink=True) if isinstance(group, h5py.Group) else None
            if isinstance(link, h5py.SoftLink):  # followed here alone, to see whether anything is lost
                target = link.path if link.path.startswith("/") else f"{above}/{link.path}"
                seems = self._is_camera(target)
            else:
                seems = key in self._settings.cameras or "image" in key or "rgb" in key
            return f"expected {refused.expected}, found {refused.found}" if seems else None
        return None

    def _is_camera(self, path: str) -> bool:
        try:
            dataset = resolve(self._file, path)
        except Refused:
            return False
        return dataset is not None and dataset.dtype == np.uint8 and len(dataset.shape) == 4 and dataset.shape[3] == 3

    def _image_problems(self, name: str, group: str, length: int) -> list[Problem]:
        problems = []
        for key in self._cameras:
            try:
                dataset = resolve(self._file, f"{group}/obs/{key}")
                if dataset is None or not self._is_camera(f"{group}/obs/{key}") or len(dataset) != length:
                    found = "none" if dataset is None else f"{dataset.dtype} {dataset.shape}"
                    raise Refused(f"uint8 ({length}, h, w, 3)", found)
                require_readable(dataset)
                require_pixels(dataset.shape[1], dataset.shape[2], f"{name}/obs/{key}")
            except Refused as refused:
                problems.append(refused.problem(name, f"obs/{key}"))
            except UNREADABLE as error:
                problems.append(Refused("readable data", one_line(error)).problem(name, f"obs/{key}"))
        return problems

    def _num_samples_problem(self, name: str, group: str, length: int) -> list[Problem]:
        expected = f"{length}, the rows of actions"
        try:
            said = read_attribute(self._file[group], "num_samples")
        except (*UNREADABLE, Refused) as error:
            said = one_line(error)
        if said is None or said == length:
            return []
        return [Problem(file=name, key="attribute num_samples", expected=expected, found=f"{said}")]

    def _images(self, group: str) -> Images:
        def frames() -> Iterator[Mapping[str, UInt8[np.ndarray, "h w 3"]]]:
            datasets: dict[str, Any] = {name: self._file[f"{group}/obs/{key}"] for key, name in self._cameras.items()}
            length = len(next(iter(datasets.values())))
            for start in range(0, length, _FRAMES_READ):
                try:
                    block = {name: x[start : start + _FRAMES_READ] for name, x in datasets.items()}
                except UNREADABLE as error:
                    where = f"{self._name}/{group}/obs, rows {start} on"
                    raise DataError(f"{where}: expected readable images, found {one_line(error)}") from error
                for i in range(len(next(iter(block.values())))):
                    yield {name: np.asarray(x[i]) for name, x in block.items()}

        return frames


def _env_args(name: str, text: Any) -> dict[str, Any]:
    if text is None:
        return {}
    found = parse_json(text.decode() if isinstance(text, bytes) else str(text), source=f"{name}/data, env_args")
    if not isinstance(found, dict):
        raise DataError(f"{name}/data: expected the attribute env_args to be a JSON object, found {found!r:.80}")
    return found


def _absent(key: str, x: np.ndarray) -> bool:
    """Whether an array that may be missing is."""
    return key in ("rewards", "dones") and not len(x)
