"""Episodes for a page that shows them (chunkwise/view): the same readers as training's, good episodes and bad ones."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from chunkwise.data.images import encode_depth_png, encode_png, read_image_size, require_few_scans
from chunkwise.data.problems import Problem
from chunkwise.data.threads import Workers, step_back
from chunkwise.errors import DataError, one_line
from chunkwise.files.identity import Files, open_files
from chunkwise.files.npz import read_npz
from chunkwise.view.source import EpisodeContent, EpisodeSummary, Recordings
from qchunk.config import DataConfig
from qchunk.data.index import dataset_names
from qchunk.data.readers import aloha, ogbench
from qchunk.data.readers.aloha_images import ALSO_DEPTH, COLOUR, DEPTH, is_jpeg, require_depth
from qchunk.data.readers.hdf5 import UNREADABLE, Refused, members, open_h5, require_affordable, resolve
from qchunk.data.readers.report import EpisodeReport
from qchunk.data.selection import label_of, select


def open_recordings(data: DataConfig) -> Recordings:
    """Opens a dataset of which `path`, `format` and the links that are allowed are taken.

    Raises:
      DataError: There is none, or it is LeRobot's.
    """
    if data.format == "lerobot":
        raise DataError(
            f"{data.path}: expected ALOHA HDF5 or OGBench .npz, found a LeRobot folder, whose images Q-chunking does "
            f"not read; chunkwise view openpi_ript {data.path} shows it, with a config or policy of openpi_ript"
        )
    files = open_files(data.path, data)
    names = dataset_names(files, data)
    if data.format == "ogbench_npz":
        return OgbenchRecordings(data, files, names)
    return AlohaRecordings(data, files, names)


class AlohaRecordings:
    """A folder of ALOHA-layout HDF5 episodes. A file is open only while one of its frames is read."""

    kind = "ALOHA HDF5"

    def __init__(self, data: DataConfig, files: Files, names: Sequence[str]) -> None:
        """Takes the names of the files; opens none."""
        self.title, self.names = data.path, names
        self._data, self._files = data, files

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Reads each file without its images, then again with them, as `inspect` does."""
        step_back()
        root, places = self._files.bounds.root, {name: place for place, name in enumerate(self.names)}
        told: dict[str, EpisodeSummary] = {}
        for workers in (None, Workers(1)):
            reports = []
            for place, name in enumerate(self.names):
                reports.append(aloha.examine(root, self._path(place), workers, digest=""))
                told[name] = _summary(reports[-1], self._data)
                yield place, told[name]
            for name, summary in _judged(reports, told, self._data):
                yield places[name], summary

    def open(self, episode: int) -> EpisodeContent:
        name, path = self.names[episode], self._path(episode)
        problems: list[Problem] = []
        cameras: list[str] = []
        try:
            with open_h5(path) as h5:
                require_affordable(h5, aloha.DATASETS.values())
                columns, _ = aloha.read_arrays(h5, name)  # the problems are in the summary
                for group in (COLOUR, DEPTH, ALSO_DEPTH):
                    try:
                        cameras += [f"{group}/{camera}" for camera in members(h5, group)]
                    except Refused as refused:
                        problems.append(refused.problem(name, group))
        except UNREADABLE as error:
            raise DataError(f"{path}: expected a whole HDF5 file, found {one_line(error)}") from error
        first = ("action", "base_action", "qpos", "state", "reward")
        order = [key for key in first if key in columns] + [key for key in columns if key not in first]
        return EpisodeContent(
            cameras=tuple(cameras), columns={key: columns[key] for key in order}, problems=tuple(problems)
        )

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        source = f"{self.names[episode]}: {camera}, row {frame}"
        try:
            with open_h5(self._path(episode)) as h5:
                dataset = resolve(h5, camera)
                if dataset is None:
                    raise Refused("a dataset of this name", "none")
                return _encoded(dataset, camera, frame, source)
        except Refused as refused:
            raise DataError(f"{source}: {refused}") from refused
        except UNREADABLE as error:
            raise DataError(f"{source}: expected readable data, found {one_line(error)}") from error

    def _path(self, episode: int) -> Path:
        return self._files.bounds.require(self.names[episode])


def _encoded(dataset: h5py.Dataset, camera: str, frame: int, source: str) -> bytes:
    """One image: a JPEG as recorded without its padding, else PNG."""
    jpeg = camera.startswith(f"{COLOUR}/") and is_jpeg(dataset)
    if not camera.startswith(f"{COLOUR}/"):
        require_depth(dataset)
    if frame >= len(dataset):
        raise Refused(f"at least {frame + 1} rows", f"{len(dataset)} rows")
    row = np.asarray(dataset[frame])
    if not jpeg:
        return encode_png(row) if row.ndim == 3 else encode_depth_png(row)
    content = row.tobytes().rstrip(b"\0")
    read_image_size(content, source=source)
    require_few_scans(content, source=source)
    return content


class OgbenchRecordings:
    """The episodes of OGBench's .npz files, which have no images. The arrays of two files are kept in memory."""

    kind = "OGBench .npz"

    def __init__(self, data: DataConfig, files: Files, names: Sequence[str]) -> None:
        """Reads where episodes end.

        Raises:
          DataError: A file cannot be cut into episodes.
        """
        self.title, self._data, self._files, self._paths = data.path, data, files, names
        spans = {name: _spans(files.bounds.require(name)) for name in names}
        # File, first row and end of each episode.
        self._places = [(name, *span) for name, found in spans.items() for span in found]
        self.names = [f"{name}#{number}" for name, found in spans.items() for number in range(len(found))]
        self._arrays = functools.lru_cache(2)(lambda name: ogbench.read_arrays(files.bounds.require(name))[0])

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Reads the files, as `inspect` does."""
        step_back()
        reports: list[EpisodeReport] = []
        told: dict[str, EpisodeSummary] = {}
        places = {name: place for place, name in enumerate(self.names)}
        for name in self._paths:
            found = ogbench.examine(self._files.bounds.require(name), digest="")
            if found and found[0].id not in places:  # of the file, which could not be cut
                raise DataError(*found[0].problems)
            for report in found:
                told[report.id] = _summary(report, self._data)
                yield places[report.id], self._in_episode(told[report.id], places[report.id])
            reports += found
        for name, summary in _judged(reports, told, self._data):
            yield places[name], self._in_episode(summary, places[name])

    def open(self, episode: int) -> EpisodeContent:
        name, first, end = self._places[episode]
        try:
            return EpisodeContent(cameras=(), columns=ogbench.cut(self._arrays(name), first, end))
        except OSError as error:
            raise DataError(f"{name}: expected a whole .npz file, found {one_line(error)}") from error

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        raise DataError(f"{self.names[episode]}: expected no camera, found {camera}")

    def _in_episode(self, summary: EpisodeSummary, episode: int) -> EpisodeSummary:
        """Counts the rows of problems from the episode's first."""
        first = self._places[episode][1]
        rows = [problem.row if problem.row is None else problem.row - first for problem in summary.problems]
        moved = [dataclasses.replace(one, row=row) for one, row in zip(summary.problems, rows, strict=True)]
        return dataclasses.replace(summary, problems=tuple(moved))


def _spans(path: Path) -> list[tuple[int, int]]:
    """First row and end of each episode of a file. Raises DataError if it does not say."""
    key = ogbench.KEYS["terminal"]
    try:
        found = read_npz(path, [key])
    except OSError as error:
        raise DataError(f"{path}: expected a whole .npz file, found {one_line(error)}") from error
    spans = ogbench.boundaries(found[key].reshape(-1)) if key in found and found[key].size else []
    if not spans:
        raise DataError(f"{path}: {key}: expected the ends of at least 1 episode, found none")
    return spans


def _summary(report: EpisodeReport, data: DataConfig) -> EpisodeSummary:
    """What one episode says of itself."""
    return EpisodeSummary(
        name=report.id,
        task=report.env or "",
        success=label_of(report, data),
        length=report.length,
        total_reward=report.total_reward,
        problems=(*report.problems, *report.image_problems),
    )


def _judged(
    reports: Sequence[EpisodeReport], told: Mapping[str, EpisodeSummary], data: DataConfig
) -> Iterator[tuple[str, EpisodeSummary]]:
    """The episodes that are wrong only beside others, such as one with fewer joints than most."""
    found: dict[str, list[Problem]] = {}
    for problem in select(reports, data, all_images=True).problems:
        found.setdefault(problem.file, []).append(problem)
    for name, problems in found.items():
        if tuple(problems) != told[name].problems:
            told_of = {str(problem) for problem in told[name].problems}
            more = [problem for problem in problems if str(problem) not in told_of]
            yield name, dataclasses.replace(told[name], problems=(*told[name].problems, *more))
