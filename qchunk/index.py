"""The index of a dataset: every episode is read once, judged before training starts, and remembered.

What a file holds is cached by its path, size and modification time, for all runs; what a run makes of it (labels,
arrays it needs) is judged anew each time.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from core.episodes import EpisodeSource
from core.errors import DataError
from qchunk.config import DataConfig
from qchunk.relabel import single_task
from qchunk.selection import Selection, select
from qchunk.sources import aloha, ogbench
from qchunk.sources.report import EpisodeReport, Problem, from_json, refuse
from qchunk.workers import Workers

INDEX_VERSION = 2
SECONDS_BETWEEN_LINES = 10.0
MAX_SKIPPED = 0.01
"""Largest share of bad episodes that on_bad=skip drops."""


def open_source(data: DataConfig) -> tuple[EpisodeSource, tuple[str, ...]]:
    """The dataset's good episodes, and what the run should say about them.

    Raises:
      DataError: The folder is missing or empty, or episodes are bad: all problems in one message.
      ConfigError: data.task names no task, or the simulator is not installed.
    """
    selection = select(read_index(data), data)
    notes = list(selection.notes)
    if selection.problems:
        _refuse_or_note(selection, data, notes)
    if not selection.reports:
        raise DataError(f"{data.path}: no episode is left to train on. {' '.join(selection.notes)}")
    return make_source(selection, data), tuple(notes)


def make_source(selection: Selection, data: DataConfig) -> EpisodeSource:
    """The good episodes of a selection, at least one, whatever else is wrong with the dataset.

    Raises:
      ConfigError: data.task names no task, or the simulator is not installed.
    """
    task = None if data.task is None else single_task(data.task)
    path, good, positives = Path(data.path), selection.reports, selection.positives
    if data.format == "ogbench_npz":
        return ogbench.OgbenchSource(path, good, positives, action=data.action, task=task)
    return aloha.AlohaSource(path, good, positives, action=data.action, task=task, base_action=data.base_action)


def _refuse_or_note(selection: Selection, data: DataConfig, notes: list[str]) -> None:
    total = len(selection.bad) + len(selection.reports)
    if data.on_bad == "refuse":
        hint = "Repair or remove these files, or set --data.on-bad skip to leave out up to 1 % of the episodes."
        raise refuse(selection.problems, hint)
    if len(selection.bad) > MAX_SKIPPED * total:
        hint = f"{len(selection.bad)} of {total} episodes are bad; data.on_bad=skip leaves out at most 1 %."
        raise refuse(selection.problems, hint)
    notes.append(f"skipped {len(selection.bad)} bad episode(s) of {total} (data.on_bad=skip):")
    notes.extend(f"  {problem}" for problem in selection.problems)


def read_index(data: DataConfig, *, reread: bool = False, pictures: bool | None = None) -> list[EpisodeReport]:
    """A report on every episode below data.path, from the cache where size and modification time are unchanged.

    Args:
      data: Only `path`, `format` and whether there are cameras matter.
      reread: Read every file again, and report content that changed although size and time did not.
      pictures: Decode every picture of every camera; by default where data names a camera.

    Raises:
      DataError: The folder or file is missing, of the wrong kind, or holds no episode.
    """
    root = Path(data.path)
    files = _dataset_files(root, data.format)
    known = _load_cache(root)
    pictures = bool(data.cameras or data.depth_cameras) if pictures is None else pictures
    workers = Workers(data.decode_threads) if pictures and data.format == "aloha_hdf5" else None
    found: dict[str, list[EpisodeReport]] = {}
    to_read = []
    for file in files:
        name = _name(root, file)
        before = known.get(name, [])
        stat = file.stat()
        same = bool(before) and (before[0].size, before[0].mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        found[name] = before
        if not same or reread or (workers is not None and before[0].pictures is None and before[0].content_hash):
            to_read.append((file, before if same else []))
    for file, before in _progress(to_read):
        fresh = ogbench.examine(file) if data.format == "ogbench_npz" else [_examine(root, file, workers)]
        if before:
            fresh = [_with_silent_changes(report, before[0]) for report in fresh]
        found[_name(root, file)] = fresh
    reports = [report for name in found for report in found[name]]
    if to_read or found.keys() != known.keys():
        _save_cache(root, reports)
    return reports


def _name(root: Path, file: Path) -> str:
    return file.name if file == root else file.relative_to(root).as_posix()


def _examine(root: Path, file: Path, workers: Workers | None) -> EpisodeReport:
    return aloha.examine(root, file) if workers is None else aloha.examine(root, file, workers)


def _progress(files: list[tuple[Path, list[EpisodeReport]]]) -> Iterator[tuple[Path, list[EpisodeReport]]]:
    """The files, with a bar on a terminal, else a line every ten seconds; on stderr, since stdout may be JSON."""
    if sys.stderr.isatty() and len(files) > 1:
        yield from track(files, description="reading episodes", console=Console(stderr=True), transient=True)
        return
    said = time.monotonic()
    for number, one in enumerate(files):
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"data: read {number} of {len(files)} files", file=sys.stderr, flush=True)
        yield one


def _with_silent_changes(report: EpisodeReport, before: EpisodeReport) -> EpisodeReport:
    """`report`, with a problem for content that changed although the file's size and time did not.

    The old hashes stay, so that the problem is found again until the file is touched. Files above 256 MiB are hashed
    in part, but their pictures are hashed whole.
    """
    found = list(report.problems)
    if report.content_hash != before.content_hash:
        found.append(_silent_change(report.id, "", before.content_hash, report.content_hash or "an unreadable file"))
    pictures = dict(report.pictures or {})
    for name, old in (before.pictures or {}).items():
        if name in pictures and pictures[name].digest != old.digest:
            if report.content_hash == before.content_hash:
                found.append(_silent_change(report.id, name, old.digest, pictures[name].digest))
            pictures[name] = old
    return dataclasses.replace(
        report,
        content_hash=before.content_hash,
        problems=tuple(found),
        pictures=None if report.pictures is None else pictures,
    )


def _silent_change(file: str, dataset: str, expected: str, found: str) -> Problem:
    return Problem(
        file=file,
        dataset=dataset,
        row=None,
        expected=f"content {expected[:12]} as indexed before (touch the file to accept the new content)",
        found=f"{found[:12] if len(found) == 64 else found}, with size and modification time unchanged",
    )


def _dataset_files(root: Path, kind: str) -> list[Path]:
    if not root.exists():
        raise DataError(
            f"data.path: {root} does not exist; set --data.path to a folder of HDF5 episodes or an OGBench .npz file"
        )
    if kind == "ogbench_npz":
        if root.suffix != ".npz" or not root.is_file():
            raise DataError(f"data.path: {root} is no .npz file, which data.format=ogbench_npz expects")
        return [root]
    if not root.is_dir():
        hint = "; set --data.format ogbench_npz" if root.suffix == ".npz" else ""
        raise DataError(f"data.path: {root} is a file; data.format=aloha_hdf5 expects a folder of episodes{hint}")
    files = aloha.episode_files(root)
    if not files:
        raise DataError(
            f"data.path: {root} holds no episode; expected files *.hdf5 or *.h5, in score_<n> folders or not"
        )
    return files


def _cache_file(root: Path) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]
    return Path(home) / "chunkwise" / "index" / f"{name}.json"


def _load_cache(root: Path) -> Mapping[str, list[EpisodeReport]]:
    """Reports by file; empty where there is no readable cache, which only costs time."""
    reports: dict[str, list[EpisodeReport]] = collections.defaultdict(list)
    try:
        tree = json.loads(_cache_file(root).read_text())
        if tree["version"] == INDEX_VERSION:
            for entry in tree["reports"]:
                reports[entry["path"]].append(from_json(entry))
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(reports)


def _save_cache(root: Path, reports: Sequence[EpisodeReport]) -> None:
    file = _cache_file(root)
    tree = {
        "version": INDEX_VERSION,
        "dataset": str(root.resolve()),
        "reports": [dataclasses.asdict(report) for report in reports],
    }
    scratch = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(tree))
        scratch.replace(file)
    except OSError:  # a read-only home, a full disk: the next run reads the dataset again
        with contextlib.suppress(OSError):
            scratch.unlink()
