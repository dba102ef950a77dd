"""Rollouts of a run for a page that shows them (chunkwise/view): by round, with what training takes each one for."""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from chunkwise.config.saved import read_config
from chunkwise.data.images import encode_png
from chunkwise.data.problems import Problem, problem_of
from chunkwise.data.threads import step_back
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import DataError
from chunkwise.view.source import EpisodeContent, EpisodeSummary
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.ript.hindsight import knows
from openpi_ript.ript.rollout_data import Group, labels_of, teaches

FOLDER = "rollouts"
"""In a run's folder."""
MAX_WIDTH = 256
"""Numbers of a frame that are plotted; what has more, such as a depth map, is named."""
_ROUND = re.compile(r"step_(\d{8,12})-[0-9a-f]+")
_FILE = re.compile(r"state_(\d+)-(\d+)\.npz")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rollout lies."""

    round: str
    """Name of its round's folder."""
    step: int
    """Updates before the round."""
    state: int
    """Number of its initial state."""
    file: str

    @property
    def name(self) -> str:
        return f"{self.file.removesuffix('.npz')} of {self.round}"


class RolloutRecordings:
    """All rollouts of a run. Two of them are kept in memory, whole."""

    kind = "rollouts"

    def __init__(self, run: Path) -> None:
        """Lists the files; reads none. Limits of the run's own config are not obeyed: it may come from elsewhere.

        Raises:
          ConfigError: It is no run of this package.
          DataError: It holds no rollouts, or links lead out of it.
        """
        config = read_config(run, OpenpiRiptConfig)
        self.title, self._root, self._config = str(run), run / FOLDER, config
        self.places = places_of(self._root)
        if not self.places or config.rollout is None:
            raise DataError(
                f"{run}: expected rollouts in {FOLDER}/step_*/state_*.npz, found none: the run has played no round. "
                f"What it learns from is {config.data.path}; chunkwise view shows that folder"
            )
        self.names = [place.name for place in self.places]
        self._rollout, self._settings = functools.lru_cache(2)(self._load), config.rollout

    @property
    def config(self) -> OpenpiRiptConfig:
        """Of the run."""
        return self._config

    def read(self, episode: int) -> Rollout:
        """Reads a rollout. Raises DataError if it cannot be read."""
        return self._rollout(episode)

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Reads the outcomes of all rollouts, and tells the advantages of a round once all of it is read."""
        step_back()
        by_round: dict[str, list[int]] = defaultdict(list)
        for number, place in enumerate(self.places):
            by_round[place.round].append(number)
        taught: dict[int, list[Group[Rollout]]] = {}
        for numbers in by_round.values():
            told: dict[int, EpisodeSummary] = {}
            outcomes: dict[int, Rollout] = {}
            for number in numbers:
                told[number] = self._outcome(number, outcomes)
                yield number, told[number]
            yield from self._judged(self.places[numbers[0]].step, told, outcomes, taught)

    def open(self, episode: int) -> EpisodeContent:
        rollout, place = self._rollout(episode), self.places[episode]
        columns: dict[str, np.ndarray] = {"action": rollout.actions, "reward": rollout.rewards}
        cameras, left_out = [], []
        for name, x in rollout.observations.items():
            if _is_images(x):
                cameras.append(name)
            elif 0 < x[0].size <= MAX_WIDTH:
                columns[name if name not in columns else f"observation/{name}"] = x.reshape(len(x), x[0].size)
            else:
                left_out.append(f"{name} {list(x.shape)} is not shown.")
        task = f" of {rollout.task}" if rollout.task else ""
        notes = [
            f"Initial state {place.state}{task}, seed {rollout.seed}; {rollout.step} updates behind the policy, whose "
            f"weights are {rollout.weights[:12]}.",
            *left_out,
        ]
        if not cameras:
            notes.append("The file has no images: env.cameras of the run is empty, so that none were rendered.")
        return EpisodeContent(cameras=tuple(cameras), columns=columns, frames=rollout.length + 1, notes=tuple(notes))

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        x = self._rollout(episode).observations.get(camera)
        if x is None or not _is_images(x):
            raise DataError(f"{self.names[episode]}: expected images called {camera}, found none")
        if frame >= len(x):
            raise DataError(f"{self.names[episode]}: expected a frame below {len(x)}, found {frame}")
        return encode_png(np.ascontiguousarray(x[frame]))

    def _load(self, episode: int) -> Rollout:
        return load(self._path(episode))

    def _path(self, episode: int) -> Path:
        place = self.places[episode]
        return self._root / place.round / place.file

    def _outcome(self, number: int, outcomes: dict[int, Rollout]) -> EpisodeSummary:
        """What a file says of itself, and its rollout among the outcomes if it can be read."""
        place = self.places[number]
        blank = EpisodeSummary(name=place.name, group=_group(place.step))
        try:
            rollout = outcomes[number] = load(self._path(number), outcome_only=True)
        except DataError as error:
            found = problem_of(error, str(self._path(number)))
            return dataclasses.replace(blank, label="unreadable", problems=(_of(place, found),))
        return dataclasses.replace(
            blank,
            task=rollout.task or rollout.prompt,
            success=rollout.success,
            length=rollout.length,
            total_reward=float(rollout.rewards.sum(dtype=np.float64)),
        )

    def _judged(
        self,
        step: int,
        told: Mapping[int, EpisodeSummary],
        outcomes: Mapping[int, Rollout],
        taught: dict[int, list[Group[Rollout]]],
    ) -> Iterator[tuple[int, EpisodeSummary]]:
        """The episodes of a round with their advantages and labels, as training had them in the round's first update.

        `taught` has the groups of earlier rounds that were trained on; those of this one are put there too.
        """
        by_state: dict[int, list[int]] = defaultdict(list)
        for number in outcomes:
            by_state[self.places[number].state].append(number)
        groups: dict[int, Group] = {}
        by_value = self._config.guidance is not None and self._config.guidance.labels == "value"
        for state, numbers in by_state.items():
            files = [self.places[number].file for number in numbers]
            if len(files) != self._settings.size:  # of a round that was cut off, or with a file that cannot be read
                for number in numbers:
                    yield (
                        number,
                        dataclasses.replace(told[number], label=f"{len(files)} of {self._settings.size} there"),
                    )
                continue
            try:
                groups[state] = Group(state=state, files=files, rollouts=[outcomes[number] for number in numbers])
            except DataError as error:
                found = problem_of(error, f"{files[0]} and its group")
                for number in numbers:
                    own = _of(self.places[number], found)
                    yield number, dataclasses.replace(told[number], label="not drawn", problems=(own,))
        taught[step] = [
            group
            for group in groups.values()
            if teaches(group, self._settings, task=group.rollouts[0].task, by_value=by_value)
        ]
        oldest = step - self._settings.updates * (self._settings.replay_rounds - 1)
        for earlier in [one for one in taught if one < oldest]:
            del taught[earlier]
        weights = self._weights([group for of_round in taught.values() for group in of_round])
        for state, group in groups.items():
            for number, rollout in zip(by_state[state], group.rollouts, strict=True):
                label, advantage = weights.get(id(rollout), ("not drawn", None))
                if advantage is not None and by_value:
                    label = "by a value"
                yield number, dataclasses.replace(told[number], label=label, advantage=advantage)

    def _weights(self, groups: Sequence[Group]) -> dict[int, tuple[str, float | None]]:
        """Label and advantage of each rollout that is trained on, by its id."""
        pairs = [(number, rollout) for number, group in enumerate(groups) for rollout in group.rollouts]
        by_hindsight: dict[int, tuple[str, float | None]] = {}
        if self._settings.objective == "rejection":
            by_hindsight = {
                id(rollout): ("drawn in hindsight, if it reached another goal", None)
                for _, rollout in pairs
                if not rollout.success and knows(self._settings.hindsight, rollout.task)
            }
            pairs = [(number, rollout) for number, rollout in pairs if rollout.success]
        if not pairs:
            return by_hindsight
        success = np.array([rollout.success for _, rollout in pairs], np.float64)
        found = labels_of(success, np.array([number for number, _ in pairs], np.int64), self._settings)
        words = [
            f"{Optimality(label).name.lower()}, weight {weight:.2f}"
            for label, weight in zip(found.optimality.tolist(), found.weight.tolist(), strict=True)
        ]
        return by_hindsight | {
            id(rollout): (word, raw) for (_, rollout), word, raw in zip(pairs, words, found.raw.tolist(), strict=True)
        }


def places_of(root: Path) -> list[Place]:
    """Lists the rollouts below a run's folder of them: by round, initial state and number."""
    found = []
    for folder in root.glob("step_*"):
        if named := _ROUND.fullmatch(folder.name):
            for file in folder.glob("state_*.npz"):
                if numbered := _FILE.fullmatch(file.name):
                    place = Place(round=folder.name, step=int(named[1]), state=int(numbered[1]), file=file.name)
                    found.append((place.step, place.round, place.state, int(numbered[2]), place))
    return [place for *_, place in sorted(found, key=lambda one: one[:4])]


def _group(step: int) -> str:
    return f"round of update {step}"


def _of(place: Place, problem: Problem) -> Problem:
    """The problem, of this rollout."""
    return dataclasses.replace(problem, file=place.name)


def _is_images(x: np.ndarray) -> bool:
    return x.ndim == 4 and x.dtype == np.uint8 and x.shape[-1] == 3 and min(x.shape[1:3]) > 0
