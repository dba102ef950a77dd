"""D4RL-style HDF5: all episodes one after another in flat arrays.

  observations [N, s]  actions [N, a]  rewards [N]  terminals [N]  timeouts [N]  next_observations [N, s]

The last two are not in every file; metadata/ and infos/ are left alone. An episode ends after a row with `terminals` or
`timeouts`, and where `next_observations` is not the observation of the next row: recordings of the gym locomotion tasks
have seams that no flag marks. A termination is a `terminals` row alone. Rows after the last end are an episode that was
cut off. Source: arXiv:2004.07219 and https://github.com/Farama-Foundation/D4RL.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.data.problems import Problem, refuse
from chunkwise.errors import ConfigError, DataError, one_line
from qchunk.converters.hdf5_arrays import read_flags, read_numbers
from qchunk.converters.recording import ConvertSettings, Reading, Recording, as_float32, check_arrays
from qchunk.data.readers.hdf5 import UNREADABLE, open_h5, require_affordable
from qchunk.data.readers.ogbench import SEAM_DISTANCE, distance

_ARRAYS = ("actions", "observations", "rewards", "next_observations", "terminals", "timeouts")


class D4rlReader:
    """Reads one D4RL-style file whole; a Reader."""

    def __init__(self, path: Path, settings: ConvertSettings) -> None:
        """Reads the arrays and cuts them into episodes.

        Raises:
          DataError: An array is missing, damaged or of another length: every problem in one message. Or the next
            observations are of other rows.
          ConfigError: Nothing in the file or the settings says where episodes end.
        """
        self._name = path.name
        arrays, problems = _read(path)
        if problems:
            raise refuse(problems, "Repair the file: without these arrays it cannot be cut into episodes.")
        self._arrays = arrays
        self._seams = _seams(self._name, arrays, settings.max_episode_steps)
        ends = np.flatnonzero(self._seams["all"]) + 1
        rows = len(arrays["actions"])
        self._ends = ends.tolist() if len(ends) and ends[-1] == rows else [*ends.tolist(), rows]

    def __len__(self) -> int:
        return len(self._ends)

    def describe(self) -> Mapping[str, Any]:
        counts = {f"ends_by_{key}": int(seam.sum()) for key, seam in self._seams.items() if key != "all"}
        return {**counts, "unfinished_last_episode": not bool(self._seams["all"][-1])}

    def close(self) -> None:
        self._arrays.clear()

    def read(self, index: int) -> Reading:
        first, end = self._ends[index - 1] if index else 0, self._ends[index]
        name = f"{self._name} rows {first} to {end - 1}"
        episode = {
            key: x[first:end] for key, x in self._arrays.items() if key in ("actions", "observations", "rewards")
        }
        problems = check_arrays(name, {key: as_float32(x) for key, x in episode.items()}, row=first)
        if problems:
            return Reading(recording=None, problems=tuple(problems))
        recording = Recording(
            id=name,
            observation=as_float32(episode["observations"]),
            action=as_float32(episode["actions"]),
            reward=episode["rewards"].astype(np.float64),
            terminated=self._arrays["terminals"][first:end],
            attributes={"observation_keys": ["observations"]},
        )
        return Reading(recording=recording)


def _read(path: Path) -> tuple[dict[str, np.ndarray], list[Problem]]:
    """Arrays by name, and what keeps them from being used."""
    name = path.name
    try:
        with open_h5(path) as h5:
            require_affordable(h5, _ARRAYS)
            found = {
                "actions": read_numbers(h5, "actions", name, vector=False),
                "observations": read_numbers(h5, "observations", name, vector=False),
                "rewards": read_numbers(h5, "rewards", name, vector=True),
                "next_observations": read_numbers(h5, "next_observations", name, vector=False, needed=False),
                "terminals": read_flags(h5, "terminals", name),
                "timeouts": read_flags(h5, "timeouts", name),
            }
    except UNREADABLE as error:
        raise DataError(f"{path}: expected a whole HDF5 file, found {one_line(error)}") from error
    problems = [x for x in found.values() if isinstance(x, Problem)]
    optional = ("next_observations", "timeouts")
    arrays = {k: x for k, x in found.items() if not isinstance(x, Problem) and (len(x) or k not in optional)}
    if "actions" in arrays:
        rows = len(arrays["actions"])
        if not rows:
            problems.append(Problem(file=name, key="actions", expected="at least 1 row", found="none"))
        problems += [
            Problem(file=name, key=key, row=min(len(x), rows), expected=f"{rows} rows", found=f"{len(x)} rows")
            for key, x in arrays.items()
            if len(x) != rows
        ]
    seen, following = arrays.get("observations"), arrays.get("next_observations")
    if seen is not None and not seen.shape[1]:
        problems.append(Problem(file=name, key="observations", expected="at least one number a row", found="none"))
    if seen is not None and following is not None and following.shape[1:] != seen.shape[1:]:
        expected, found = f"rows of {seen.shape[1]} numbers as observations", f"rows of {following.shape[1]}"
        problems.append(Problem(file=name, key="next_observations", expected=expected, found=found))
    if following is not None:
        problems += check_arrays(name, {"next_observations": as_float32(following)})
    return arrays, problems


def _seams(
    name: str, arrays: Mapping[str, np.ndarray], max_episode_steps: int | None
) -> dict[str, Bool[np.ndarray, " N"]]:
    """Rows after which an episode ends, by reason; `all` is their union."""
    terminals = arrays["terminals"]
    seams = {"terminals": terminals}
    if "timeouts" in arrays:
        seams["timeouts"] = arrays["timeouts"]
    if "next_observations" in arrays:
        unmarked = np.zeros(len(terminals), bool)
        shown, following = as_float32(arrays["observations"]), as_float32(arrays["next_observations"])
        unmarked[:-1] = distance(following[:-1], shown[1:]) > SEAM_DISTANCE
        seams["discontinuity"] = unmarked & ~np.logical_or.reduce(list(seams.values()))
        if 2 * (count := int(seams["discontinuity"].sum())) > len(terminals):
            raise DataError(
                f"{name}: next_observations: expected the observation of the next row after most rows, found another "
                f"one after {count} of {len(terminals)} rows, none of which ends by terminals or timeouts. Write both "
                "arrays in the same order, units and precision; or remove next_observations, and say where episodes "
                "end by timeouts or --max-episode-steps N"
            )
    if max_episode_steps is not None:
        flagged = np.logical_or.reduce(list(seams.values()))
        seams["max_episode_steps"] = _time_limit(flagged, max_episode_steps)
    elif len(seams) == 1:
        raise ConfigError(
            f"{name}: it has neither timeouts nor next_observations, which tell where an episode was cut by its time "
            "limit; say --max-episode-steps N (1000 for gym locomotion)"
        )
    return seams | {"all": np.logical_or.reduce(list(seams.values()))}


def _time_limit(flagged: Bool[np.ndarray, " N"], steps: int) -> Bool[np.ndarray, " N"]:
    """Rows at which an episode without a mark before has reached its time limit."""
    rows = np.arange(len(flagged), dtype=np.int64)
    starts: Int64[np.ndarray, " N"] = np.concatenate([[0], rows[:-1] + 1]) * np.concatenate([[True], flagged[:-1]])
    age = rows - np.maximum.accumulate(starts)
    return ((age + 1) % steps == 0) & ~flagged
