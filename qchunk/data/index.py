"""The index of a dataset: every episode is read once, judged before training starts, and remembered.

What a file holds is cached by its name and content, for all runs; what a run makes of it (labels, arrays it needs) is
judged anew each time.
"""

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import track

from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.problems import MAX_SKIPPED, Problem, list_problems, refuse
from chunkwise.data.threads import Workers
from chunkwise.data.walking import CRASH, crash, walk
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError
from chunkwise.files import budget, cache
from chunkwise.files.identity import Files, open_files
from qchunk.config import DataConfig
from qchunk.data.mixture import names_within
from qchunk.data.readers import aloha, lerobot, ogbench, own
from qchunk.data.readers.report import EpisodeReport, GoodEpisodes, from_json
from qchunk.data.relabel import single_task
from qchunk.data.selection import Selection, select

INDEX_VERSION = 11
SECONDS_BETWEEN_LINES = 10.0


def open_source(data: DataConfig, *, files: Files | None = None) -> tuple[EpisodeSource, tuple[str, ...]]:
    """The dataset's good episodes, and what the run should say about them.

    Args:
      data: Which dataset, and how to take it.
      files: From `dataset_files`, which is called if this is None.

    Raises:
      DataError: The folder is missing or empty, or episodes are bad: all problems in one message.
      ConfigError: data.task names no task, or the simulator is not installed.
    """
    files = dataset_files(data) if files is None else files
    reports = read_index(data, files=files)
    selection = select(reports, data)
    notes = list(selection.notes)
    if selection.problems:
        _refuse_or_note(selection, data, notes)
    if not selection.reports:
        declined = f"The reader {data.format} returned None for each of {len(files.own)} files."
        why = selection.notes if reports else (declined,)
        raise DataError(f"{data.path}: no episode is left to train on. {' '.join(why)}")
    return make_source(selection, data, files), tuple(notes)


def make_source(selection: Selection, data: DataConfig, files: Files) -> EpisodeSource:
    """The good episodes of a selection, at least one, whatever else is wrong with the dataset.

    Raises:
      ConfigError: data.task names no task, or the simulator is not installed.
    """
    task = None if data.task is None else single_task(data.task, sparse=data.sparse)
    good = GoodEpisodes(
        path=Path(data.path),
        reports=selection.reports,
        positives=selection.positives,
        files=files,
        action=data.action,
    )
    if ":" in data.format:
        return own.OwnSource(good, own.reader(data.format))
    success = selection.success_reward
    if data.format == "lerobot":
        return lerobot.LeRobotSource(good, success_reward=success)
    if data.format == "ogbench_npz":
        return ogbench.OgbenchSource(good, task=task, success_reward=success)
    return aloha.AlohaSource(good, task=task, base_action=data.base_action, success_reward=success)


def _refuse_or_note(selection: Selection, data: DataConfig, notes: list[str]) -> None:
    total = len(selection.bad) + len(selection.reports)
    all_by = f"python -m qchunk.inspect {data.path} --json"
    if data.on_bad == "refuse":
        hint = "Repair or remove these files, or set --data.on-bad skip to leave out up to 1 % of the episodes."
        if not selection.reports and _all_alike(selection):
            hint = (
                "It is so in each episode: rather the config than the files is to be changed (data.cameras, "
                "data.depth_cameras, data.observation, data.action, data.format)."
            )
        raise refuse(selection.problems, hint, all_by=all_by)
    if data.format == "ogbench_npz" and (uncut := [name for name in selection.bad if name.endswith(".npz")]):
        hint = f"{', '.join(uncut[:3])}: cannot be cut into episodes, which alone data.on_bad=skip leaves out."
        raise refuse(selection.problems, hint, all_by=all_by)
    if len(selection.bad) > MAX_SKIPPED * total:
        hint = f"{len(selection.bad)} of {total} episodes are bad; data.on_bad=skip leaves out at most 1 %."
        raise refuse(selection.problems, hint, all_by=all_by)
    notes.append(f"skipped {len(selection.bad)} bad episode(s) of {total} (data.on_bad=skip):")
    for folder in sorted(data.mixture):
        bad, good = (
            sum(name.startswith(f"{folder}/") for name in names)
            for names in (selection.bad, [report.id for report in selection.reports])
        )
        if bad > MAX_SKIPPED * (bad + good):
            notes.append(f"  {bad} of the {bad + good} of {folder}, whose weight the other {good} bear alone")
    notes.extend(f"  {line}" for line in list_problems(selection.problems, all_by=all_by))


def _all_alike(selection: Selection) -> bool:
    """Whether several episodes lack the same, and nothing else is wrong with any."""
    reasons = Counter((problem.key, problem.expected) for problem in selection.problems)
    return len(selection.bad) > 1 and set(reasons.values()) == {len(selection.bad)}


def dataset_files(data: DataConfig) -> Files:
    """The files of the dataset, each hashed unless it was before and was not touched since; and data.norm_stats.

    Raises:
      DataError: The folder or file is missing, of the wrong kind, or holds no episode; or links lead out of it.
    """
    files = open_files(data.path, data)
    files.require(dataset_names(files, data))
    if data.norm_stats is not None:
        files.add_other("data.norm_stats", Path(data.norm_stats))
    return files


def read_index(
    data: DataConfig,
    *,
    files: Files | None = None,
    reread: bool = False,
    images: bool | None = None,
    hands: Hands | None = None,
) -> list[EpisodeReport]:
    """A report on every episode below data.path, from the cache where a file's content is known.

    Args:
      data: Only `path`, `format` and whether there are cameras matter.
      files: From `dataset_files`, which is called if this is None.
      reread: Read every file again, whatever the cache says.
      images: Decode every image of every camera; by default where data names a camera.
      hands: By how many processes, and where; the reports do not depend on it.

    Raises:
      DataError: As `dataset_files`, or a file changed while it was read.
    """
    budget.use(data.limits)
    root = Path(data.path)
    files = dataset_files(data) if files is None else files
    if data.format == "lerobot":  # tables are read in a moment: nothing is cached
        return lerobot.examine(root, files, hands or Hands())
    known = {} if ":" in data.format else _load_cache(root)
    images = bool(data.cameras or data.depth_cameras) if images is None else images
    decode = images and data.format == "aloha_hdf5"
    found: dict[str, list[EpisodeReport]] = {}
    to_read = []
    for name in files.own:
        content, before = known.get(name, ("", []))
        untouched = bool(before) and (before[0].size, before[0].mtime_ns) == (files.size(name), files.mtime_ns(name))
        bad = [str(problem) for report in before for problem in (*report.problems, *report.image_problems)]
        # The limits may be others now than when a file was found to be above one.
        known_bad = untouched and not any(budget.is_limit(problem) for problem in bad)
        found[name] = before
        same = bool(before) and content == files.hash(name) and (not bad or known_bad)
        if same and not untouched:
            found[name] = [dataclasses.replace(report, mtime_ns=files.mtime_ns(name)) for report in before]
        if not same or reread or (decode and before[0].images is None and before[0].content_hash):
            to_read.append((name, before if untouched else []))
    unread = _Unread(root=root, files=files, names=[name for name, _ in to_read], data=data, decode=decode)
    read = walk(unread, hands or Hands())
    for (name, before), fresh in zip(_progress(to_read), read, strict=True):
        files.require_unchanged(files.place(name))
        if before:
            fresh = [_with_silent_changes(report, before[0]) for report in fresh]
        found[name] = fresh
    if ":" not in data.format and (to_read or found.keys() != known.keys()):
        _save_cache(root, files, found)
    return [report for name in found for report in found[name]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Unread:
    """Files that must be read."""

    root: Path
    files: Files
    names: Sequence[str]
    data: DataConfig
    decode: bool

    def __len__(self) -> int:
        return len(self.names)

    def open(self) -> Callable[[int], list[EpisodeReport]]:
        workers = Workers(self.data.decode_threads) if self.decode else None
        return lambda number: _examine(self.root, self.files, self.names[number], self.data, workers)

    def crashed(self, number: int, found: str) -> list[EpisodeReport]:
        name, files = self.names[number], self.files
        about = {"path": name, "size": files.size(name), "mtime_ns": files.mtime_ns(name)}
        problems = (crash(name, found),)
        return [EpisodeReport(**about, id=name, content_hash=files.hash(name) or "", problems=problems)]


def _examine(root: Path, files: Files, name: str, data: DataConfig, workers: Workers | None) -> list[EpisodeReport]:
    """What one file holds, read now."""
    digest = files.hash(name) or ""
    if ":" in data.format:
        return own.examine(root, name, own.reader(data.format), digest=digest)
    if data.format == "ogbench_npz":
        return ogbench.examine(Path(files.bounds.path(name)), digest=digest)
    if workers is None:
        return [aloha.examine(root, root / name, digest=digest)]
    return [aloha.examine(root, root / name, workers, digest=digest)]


def _progress(files: list[tuple[str, list[EpisodeReport]]]) -> Iterator[tuple[str, list[EpisodeReport]]]:
    """The names, with a bar on a terminal, else a line every ten seconds; on stderr, since stdout may be JSON."""
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
    in part, but their images are hashed whole.
    """
    found = list(report.problems)
    if report.content_hash != before.content_hash:
        found.append(_silent_change(report.id, "", before.content_hash, report.content_hash or "an unreadable file"))
    images = dict(report.images or {})
    for name, old in (before.images or {}).items():
        if name in images and images[name].digest != old.digest:
            if report.content_hash == before.content_hash:
                found.append(_silent_change(report.id, name, old.digest, images[name].digest))
            images[name] = old
    return dataclasses.replace(
        report,
        content_hash=before.content_hash,
        problems=tuple(found),
        images=None if report.images is None else images,
    )


def _silent_change(file: str, dataset: str, expected: str, found: str) -> Problem:
    return Problem(
        file=file,
        key=dataset,
        expected=f"content {expected[:12]} as indexed before (touch the file to accept the new content)",
        found=f"{found[:12] if len(found) == 64 else found}, with size and modification time unchanged",
    )


def dataset_names(files: Files, data: DataConfig) -> list[str]:
    """Returns the names of the episode files; raises DataError where there are none."""
    root, kind = Path(data.path), data.format
    if not root.exists() and ":" in kind:
        raise DataError(f"data.path: {root} does not exist (in {Path.cwd()}); expected what the reader {kind} reads")
    if not root.exists():
        raise DataError(
            f"data.path: {root} does not exist; set --data.path to a folder of HDF5 episodes, an OGBench .npz file or "
            f"a LeRobot dataset; a relative path starts at the folder the command was given in, {Path.cwd()}"
        )
    if kind == "lerobot":
        return lerobot.dataset_names(root, files)
    if kind == "ogbench_npz":
        return ogbench.file_names(root)
    if ":" in kind:
        return names_within(data, list(files.bounds.walk(None))) if root.is_dir() else [root.name]
    if not root.is_dir():
        hint = "; set --data.format ogbench_npz" if root.suffix == ".npz" else ""
        if root.suffix in (".hdf5", ".h5"):  # of robomimic, say, with all episodes
            hint = f". One file with many episodes is converted first: python -m qchunk.convert {root} OUT"
        raise DataError(f"data.path: {root} is a file; data.format=aloha_hdf5 expects a folder of episodes{hint}")
    names = aloha.episode_names(files.bounds)
    if not names and is_lerobot(root):
        raise DataError(
            f"data.path: {root} is a LeRobot dataset; set --data.format lerobot, or, to train on its images, convert "
            f"it: python -m qchunk.convert {root} OUT"
        )
    if not names:
        raise DataError(
            f"data.path: {root} holds no episode; expected files *.hdf5 or *.h5, in score_<n> folders or not"
        )
    return names_within(data, names)


def format_of(root: Path) -> Literal["aloha_hdf5", "ogbench_npz", "lerobot"]:
    """Returns the data.format of a folder or file, by what it holds."""
    if is_lerobot(root):
        return "lerobot"
    if root.suffix.lower() == ".npz":
        return "ogbench_npz"
    episodes = (path for path in root.rglob("*") if path.suffix.lower() in (".hdf5", ".h5"))
    return "ogbench_npz" if any(root.glob("*.[nN][pP][zZ]")) and not any(episodes) else "aloha_hdf5"


def is_lerobot(root: Path) -> bool:
    """Whether a folder is laid out as a LeRobot dataset."""
    return (root / "meta" / "info.json").is_file()


def _load_cache(root: Path) -> Mapping[str, tuple[str, list[EpisodeReport]]]:
    """Content hash and reports by file; empty where there is no readable cache, which only costs time."""
    reports: dict[str, tuple[str, list[EpisodeReport]]] = {}
    try:
        tree = json.loads(cache.read("qchunk", cache.key_of(root)) or b"")
        if tree["version"] == INDEX_VERSION:
            for name, content in tree["files"].items():
                reports[name] = (content["hash"], [from_json(entry) for entry in content["reports"]])
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError):
        return {}
    return reports


def _save_cache(root: Path, files: Files, found: Mapping[str, Sequence[EpisodeReport]]) -> None:
    tree = {
        "version": INDEX_VERSION,
        "files": {
            name: {"hash": files.hash(name), "reports": [dataclasses.asdict(report) for report in reports]}
            for name, reports in found.items()
            # A crash may have been of too little memory: such a file is read again.
            if not any(problem.expected == CRASH for report in reports for problem in report.problems)
        },
    }
    cache.write("qchunk", cache.key_of(root), json.dumps(tree).encode())
