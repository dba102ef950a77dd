"""How far the runs of a study are, read from their folders: wherever they are trained."""

import contextlib
import itertools
import json
import os
import shlex
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
from chunkwise.files.durable import make_folders
from chunkwise.files.place import told_place
from chunkwise.files.strict_json import read_json
from chunkwise.reports import study_table
from chunkwise.reports.run_record import last_word
from chunkwise.train.run_dir import IN_USE

COLUMNS = ("run", "state", "updates", "score")
MOST_LINES = 4
"""Of a run's error that a study says; the log has all."""
_COMMAND = "$ "
"""Before a command in a log."""
NOT_EVALUATED = "not evaluated"
"""What is said of a finished run none of whose numbers is the study's metric."""
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

    Files of a finished run that cannot be read are told by the table.
    """
    found: dict[str, str] = {}
    for run in runs:
        folder = out / run.folder
        try:
            finished = is_finished(run, out)
        except RunError as error:
            found[run.folder] = one_line(error)
            continue
        if not finished:
            found[run.folder] = f"{_how_far(run, folder)}{_last_error(log_of(run, out))}"
        elif not (folder / "metrics.jsonl").is_file():
            found[run.folder] = "finished, and its metrics.jsonl is missing; remove the folder to train it again"
        elif not _is_measured(study, run, out):
            found[run.folder] = NOT_EVALUATED
    return found


def other_data(runs: Sequence[Run], out: Path) -> dict[str, str]:
    """Says of runs whose dataset held other files than that of most runs of their table, by their folder, which.

    Their scores do not compare. Of several datasets that as many runs had, that of the last of these runs counts. Runs
    whose configs say otherwise what is read of one dataset are compared by the files that both read.

    Args:
      runs: Those that are finished.
      out: The study's folder.
    """
    found: dict[str, str] = {}
    tables: dict[tuple[str, ...], list[Run]] = {}
    settings: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        settings.setdefault((run.table, *_data(run)), []).append(run)
    for group in settings.values():
        kept = _most(group, out, found, shared=False)
        tables.setdefault((kept[0].table, *_data(kept[0], places=True)), []).extend(kept)
    for group in tables.values():
        _most(group, out, found, shared=True)
    return found


def _most(runs: Sequence[Run], out: Path, found: dict[str, str], *, shared: bool) -> list[Run]:
    """Returns most of the runs that had the same files, the last of as many; adds what is said of the others."""
    alike: list[list[Run]] = []
    for run in runs:
        for group in alike:
            if not _differing(run, group[0], out, shared=shared):
                group.append(run)
                break
        else:
            alike.append([run])
    most = max(reversed(alike), key=len)
    for run in (run for group in alike if group is not most for run in group):
        found[run.folder] = (
            f"trained on other data than {most[0].folder}: {_differing(run, most[0], out, shared=shared)}. To compare "
            "all on the files of today, remove the folders of those that had others, and give the command again"
        )
    return most


def _differing(run: Run, other: Run, out: Path, *, shared: bool) -> str:
    try:
        return dataset_files.differing(out / run.folder, out / other.folder, shared=shared)
    except RunError as error:  # one of the lists cannot be read
        return one_line(error)


def _data(run: Run, *, places: bool = False) -> tuple[str, ...]:
    """What a run's config says of its data, or where they are alone."""
    known = resume_rules(type(run.config)).places
    chosen = {name: value for name, value in flatten(run.config).items() if name.startswith("data.")}
    return tuple(f"{name} {_real(value)}" for name, value in chosen.items() if not places or name in known)


def log_of(run: Run, out: Path) -> Path:
    """Returns the file of what a run's processes print."""
    return out / "logs" / f"{run.folder.replace('/', '-')}.txt"


def begun(log: Path, words: Sequence[str]) -> None:
    """Begins what a command prints with the command itself, so that an error behind it is its own."""
    with told_place(log):
        make_folders(log.parent)
        with open(log, "a") as file:
            file.write(f"{_COMMAND}{shlex.join(words)}\n")


def error_in(lines: Sequence[str]) -> str:
    """Returns the last error of what a program has printed, with what it says of it; empty where there is none.

    Args:
      lines: Without empty ones.
    """
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if not errors:
        return ""
    # Behind it stands, for example, which files differ.
    more = itertools.takewhile(lambda line: line.startswith("  "), lines[errors[-1] + 1 :])
    return " ".join([lines[errors[-1]], *(line.strip() for line in more)][:MOST_LINES])


def _last_error(log: Path) -> str:
    """What is said of a run whose last start ended with an error; empty of others, and where one waits for another."""
    try:
        lines = [line.decode(errors="replace") for line in _tail(log) if line.strip()]
    except OSError:
        return ""
    begins = [i for i, line in enumerate(lines) if line.startswith(_COMMAND)]
    said = error_in(lines[begins[-1] + 1 :] if begins else lines)
    return f"; its last start ended: {said}" if said and IN_USE not in said else ""


def unfinished_start(run: Run) -> str:
    """Returns what is said of a run whose flags name another one that is not at its end; empty, if none does.

    What such a run would begin with depends on when it begins.
    """
    for word in run.words[1:]:
        with contextlib.suppress(OSError):  # a word that no path can be
            if not word.startswith("-") and is_run(Path(word)):
                steps = int(read_flat(Path(word))["train.steps"])
                if last_word(Path(word), steps) is None:
                    step = _last_step(Path(word) / "metrics.jsonl") or 0
                    return f"begins with {word}, which is at step {step} of {steps}; finish that run first"
    return ""


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
        if not is_complete(study, run, out):
            return False
        return any(study_table.score(folder, study, policy) is not None for policy in study.policies)
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


def _tail(path: Path) -> list[bytes]:
    """The last lines of a file, of which the first may be half a one."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return file.read().split(b"\n")


def _last_step(metrics: Path) -> int | None:
    """Returns the update of the last whole line; None where there is none, as while a run compiles."""
    try:
        lines = _tail(metrics)
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
