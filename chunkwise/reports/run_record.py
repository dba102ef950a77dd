"""What the folder of a run says of it, read for reports: config, starts, metrics, evaluations, time, images.

Nothing of the folder is run, links out of it are refused, and every file is read within the limits of files/budget.py.
A run that is under way, or was stopped, is read as far as it came.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkwise.config.packages import config_class, package_of
from chunkwise.config.saved import CONFIG, as_written_today, is_run, read_flat, resume_rules
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget, dataset_files
from chunkwise.files.strict_json import parse_json, read_json

State = tuple[str, int, str]
"""Task, seed and hash of an initial state."""
USUAL_DRIVE: Mapping[str, float] = {"seconds": 15.0, "lead_s": 0.0, "hold": 1}
"""Of drives in closed loop (driving/eval/routes.py), whose reports did not list their settings apart at first."""
_OF_THE_FOLDER = ("run.dir", "run.resume")
_WARNING = re.compile(r"(warning|error):|failed and is left out", re.IGNORECASE)
"""Of a line of log.txt; an error that ended the run stands there by its class, such as NonFiniteError."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A file of evaluations/."""

    file: str
    """Below the run's folder."""
    step: int
    settings: dict[str, Any]
    """What differed from the run's own evaluation."""
    outcomes: dict[State, dict[str, Any]]
    """Of each episode, by its initial state."""
    clips: dict[State, Path]
    """The video of an episode, where there is one."""

    @property
    def successes(self) -> int:
        return sum(bool(outcome["success"]) for outcome in self.outcomes.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run's folder."""

    path: Path
    package: str
    config: dict[str, Any]
    """Its fields by dotted name."""
    changed: dict[str, Any]
    """Those that differ from their class's default."""
    starts: list[dict[str, Any]]
    """Lines of starts.jsonl, chunkwise/train/provenance.py."""
    rows: list[dict[str, Any]]
    """Lines of metrics.jsonl."""
    timing: list[dict[str, Any]]
    evaluations: list[Evaluated]
    """By step; of one step the run's own first, of those the one with the most episodes."""
    done: dict[str, Any] | None
    """done.json; None of a run that is not finished, or goes on with more updates."""
    warnings: list[str]
    """Lines of log.txt with a warning or an error."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def steps(self) -> int:
        """Updates that the config asks for."""
        return int(self.config["train.steps"])

    @property
    def step(self) -> int:
        """The newest that metrics.jsonl has."""
        return self.rows[-1]["step"] if self.rows else 0

    def series(self, split: str) -> dict[str, list[tuple[int, float]]]:
        """Returns the points (step, value) of each metric of a split, without those that were not finite."""
        every = self._points(split)
        finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in every.items()}
        return {name: points for name, points in finite.items() if points}

    def last(self, split: str) -> dict[str, tuple[int, float]]:
        """Returns the newest point (step, value) of each metric of a split, NaN where that was not finite."""
        return {name: points[-1] for name, points in self._points(split).items()}

    def _points(self, split: str) -> dict[str, list[tuple[int, float]]]:
        """All points of each metric of a split; what was not finite, which is null in metrics.jsonl, as NaN."""
        found: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            if row.get("split") == split:
                for name, value in row.items():
                    if name not in ("step", "split") and (value is None or isinstance(value, int | float)):
                        found.setdefault(name, []).append((row["step"], math.nan if value is None else float(value)))
        return found


def read_run(path: Path) -> RunRecord:
    """Reads a run's folder.

    Raises:
      ConfigError: It is none.
      DataError: A file in it is not what a run writes.
    """
    if not is_run(path):
        raise ConfigError(f"{path}: expected the folder of a run, found no {CONFIG} in it")
    flat, package = read_flat(path), package_of(path)  # which refuse links out of the folder
    if not isinstance(flat.get("train.steps"), int):
        raise DataError(f"{path / CONFIG}: expected train.steps to be a number, found {flat.get('train.steps')!r}")
    files = sorted((path / "evaluations").glob("*.json"))
    evaluations = [one for file in files if (one := read_evaluation(file, path)) is not None]
    log = path / "log.txt"
    lines = budget.read_bytes(log).decode(errors="replace").splitlines() if log.is_file() else []
    return RunRecord(
        path=path,
        package=package,
        config=flat,
        changed=_changed(flat, package),
        starts=_lines(path / "starts.jsonl", groups=("machine", "commit", "versions")),
        rows=rows_of(path),
        timing=_lines(path / "timing.jsonl", groups=("seconds", "memory"), numbers=True),
        evaluations=sorted(evaluations, key=lambda one: (one.step, len(one.settings), -len(one.outcomes), one.file)),
        done=last_word(path, flat["train.steps"]),
        warnings=list(dict.fromkeys(line.strip() for line in lines if _WARNING.search(line))),
    )


def last_word(run: Path, steps: int) -> dict[str, Any] | None:
    """Returns what done.json says of a run that came to so many updates; None where it did not.

    The file stays where a finished run goes on with more of them.
    """
    file = run / "done.json"
    done = read_json(file) if file.is_file() else None
    reached = done.get("step") if isinstance(done, dict) else None
    return done if isinstance(reached, int) and reached >= steps else None


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl. Raises DataError where one is none."""
    rows = _lines(run / "metrics.jsonl")
    if not all(isinstance(row.get("step"), int) for row in rows):
        raise DataError(f"{run / 'metrics.jsonl'}: expected a JSON object with a step on each line")
    return rows


def read_evaluation(file: Path, run: Path) -> Evaluated | None:
    """Reads a file of evaluations/; None for a report of another kind. Raises DataError if it is neither."""
    tree = read_json(file)
    if isinstance(tree, dict) and "kind" in tree and "outcomes" not in tree:
        return None
    try:
        listed = [(state_of(one), dict(one)) for one in tree["outcomes"]]
        outcomes = {state: one | {"success": bool(one["success"])} for state, one in listed}
        step, settings = int(tree["step"]), settings_of(tree)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: expected an evaluation with its step and outcomes, found {error!r}") from error
    films = {state: clip_of(file.with_suffix(""), number) for number, (state, _) in enumerate(listed)}
    clips = {state: film for state, film in films.items() if film.is_file()}
    return Evaluated(
        file=file.relative_to(run).as_posix(), step=step, settings=settings, outcomes=outcomes, clips=clips
    )


def settings_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what differed from the run's own evaluation, of the JSON value of an evaluation's file."""
    if tree.get("kind") == "closed_loop" and "settings" not in tree:
        return {name: tree[name] for name, usual in USUAL_DRIVE.items() if tree.get(name, usual) != usual}
    return dict(tree.get("settings") or {})


def state_of(outcome: Mapping[str, Any]) -> State:
    """Returns the initial state of an episode. Raises KeyError, TypeError or ValueError where it names none."""
    return str(outcome.get("task", "")), int(outcome["seed"]), str(outcome["init_hash"])


def clip_of(folder: Path, number: int) -> Path:
    """Returns the video of one episode of an evaluation, in the folder that is called as the evaluation's file is."""
    return folder / f"episode_{number:04d}.mp4"


def remove_videos(file: Path) -> None:
    """Removes the videos beside an evaluation's file: that of several episodes, and those of `clip_of`."""
    file.with_suffix(".mp4").unlink(missing_ok=True)
    for clip in file.with_suffix("").glob("episode_[0-9][0-9][0-9][0-9]*.mp4"):
        clip.unlink(missing_ok=True)


def differing(runs: Mapping[str, RunRecord]) -> dict[str, dict[str, Any]]:
    """Returns the config fields that are not the same in all runs, by field and then by run; None where one lacks it.

    The folder of the run is left out, and whether it may go on there.
    """
    fields = dict.fromkeys(name for run in runs.values() for name in run.config if name not in _OF_THE_FOLDER)
    values = {field: {name: run.config.get(field) for name, run in runs.items()} for field in fields}
    return {
        field: found for field, found in values.items() if any(v != next(iter(found.values())) for v in found.values())
    }


def other_files(runs: Mapping[str, RunRecord]) -> list[str]:
    """Says of each run that was trained on other files than the first of the same data.path which they are."""
    first: dict[tuple[str, Any], tuple[str, RunRecord]] = {}
    said = []
    for name, run in runs.items():
        place = run.package, run.config.get("data.path")
        before, other = first.setdefault(place, (name, run))
        if found := dataset_files.differing(run.path, other.path, shared=True):
            said.append(f"{name} was trained on other files of {place[1]} than {before}: {found}")
    return said


def starts_of(timing: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Returns the lines of timing.jsonl start by start: each counts its seconds from 0, and has its own of `start`."""
    found: list[list[dict[str, Any]]] = []
    for row in timing:
        before = found[-1][-1]["seconds"] if found else {}
        now = row["seconds"]
        same = before.get("start") == now.get("start") and before.get("wall", 0.0) <= now.get("wall", 0.0)
        if found and same:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _lines(path: Path, *, groups: Sequence[str] = (), numbers: bool = False) -> list[dict[str, Any]]:
    """Lines of a JSON Lines file, none where there is no file; a last line that is being written is left out.

    Args:
      path: Of the file.
      groups: Fields that are objects or null where they are there; null and missing ones become {}.
      numbers: Whether the values of these objects are numbers.
    """
    if not path.is_file():
        return []
    text = budget.read_bytes(path).decode(errors="replace")
    rows: list[dict[str, Any]] = []
    for count, line in enumerate(text[: text.rfind("\n") + 1].split("\n")[:-1], start=1):
        row = parse_json(line, source=f"{path}, line {count}")
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {count}: expected a JSON object, found {type(row).__name__}")
        for name in groups:
            row[name] = found = {} if row.get(name) is None else row[name]
            if not isinstance(found, dict) or (numbers and not all(isinstance(v, int | float) for v in found.values())):
                wanted = "an object of numbers" if numbers else "an object"
                raise DataError(f"{path}, line {count}: expected {name} to be {wanted}, found {found!r:.80}")
        rows.append(row)
    return rows


def _changed(flat: Mapping[str, Any], package: str) -> dict[str, Any]:
    """Fields whose value is not their class's default."""
    rules = resume_rules(config_class(package))
    now = as_written_today(flat, rules)
    return {name: value for name, value in now.items() if name not in rules.defaults or value != rules.defaults[name]}
