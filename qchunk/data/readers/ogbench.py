"""Episodes of OGBench's .npz files: observations, actions, terminals and more; docs/data_formats.md.

As OGBench's own loader reads it: a row with `terminals` 1 holds the state *after* the episode's last action, and its
own action leads nowhere. An episode of T + 1 rows so has T actions and T + 1 states. A file with
`next_observations` was written after that shift: each of its rows is a step, and the last state is in that array.
"""

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from chunkwise.data.episodes import Episode
from chunkwise.data.problems import Problem
from chunkwise.errors import DataError, one_line
from chunkwise.files.npz import read_npz
from chunkwise.printable import printable
from qchunk.data.readers.report import (
    EpisodeReport,
    GoodEpisodes,
    IndexedEpisodes,
    beyond_float32_as_inf,
    check_finite,
    check_lengths,
    report_rewards,
)
from qchunk.data.relabel import SingleTask, labelled_outcome

KEYS = {
    "state": "observations",
    "next_state": "next_observations",
    "action": "actions",
    "terminal": "terminals",
    "timeout": "timeouts",
    "reward": "rewards",
    "mask": "masks",
    "sim_qpos": "qpos",
    "button_states": "button_states",
}
"""What is read, by short name. Other keys (qvel, ...) are left alone."""
KEPT_BYTES = 4 << 30
"""Unpacked arrays of files that are kept for later episodes; a million transitions of cube-quadruple take 0.7 GiB."""
VALIDATION = "-val.npz"
UNREADABLE = (OSError, DataError)
SEAM_DISTANCE = 1e-6
"""Distance of a next observation from the next row's above which the rows are of two episodes, as in IQL's loader."""
_ROUNDING = 4 * np.finfo(np.float32).eps
"""Part of a number's size that counts as no distance: the two arrays may be stored in different precision."""
_VECTORS = ("terminal", "timeout", "reward", "mask")
_LEFT = ("state", "next_state", "terminal", "timeout")  # of no step
_EXACT = ("reward", "mask", "sim_qpos")  # kept in 64 bits


def file_names(root: Path) -> list[str]:
    """Names of a dataset's files: the one that `root` is, or those in the folder, in order.

    Left out are hidden files, such as those that macOS puts beside others, and validation sets: OGBench ships large
    sets as several files beside `*-val.npz`, of which training takes none.

    Raises:
      DataError: There is none.
    """
    if root.suffix == ".npz" and root.is_file():
        return [root.name]
    names = sorted(path.name for path in root.glob("[!.]*") if path.suffix.lower() == ".npz")
    names = [name for name in names if not name.lower().endswith(VALIDATION)]
    if not names:
        raise DataError(
            f"data.path: {root} is no .npz file, and no folder of them, which data.format=ogbench_npz expects"
            f" (files *{VALIDATION} are left out)"
        )
    return names


def examine(path: Path, *, digest: str) -> list[EpisodeReport]:
    """Reads the file whole: one report an episode, or one for the file if it cannot be cut into episodes.

    Args:
      path: The file.
      digest: Its `content_hash`.
    """
    stat = path.stat()
    file = {"path": path.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    try:
        arrays, problems = read_arrays(path)
    except UNREADABLE as error:
        found = one_line(error).removeprefix(printable(f"{path}: ")).removeprefix("expected a whole .npz file, found ")
        problem = Problem(file=path.name, expected="a whole .npz file", found=found)
        return [EpisodeReport(**file, id=path.name, content_hash="", problems=(problem,))]
    problems += _whole_file_problems(path.name, arrays)
    if problems:
        return [EpisodeReport(**file, id=path.name, content_hash=digest, problems=tuple(problems))]
    reports = []
    for number, (first, last) in enumerate(boundaries(arrays["terminal"])):
        name = f"{path.name}#{number}"
        episode = cut(arrays, first, last)
        found = check_lengths(name, {"action": episode["action"]}, KEYS) + check_finite(name, episode, KEYS, row=first)
        action = episode["action"]
        reports.append(
            EpisodeReport(
                **file,
                id=name,
                content_hash=digest,
                length=len(action),
                dims={key: x.shape[1] for key, x in episode.items() if x.ndim == 2},
                total_reward=float(episode["reward"].sum()) if "reward" in episode else None,
                rewards=report_rewards(episode["reward"], terminated="mask" in episode)
                if len(episode.get("reward", ()))
                else None,
                action_low=tuple(action.min(0).tolist()) if len(action) else (),
                action_high=tuple(action.max(0).tolist()) if len(action) else (),
                problems=tuple(found),
            )
        )
    return reports


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[Problem]]:
    """Reads what KEYS names: arrays by short name, [N, d] or [N], and what is wrong with others.

    Raises:
      OSError, DataError: As `read_npz`.
    """
    arrays: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    stored = read_npz(path, KEYS.values())
    for key, name in KEYS.items():
        if name not in stored:
            continue
        x = stored.pop(name)
        if problem := _array_problem(x, vector=key in _VECTORS):
            problems.append(Problem(file=path.name, key=name, expected=problem[0], found=problem[1]))
            continue
        kept = np.int64 if key == "button_states" else np.float64 if key in _EXACT else np.float32
        with np.errstate(over="ignore"):  # a number too large becomes Inf, which is reported as such
            x = beyond_float32_as_inf(x) if key == "reward" else x.astype(kept)
        arrays[key] = x.reshape(len(x) if key in _VECTORS else x.shape)
    return arrays, problems


def _array_problem(x: np.ndarray, *, vector: bool) -> tuple[str, str] | None:
    if x.dtype.kind not in "fiub":
        return "numbers", f"dtype {x.dtype}"
    if vector and not (x.ndim == 1 or (x.ndim == 2 and x.shape[1] == 1)):
        return "shape [N]", f"shape {x.shape}"
    return ("shape [N, d]", f"shape {x.shape}") if not vector and x.ndim != 2 else None


def _whole_file_problems(name: str, arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    """What keeps the file from being cut into episodes."""
    problems = [
        Problem(file=name, key=KEYS[key], expected="an array of this name", found="none")
        for key in ("state", "action", "terminal")
        if key not in arrays
    ]
    if problems:
        return problems
    rows = len(arrays["terminal"])
    problems = [
        Problem(file=name, key=KEYS[key], expected=f"{rows} rows as in terminals", found=f"{len(x)} rows")
        for key, x in arrays.items()
        if len(x) != rows
    ]
    if "next_state" in arrays and arrays["next_state"].shape[1:] != arrays["state"].shape[1:]:
        expected, found = (f"rows of {x.shape[1:]}" for x in (arrays["state"], arrays["next_state"]))
        problems.append(
            Problem(file=name, key=KEYS["next_state"], expected=f"{expected}, as observations", found=found)
        )
    for key in ("terminal", "timeout", "mask"):
        flags = arrays.get(key, np.zeros(0))
        wrong = np.flatnonzero(~np.isin(flags, (0, 1)))  # NaN among them, which would end an episode
        if len(wrong):
            found = f"{flags[wrong[0]]:g} ({len(wrong)} such row(s))"
            problems.append(Problem(file=name, key=KEYS[key], row=int(wrong[0]), expected="0 or 1", found=found))
    if not problems and not (rows and arrays["terminal"][-1] == 1):
        expected, found = "1 in the last row: an episode that ends", f"{rows} rows, the last unfinished"
        problems.append(Problem(file=name, key="terminals", row=rows - 1, expected=expected, found=found))
    return problems or _unmarked_ends(name, arrays)


def _unmarked_ends(name: str, arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    """Ends of episodes that `terminals` does not have, as in D4RL's files: chunks would run on into the next one."""
    marked, hint = arrays["terminal"][:-1] == 1, "1 where an episode ends, and masks 0 where it was terminated"
    late = arrays.get("timeout", arrays["terminal"])[:-1] == 1
    found = {"timeouts 1": np.flatnonzero(late & ~marked)}
    if "next_state" in arrays:
        apart = distance(arrays["next_state"][:-1], arrays["state"][1:]) > SEAM_DISTANCE
        found["next_observations that is not the next row's observation"] = np.flatnonzero(apart & ~marked & ~late)
    return [
        Problem(
            file=name, key="terminals", row=int(rows[0]), expected=hint, found=f"0 beside {of} ({len(rows)} row(s))"
        )
        for of, rows in found.items()
        if len(rows)
    ]


def distance(one: Float32[np.ndarray, "n d"], other: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, " n"]:
    """Returns the Euclidean distance of rows, without what rounding explains."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is reported where it is read
        apart = np.abs(one - other) - _ROUNDING * np.maximum(np.abs(one), np.abs(other))
        return np.linalg.norm(np.maximum(apart, 0), axis=1)


def _bytes(*files: tuple[Mapping[str, np.ndarray], object]) -> int:
    return sum(x.nbytes for arrays, _ in files for x in arrays.values())


def boundaries(terminal: np.ndarray) -> list[tuple[int, int]]:
    """Returns the first row of each episode, and the row after its last."""
    ends = np.flatnonzero(terminal) + 1
    return list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))


def cut(arrays: Mapping[str, np.ndarray], first: int, last: int) -> dict[str, np.ndarray]:
    """Cuts out one episode: T rows of everything, T + 1 of state."""
    shifted = "next_state" in arrays
    steps = last if shifted else last - 1
    episode = {key: arrays[key][first:steps] for key in arrays if key not in _LEFT}
    if shifted:
        episode["state"] = np.concatenate([arrays["state"][first:last], arrays["next_state"][last - 1 : last]])
    else:
        episode["state"] = arrays["state"][first:last]
    return episode


class OgbenchSource(IndexedEpisodes):
    """Indexed episodes of .npz files. Keeps the arrays of the files used last in memory, up to KEPT_BYTES.

    `qpos` of an episode is the observation itself: the file's own qpos is the simulator's, of the whole scene.
    """

    def __init__(self, good: GoodEpisodes, *, task: SingleTask | None, success_reward: float | None = None) -> None:
        """Takes episodes that were found good, and reads the first file.

        Args:
          good: By the reports of `examine`.
          task: Replaces the files' reward and termination; None keeps them.
          success_reward: Ends an episode of a file without masks; None: none does.

        Raises:
          DataError: The file is no longer what was indexed.
        """
        first = good.reports[0]
        width = first.dims["state"]
        actions = first.dims["action"] if good.action == "action" else width
        super().__init__(good, {"qpos": width, "state": width, "action": actions})
        self._task, self._success_reward = task, success_reward
        self._kept: dict[str, tuple[dict[str, np.ndarray], list[tuple[int, int]]]] = {}  # the one used last is last
        self._lock = threading.Lock()  # pools load in a thread of their own
        self._file(first.path)

    def _file(self, name: str) -> tuple[dict[str, np.ndarray], list[tuple[int, int]]]:
        """A file's arrays, and first row and end of each of its episodes. Raises DataError if it was changed."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is None:
                self._files.require_unchanged(self._files.place(name))
                arrays, _ = read_arrays(Path(self._files.bounds.path(name)))
                self._files.require_unchanged(self._files.place(name))
                found = arrays, boundaries(arrays["terminal"])
                while self._kept and _bytes(found, *self._kept.values()) > KEPT_BYTES:
                    del self._kept[next(iter(self._kept))]
            self._kept[name] = found
            return found

    def load(self, index: int) -> Episode:
        positive, length = bool(self._positives[index]), int(self._lengths[index])
        report = self._reports[index]
        rows, spans = self._file(report.path)
        arrays = cut(rows, *spans[int(report.id.rpartition("#")[2])])
        if self._task is not None:
            reward, terminated = self._task.relabel(arrays["sim_qpos"], arrays.get("button_states"))
        else:
            # Without a reward the label makes one, and the end with it.
            terminated = arrays["mask"] == 0 if {"mask", "reward"} <= set(arrays) else None
            reward, terminated = labelled_outcome(
                arrays.get("reward"), terminated, length, positive, self._success_reward
            )
        return Episode(
            id=report.id,
            states={"qpos": arrays["state"], "state": arrays["state"]},
            action=arrays["action"] if self._action == "action" else arrays["state"][:length],
            reward=reward,
            terminated=terminated,
            positive=positive,
        )
