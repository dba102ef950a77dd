"""Episodes of a LeRobot dataset (v2.1, v3.0), read as `python -m qchunk.convert` would convert them, without images.

observation.state   the observation      next.reward    reward
action              the action           next.done      also true where an episode is merely over
                                         next.success   the task is solved
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float32, Float64

from chunkwise.data.episodes import Episode
from chunkwise.data.lerobot.meta import EpisodeMeta, LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import EpisodeTable, iter_tables
from chunkwise.data.lerobot.video import file_names
from chunkwise.data.problems import Problem
from chunkwise.data.walking import crash, walk
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError
from chunkwise.files.identity import Files
from qchunk.data.conventions import SUCCESS_REWARD, SuccessRule, ends_by_rewards, terminations
from qchunk.data.readers.report import EpisodeReport, GoodEpisodes, IndexedEpisodes, report_rewards
from qchunk.data.relabel import labelled_outcome

KEYS = {
    "qpos": "observation.state",
    "state": "observation.state",
    "action": "action",
    "reward": "next.reward",
    "done": "next.done",
    "success": "next.success",
}
"""Features that are read, by short name."""
DEFAULT_KEYS = (KEYS["state"],)
OUTCOME = (KEYS["reward"], KEYS["done"], KEYS["success"])
"""Features that a dataset may lack."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeRobotArrays:
    """What an episode's columns are to Q-chunking."""

    observation: Float32[np.ndarray, "T s"]
    action: Float32[np.ndarray, "T a"]
    reward: Float64[np.ndarray, " T"] | None
    terminated: Bool[np.ndarray, " T"] | None
    """None where the dataset says nothing, or has no reward."""
    success: bool | None


def arrays_of(
    columns: Mapping[str, np.ndarray],
    *,
    keys: Sequence[str] = DEFAULT_KEYS,
    final_done: Literal["time_limit", "termination"] = "time_limit",
    by_rewards: bool = False,
) -> LeRobotArrays:
    """Takes an episode's columns for observation, action and outcome.

    Args:
      columns: By feature, of one episode without `problems_of`.
      keys: Features that make up the observation, in this order.
      final_done: Meaning of a done in the last frame that earned no success, as of `terminations`.
      by_rewards: Whether such a done leaves the end to the rewards, as `ends_by_rewards` says of the dataset.
    """

    def flat(key: str, dtype: type) -> np.ndarray | None:
        return columns[key].astype(dtype) if key in columns else None

    reward, success, done = flat(KEYS["reward"], np.float64), flat(KEYS["success"], bool), flat(KEYS["done"], bool)
    done = success if done is None else done
    terminated = None
    if reward is not None and done is not None:
        solved = bool(success[-1]) if success is not None else bool(reward[-1] >= SUCCESS_REWARD)
        terminated = terminations(done, solved=solved, final_done=final_done)
        if by_rewards and final_done == "time_limit" and success is None and done[-1] and not done[:-1].any():
            terminated = None
    return LeRobotArrays(
        observation=np.concatenate([_matrix(columns[key]) for key in keys], axis=1),
        action=_matrix(columns[KEYS["action"]]),
        reward=reward,
        terminated=terminated,
        success=None if success is None else bool(success.any()),
    )


def problems_of(table: EpisodeTable) -> tuple[Problem, ...]:
    """What is wrong with an episode's columns: a frame has one reward, one done and one success as well, 0 or 1."""
    shapes = tuple(
        Problem(
            file=table.meta.file,
            episode=table.meta.index,
            key=key,
            expected="one value a frame (shape [1])",
            found=f"{table.columns[key].shape[1]} values",
        )
        for key in OUTCOME
        if key in table.columns and table.columns[key].ndim > 1
    )
    return table.problems + shapes + (() if shapes else _flag_problems(table))


def _flag_problems(table: EpisodeTable) -> tuple[Problem, ...]:
    """Flags that are neither 0 nor 1, NaN among them: cast to bool they would all be true."""
    wrong = {
        key: np.flatnonzero(~np.isin(table.columns[key], (0, 1)))
        for key in (KEYS["done"], KEYS["success"])
        if key in table.columns
    }
    return tuple(
        Problem(
            file=table.meta.file,
            episode=table.meta.index,
            key=key,
            row=int(rows[0]),
            expected="0 or 1",
            found=f"{table.columns[key][rows[0]]} ({len(rows)} such row(s))",
        )
        for key, rows in wrong.items()
        if len(rows)
    )


def _matrix(x: np.ndarray) -> Float32[np.ndarray, "T d"]:
    return (x[:, None] if x.ndim == 1 else x).astype(np.float32)


def dataset_names(path: Path, files: Files) -> list[str]:
    """Returns the files that a run reads: meta/ and the tables.

    Raises:
      DataError: It is no LeRobot dataset, or meta/ is bad.
    """
    return list(file_names(read_meta(path, bounds=files.bounds), ()))


def examine(path: Path, files: Files, hands: Hands) -> list[EpisodeReport]:
    """Reads all tables: a report on each episode, whoever reads them.

    Raises:
      DataError: meta/ is bad, the features that training needs are missing, or a file changed while it was read.
    """
    meta, keys = _opened(path, files)
    rule = SuccessRule()
    read = [one for seen in walk(_TableFiles(meta=meta, keys=keys), hands) for one in seen]
    _require_unchanged(files)
    for _, outcome in read:
        if outcome is not None:
            rule.see(*outcome)
    said = any(key in keys for key in (KEYS["done"], KEYS["success"]))
    said = said and not ends_by_rewards(outcome[1] for _, outcome in read if outcome is not None)
    reports = []
    for report, outcome in read:
        content = files.hash(report.path) or ""
        about = {"size": files.size(report.path), "mtime_ns": files.mtime_ns(report.path), "content_hash": content}
        label = None if outcome is None else rule.label(*outcome)
        if said and report.rewards is not None:
            about["rewards"] = dataclasses.replace(report.rewards, terminated=True)
        reports.append(dataclasses.replace(report, **about, success=label))
    return reports


_Seen = tuple[EpisodeReport, tuple[bool | None, Float64[np.ndarray, " T"] | None] | None]
"""A report without the label, which depends on all episodes, nor what a file is known by; success and rewards, which
the label is made from, of an episode that can be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TableFiles:
    """The files of a dataset's tables, each of one episode or many."""

    meta: LeRobotMeta
    keys: Sequence[str]

    @functools.cached_property
    def episodes(self) -> list[tuple[EpisodeMeta, ...]]:
        """Of each file."""
        return [tuple(group) for _, group in itertools.groupby(self.meta.episodes, key=lambda episode: episode.file)]

    def __len__(self) -> int:
        return len(self.episodes)

    def open(self) -> Callable[[int], list[_Seen]]:
        return lambda number: [
            _seen(table)
            for table in iter_tables(dataclasses.replace(self.meta, episodes=self.episodes[number]), self.keys)
        ]

    def crashed(self, number: int, found: str) -> list[_Seen]:
        return [(_report(of, (crash(of.file, found, episode=of.index),)), None) for of in self.episodes[number]]


def _report(meta: EpisodeMeta, problems: Sequence[Problem], **found: Any) -> EpisodeReport:
    about = {"size": 0, "mtime_ns": 0, "content_hash": ""}
    return EpisodeReport(
        id=f"episode_{meta.index:05d}", path=meta.file, length=meta.length, problems=tuple(problems), **about, **found
    )


def _seen(table: EpisodeTable) -> _Seen:
    if problems := problems_of(table):
        return _report(table.meta, problems), None
    arrays = arrays_of(table.columns, by_rewards=True)  # what `examine` takes back where the dataset's say nothing
    reward, width = arrays.reward, arrays.observation.shape[1]
    report = _report(
        table.meta,
        (),
        dims={"action": arrays.action.shape[1], "qpos": width, "state": width},
        total_reward=None if reward is None else float(reward.sum()),
        rewards=None if reward is None else report_rewards(reward, terminated=arrays.terminated is not None),
        action_low=tuple(arrays.action.min(0).tolist()),
        action_high=tuple(arrays.action.max(0).tolist()),
    )
    return report, (arrays.success, reward)


def _opened(path: Path, files: Files) -> tuple[LeRobotMeta, list[str]]:
    """The dataset, and the features of it that are read."""
    meta = read_meta(path, bounds=files.bounds)
    _require_features(meta)
    return meta, [key for key in dict.fromkeys(KEYS.values()) if key in meta.features]


def _tables(path: Path, files: Files) -> Iterator[EpisodeTable]:
    """The tables of all episodes, each file unchanged since it was hashed."""
    yield from iter_tables(*_opened(path, files))
    _require_unchanged(files)


def _require_unchanged(files: Files) -> None:
    for name in files.own:
        files.require_unchanged(files.place(name))


def _require_features(meta: LeRobotMeta) -> None:
    missing = [key for key in (*DEFAULT_KEYS, KEYS["action"]) if key not in meta.features]
    if missing:
        vectors = sorted(key for key, feature in meta.features.items() if len(feature.shape) <= 1)
        raise DataError(
            f"{meta.root}: expected features {', '.join(missing)}, found {', '.join(vectors)}; "
            "python -m qchunk.convert --observation-keys takes others for the observation"
        )


class LeRobotSource(IndexedEpisodes):
    """Indexed episodes of a LeRobot dataset. Keeps the tables in memory.

    `qpos` of an episode is the observation itself, as in converted files.
    """

    def __init__(self, good: GoodEpisodes, *, success_reward: float | None) -> None:
        """Takes episodes that were found good, and reads the tables.

        Args:
          good: By the reports of `examine`.
          success_reward: Ends an episode whose table does not say where it terminated; None: none does.

        Raises:
          DataError: A file is no longer what was indexed.
        """
        dims = good.reports[0].dims
        super().__init__(good, {"qpos": dims["qpos"], "state": dims["state"], "action": dims[good.action]})
        self._success_reward = success_reward
        wanted = {report.id: report.rewards for report in good.reports}
        self._arrays = {
            name: arrays_of(table.columns, by_rewards=rewards is not None and not rewards.terminated)
            for table in _tables(good.path, good.files)
            if (name := f"episode_{table.meta.index:05d}") in wanted
            for rewards in (wanted[name],)
        }

    def load(self, index: int) -> Episode:
        report, positive = self._reports[index], bool(self._positives[index])
        arrays = self._arrays[report.id]
        reward, terminated = labelled_outcome(
            arrays.reward, arrays.terminated, report.length, positive, self._success_reward
        )
        return Episode(
            id=report.id,
            states={"qpos": arrays.observation, "state": arrays.observation},
            action=arrays.action if self._action == "action" else arrays.observation,
            reward=reward,
            terminated=terminated,
            positive=positive,
        )
