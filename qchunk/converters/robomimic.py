"""robomimic HDF5: one file, a group /data/demo_<i> for each episode.

  data/                     attribute env_args: JSON {env_name, env_type, env_kwargs}
    demo_<i>/               attribute num_samples: frames
      obs/<key>             [T, d] numbers, or [T, h, w, 3] uint8 pictures
      actions [T, a]  rewards [T]  dones [T]      (states, next_obs and the rest are left alone)
  mask/<filter key>         names of episodes

Source: https://robomimic.github.io/docs/datasets/overview.html. `dones` is 1 where the next state is a success
(done_mode 0), in the last frame (1), or both (2).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import UInt8

from core.errors import ConfigError, DataError
from core.strict_json import parse_json
from qchunk.converters.hdf5_arrays import UNREADABLE, find, read_flags, read_numbers
from qchunk.converters.recording import (
    SUCCESS_REWARD,
    ConvertSettings,
    Pictures,
    Reading,
    Recording,
    as_float32,
    check_arrays,
    concatenate,
    terminations,
)
from qchunk.sources.report import Problem, refuse

DEFAULT_KEYS = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""Low-dimensional keys of robomimic's published configs for one arm."""
_FRAMES_READ = 64  # pictures read at a time


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
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise DataError(f"{path}: expected a whole HDF5 file; found {' '.join(str(error).split())}") from error
        data = find(self._file, "data", path.name)
        if not isinstance(data, h5py.Group):
            raise DataError(f"{path}: expected a robomimic file with the group /data; found {sorted(self._file)}")
        self._data = data
        self._env_args = _env_args(path.name, data)
        self._masks = self._read_masks()
        self._demos = self._choose()
        self._require_keys()
        self._cameras, self._left_out = self._choose_cameras()

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
        group = find(self._data, demo, self._name)
        if not isinstance(group, h5py.Group):
            problem = Problem(file=name, dataset="", row=None, expected="a group", found=f"{group}")
            return Reading(recording=None, problems=(problem,))
        columns = {"actions": read_numbers(group, "actions", name, vector=False)}
        columns |= {f"obs/{key}": read_numbers(group, f"obs/{key}", name, vector=False) for key in self._keys}
        columns |= {"rewards": read_numbers(group, "rewards", name, vector=True, needed=False)}
        columns |= {"dones": read_flags(group, "dones", name)}
        problems = [x for x in columns.values() if isinstance(x, Problem)]
        arrays = {key: x for key, x in columns.items() if not isinstance(x, Problem) and not _absent(key, x)}
        if "actions" in arrays:
            problems += check_arrays(name, {key: as_float32(x) for key, x in arrays.items()})
            problems += _num_samples_problem(name, group, len(arrays["actions"]))
            problems += self._picture_problems(name, group, len(arrays["actions"]))
        if problems:
            return Reading(recording=None, problems=tuple(self._with_hint(group, problems)))
        reward = arrays["rewards"].astype(np.float64) if "rewards" in arrays else None
        done = arrays.get("dones")
        terminated = None
        if reward is not None and done is not None:
            solved = bool(reward[-1] >= SUCCESS_REWARD)
            terminated = terminations(done, solved=solved, final_done=self._settings.final_done)
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
            pictures=self._pictures(group) if self._cameras else None,
        )
        return Reading(recording=recording)

    def _read_masks(self) -> dict[str, list[str]]:
        group = find(self._file, "mask", self._name)
        masks: dict[str, list[str]] = {}
        problems = []
        if not isinstance(group, h5py.Group):
            return masks
        for key in sorted(group):
            node = find(group, key, f"{self._name}/mask")
            if isinstance(node, h5py.Dataset) and node.dtype.kind in "SO" and len(node.shape) == 1:
                masks[key] = [name.decode() if isinstance(name, bytes) else str(name) for name in node[()]]
                unknown = [name for name in masks[key] if name not in self._data]
                expected, found = "names of episodes under /data", f"{unknown[:5]} ({len(unknown)} unknown)"
            else:
                unknown, expected, found = [key], "a list of names", f"{node}"
            if unknown:
                problems.append(
                    Problem(file=self._name, dataset=f"mask/{key}", row=None, expected=expected, found=found)
                )
        if problems:
            raise refuse(problems, "Repair the lists of episodes, or remove them.")
        return masks

    def _choose(self) -> list[str]:
        wanted = self._settings.filter_key
        if wanted is not None and wanted not in self._masks:
            raise ConfigError(f"{self._name}: there is no filter key {wanted!r}; /mask holds {sorted(self._masks)}")
        names = self._masks[wanted] if wanted is not None else list(self._data)
        if not names:
            raise DataError(f"{self._name}: expected episodes /data/demo_<i>; found none")
        return sorted(set(names), key=lambda name: [int(n) if n.isdigit() else -1 for n in re.split(r"(\d+)", name)])

    def _require_keys(self) -> None:
        """Refuses keys that no episode has, in one line instead of one an episode."""
        found: set[str] = set()
        for demo in self._demos:
            node = find(self._data, f"{demo}/obs", self._name)
            found |= set(node) if isinstance(node, h5py.Group) else set()
        if not found:
            raise DataError(
                f"{self._name}: expected /obs in each episode; found it in none: make them with robomimic's "
                "dataset_states_to_obs.py first"
            )
        unknown = [key for key in self._keys if key not in found]
        if unknown:
            raise ConfigError(
                f"{self._name}: no episode has the observations {unknown}; there are {sorted(found)}: choose with "
                "--observation-keys"
            )

    def _choose_cameras(self) -> tuple[dict[str, str], list[str]]:
        """Pictures to keep, key to name, and observations that are left out; judged by the first episode."""
        found = find(self._data, f"{self._demos[0]}/obs", self._name)
        observations = found if isinstance(found, h5py.Group) else {}
        cameras = [key for key, x in observations.items() if isinstance(x, h5py.Dataset) and _is_camera(x)]
        unknown = sorted(set(self._settings.cameras) - set(cameras))
        if unknown:
            raise ConfigError(f"{self._name}: there are no cameras {unknown}; it has {sorted(cameras)}")
        chosen = dict(self._settings.cameras) or {key: key for key in sorted(cameras)}
        if self._settings.images == "none":
            chosen = {}
        return chosen, sorted(set(observations) - set(chosen) - set(self._keys))

    def _picture_problems(self, name: str, group: h5py.Group, length: int) -> list[Problem]:
        problems = []
        for key in self._cameras:
            node = find(group, f"obs/{key}", name)
            if isinstance(node, Problem):
                problems.append(node)
                continue
            good = isinstance(node, h5py.Dataset) and _is_camera(node) and len(node) == length
            if not good:
                found = f"{node.dtype} {node.shape}" if isinstance(node, h5py.Dataset) else f"{node}"
                expected = f"uint8 ({length}, h, w, 3)"
                problems.append(Problem(file=name, dataset=f"obs/{key}", row=None, expected=expected, found=found))
        return problems

    def _with_hint(self, group: h5py.Group, problems: list[Problem]) -> Iterator[Problem]:
        """Adds to a missing observation what there is instead."""
        node = find(group, "obs", self._name)
        there = f"none; there are {sorted(node)}" if isinstance(node, h5py.Group) else "no /obs in this episode"
        for problem in problems:
            missing = problem.dataset.startswith("obs/") and problem.found == "none"
            yield (
                Problem(file=problem.file, dataset=problem.dataset, row=None, expected=problem.expected, found=there)
                if missing
                else problem
            )

    def _pictures(self, group: h5py.Group) -> Pictures:
        def frames() -> Iterator[Mapping[str, UInt8[np.ndarray, "h w 3"]]]:
            datasets: dict[str, Any] = {name: group[f"obs/{key}"] for key, name in self._cameras.items()}
            length = len(next(iter(datasets.values())))
            for start in range(0, length, _FRAMES_READ):
                try:
                    block = {name: x[start : start + _FRAMES_READ] for name, x in datasets.items()}
                except UNREADABLE as error:
                    reason = " ".join(str(error).split())
                    where = f"{self._name}{group.name}/obs"
                    raise DataError(f"{where}, rows {start} on: expected readable pictures; found {reason}") from error
                for i in range(len(next(iter(block.values())))):
                    yield {name: np.asarray(x[i]) for name, x in block.items()}

        return frames


def _env_args(name: str, data: h5py.Group) -> dict[str, Any]:
    text = data.attrs.get("env_args")
    if text is None:
        return {}
    found = parse_json(text.decode() if isinstance(text, bytes) else str(text), source=f"{name}/data, env_args")
    if not isinstance(found, dict):
        raise DataError(f"{name}/data: expected the attribute env_args to be a JSON object; found {found!r:.80}")
    return found


def _absent(key: str, x: np.ndarray) -> bool:
    """Whether an array that may be missing is."""
    return key in ("rewards", "dones") and not len(x)


def _is_camera(x: h5py.Dataset) -> bool:
    return x.dtype == np.uint8 and len(x.shape) == 4 and x.shape[3] == 3


def _num_samples_problem(name: str, group: h5py.Group, length: int) -> list[Problem]:
    said = group.attrs.get("num_samples")
    if said is None or int(said) == length:
        return []
    expected = f"{length}, the rows of actions"
    return [Problem(file=name, dataset="attribute num_samples", row=None, expected=expected, found=f"{said}")]
