"""How far the runs of a study are, read from their folders: wherever they are trained."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkwise.config.saved import (
    as_written_today,
    fingerprint,
    flatten,
    is_run,
    read_flat,
    resume_rules,
    without_younger,
)
from chunkwise.config.study import Run, StudyConfig
from chunkwise.errors import DataError, NonFiniteError, RunError, one_line
from chunkwise.files import dataset_files
from chunkwise.files.strict_json import read_json
from chunkwise.reports import study_table
from chunkwise.reports.run_record import last_word

COLUMNS = ("run", "state", "updates", "score")
_TAIL = 1 << 16
"""Bytes of a file of metrics that are read for its last line."""


def is_finished(run: Run, out: Path) -> bool:
    """Whether a run came to its last update, with the config that the study has now."""
    folder = out / run.folder
    if not (folder / "done.json").is_file():
        return False
    done = read_json(folder / "done.json")
    if not isinstance(done, dict) or done.get("step") != run.config.train.steps:
        return False
    # Another config, and other data, are refused by the run itself, which says how they differ.
    return has_same_config(run, folder) and not other_places(run, folder)


def has_same_config(run: Run, folder: Path) -> bool:
    """Whether a run that was begun in a folder may go on there with the config that the study has now.

    Raises:
      RunError: Its config.json is missing, or cannot be read.
    """
    rules = resume_rules(type(run.config))
    saved = fingerprint(read_flat(folder), rules)
    return saved == without_younger(fingerprint(flatten(run.config), rules), saved, rules)


def other_places(run: Run, folder: Path) -> list[str]:
    """Returns the fields that say where files lie, such as data.path, in which a run's config.json is not the study's.

    Whether the same is in the files only the run can tell, when it is begun again.

    Raises:
      RunError: Its config.json is missing, or cannot be read.
    """
    rules = resume_rules(type(run.config))
    saved, now = as_written_today(read_flat(folder), rules), flatten(run.config)
    given = {name: (saved.get(name, rules.defaults.get(name)), now.get(name)) for name in rules.places}
    return [name for name, (old, new) in given.items() if old != new and _real(old) != _real(new)]


def _real(place: Any) -> Any:
    """A path without links and dots; what is none as it is."""
    return os.path.realpath(os.path.expanduser(place)) if isinstance(place, str) and place else place


def is_complete(study: StudyConfig, run: Run, out: Path) -> bool:
    """Whether nothing is left to do: a run is finished, and evaluated where its study says so."""
    if not is_finished(run, out):
        return False
    folder, flags = out / run.folder, study.evaluate
    return flags is None or study_table.is_evaluated(folder, flags, run.config.train.steps)


def unfinished(study: StudyConfig, runs: Sequence[Run], out: Path) -> dict[str, str]:
    """Says of each run of which nothing is a result yet, by its folder, why: how far it is, or that it has no score.

    Of those that found other files in the same dataset than the first run of their table, it says which: their scores
    do not compare. Files of a finished run that cannot be read are told by the table.
    """
    found: dict[str, str] = {}
    firsts: dict[tuple[str, ...], Run] = {}
    for run in runs:
        folder = out / run.folder
        try:
            finished = is_finished(run, out)
        except RunError as error:
            found[run.folder] = one_line(error)
            continue
        if not finished:
            found[run.folder] = _how_far(run, folder)
        elif not _is_measured(study, run, out):
            found[run.folder] = "not evaluated"
        else:
            first = firsts.setdefault((run.table, *_data(run)), run)
            try:
                differing = dataset_files.differing(folder, out / first.folder)
            except RunError as error:
                differing = one_line(error)
            if differing:
                found[run.folder] = f"trained on other data than {first.folder}: {differing}; not compared"
    return found


def _data(run: Run) -> tuple[str, ...]:
    """What a run's config says of its data: with other cameras, say, it reads other files of a dataset."""
    return tuple(f"{name} {_real(value)}" for name, value in flatten(run.config).items() if name.startswith("data."))


def _how_far(run: Run, folder: Path) -> str:
    """Says where a run is that is not finished."""
    steps, done = run.config.train.steps, last_word(folder, run.config.train.steps)
    if done is not None:
        if not has_same_config(run, folder):
            return "finished with another config"
        if done["step"] > steps:
            return f"has {done['step']} updates, where the study has train.steps {steps}"
        return f"finished with another {' and '.join(other_places(run, folder))}; not compared yet"
    step = _last_step(folder / "metrics.jsonl")
    if step is not None:
        return f"at step {step} of {steps}"
    return "begun, no update logged" if is_run(folder) else "not begun"


def _is_measured(study: StudyConfig, run: Run, out: Path) -> bool:
    """Whether a finished run has a score, or the table says itself why it has none."""
    folder = out / run.folder
    try:
        return is_complete(study, run, out) and study_table.score(folder, study, study.policies[0]) is not None
    except (DataError, NonFiniteError):
        return True


def evaluated_otherwise(run: Run, out: Path) -> str:
    """Says which fields of eval a run that is finished had otherwise than the study has them now; empty: none."""
    saved, now = read_flat(out / run.folder), flatten(run.config)
    differing = [name for name in now if name.startswith("eval.") and saved.get(name, now[name]) != now[name]]
    return "; ".join(f"{name} was {saved[name]!r}, the study has {now[name]!r}" for name in differing)


def rows(
    study: StudyConfig, runs: Sequence[Run], out: Path, failed: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """Returns what COLUMNS name, of each run.

    Args:
      study: The study.
      runs: Its runs.
      out: Its folder.
      failed: By a run's folder what is said of it.
    """
    return [(run.folder, *_row(study, run, out, failed.get(run.folder))) for run in runs]


def _row(study: StudyConfig, run: Run, out: Path, failed: str | None) -> tuple[str, str, str]:
    folder, steps = out / run.folder, run.config.train.steps
    try:
        if failed is None and is_finished(run, out):
            state = "finished" if is_complete(study, run, out) else "to be evaluated"
            try:
                found = study_table.score(folder, study, study.policies[0])
            except study_table.UnmeasuredError:  # the table says why, where it leaves the cell empty
                return state, f"{steps}/{steps}", "-"
            return state, f"{steps}/{steps}", "" if found is None else f"{found['score']:.3g}"
    except RunError as error:
        failed = one_line(error)
    step = _last_step(folder / "metrics.jsonl")
    begun = "waiting" if step is None else "begun"
    return failed or begun, f"{step or 0}/{steps}", ""


def _last_step(metrics: Path) -> int | None:
    """Returns the update of the last whole line; None where there is none, as while a run compiles."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):  # the first of the tail may be half a line
            continue
        if isinstance(step, int):
            return step
    return None
