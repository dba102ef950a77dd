"""The file for Rerun's viewer, read back with its package; and what is said without the package."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError, DataError
from chunkwise.view import command
from chunkwise.view.rerun_file import AT_ONCE, _Episode, write_rerun
from chunkwise.view.source import EpisodeContent, View
from tests.chunkwise.view.played import Played


def read_back(file: Path) -> dict[str, dict[str, list[Any]]]:
    """Rows by entity and component."""
    chunks = importlib.import_module("rerun.chunk")
    found: dict[str, dict[str, list[Any]]] = {}
    for chunk in chunks.RrdReader(file).stream():
        batch = chunk.to_record_batch()
        for name in batch.schema.names:
            column = batch.column(name)
            values = column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column  # nanoseconds
            found.setdefault(chunk.entity_path, {}).setdefault(name, []).extend(values.to_pylist())
    return found


class Torn(Played):
    """Its last episode cannot be read, nor can images 3 of the others; names hold a path's own signs."""

    def __init__(self) -> None:
        super().__init__((5, AT_ONCE + 6, 4), {0: "a/b <x>\n"})

    def open(self, episode: int):
        if episode == 2:
            raise DataError("episode_2: expected a whole file, found half")
        return dataclasses.replace(super().open(episode), frames=self.lengths[episode])

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        if frame == 3:
            raise DataError("frame 3: expected an image, found none")
        return super().image(episode, camera, frame)


@pytest.mark.parametrize(
    ("times", "fps", "nanoseconds"),
    [
        (np.array([0.0, 0.1, 10.1, 10.2]), 10.0, [100_000_000, 10_100_000_000, 10_200_000_000]),  # a gap of 10 s
        (np.array([5.0, 5.5, 6.0, 6.5]), None, [5_500_000_000, 6_000_000_000, 6_500_000_000]),
        (None, 20.0, [50_000_000, 100_000_000, 150_000_000]),
        (None, None, None),
    ],
)
def test_frames_are_at_their_own_time_where_it_is_known(
    times: np.ndarray | None, fps: float | None, nanoseconds: list[int] | None
):
    sent: dict[str, Any] = {}
    rr = SimpleNamespace(
        TimeColumn=lambda name, **column: sent.setdefault(name, next(iter(column.values()))),
        new_entity_path="/".join,
    )
    stream = SimpleNamespace(send_columns=lambda *_, **__: None)
    content = EpisodeContent(cameras=(), columns={}, fps=fps, times=times)
    _Episode(rr, stream, "drive")._send("drive/speed", np.arange(1, 4), content, None)
    assert sent["frame"].tolist() == [1, 2, 3]
    assert (sent["time"].astype(np.int64).tolist() if "time" in sent else None) == nanoseconds


@pytest.mark.long
@pytest.mark.extra  # rerun, 500 MB
def test_what_is_read_back_is_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recordings, file = Torn(), tmp_path / "out.rrd"
    file.write_bytes(b"an older one")
    assert write_rerun(recordings, file) == 2
    assert list(tmp_path.iterdir()) == [file]
    found = read_back(file)
    for episode, place in ((0, r"/a\/b\ \<x\>\\n"), (1, "/episode_1")):
        content = recordings.open(episode)
        for name, x in content.columns.items():
            rows = found[f"{place}/{name}"]
            assert rows["frame"] == list(range(len(x)))
            np.testing.assert_allclose(np.array(rows["Scalars:scalars"], float), x.reshape(len(x), -1))
            assert rows["time"] == [50_000_000 * frame for frame in range(len(x))]
        assert found[f"{place}/action"]["SeriesLines:names"] == [["left", "right"]]
        images = found[f"{place}/cameras/front"]
        frames = [frame for frame in range(recordings.lengths[episode]) if frame != 3]
        assert images["frame"] == frames
        for frame, (blob,) in zip(frames, images["EncodedImage:blob"], strict=True):
            assert bytes(blob) == recordings.image(episode, "front", frame)
        assert images["EncodedImage:media_type"] == [["image/png"]] * len(frames)
        assert "1 of" in images["TextLog:text"][0][0]
    (about,) = found["/episode_1/about"]["TextDocument:text"][0]
    assert about.splitlines()[:2] == ["lift", "failure"]
    assert "row 3: expected finite numbers, found nan" in about
    assert found["/episode_1/problems"]["frame"] == [3]
    assert "found half" in found["/episode_2/about"]["TextDocument:text"][0][0]
    assert "episode_2: episode_2: expected a whole file, found half" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.extra  # rerun, 500 MB
def test_nothing_is_left_of_a_file_without_an_episode(tmp_path: Path):
    recordings = Torn()
    recordings.lengths, recordings.names = recordings.lengths[2:], recordings.names[2:]
    recordings.open = lambda episode: Torn.open(recordings, 2)
    with pytest.raises(DataError, match="expected an episode that can be read"):
        write_rerun(recordings, tmp_path / "out.rrd")
    assert not list(tmp_path.iterdir())


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ConfigError, match=f"--rerun needs the package rerun-sdk: {re.escape(pip_install('rerun'))}"):
        write_rerun(Played(), tmp_path / "out.rrd")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"out\.mp4; expected the name of a file that ends in \.rrd"):
        write_rerun(Played(), tmp_path / "out.mp4")


def test_it_takes_the_recordings_alone(capsys: pytest.CaptureFixture[str]):
    def never(*_: Any) -> View:
        raise AssertionError("nothing is opened")

    for words in (["--policy", "run"], ["--config", "qchunk/debug"]):
        with pytest.raises(SystemExit) as left:
            command.run("qchunk", "", never, ["set", "--rerun", "out.rrd", *words])
        assert left.value.code == 64
        assert "expected neither --config nor --policy" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_said_before_anything_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def never(*_: Any) -> View:
        raise AssertionError("nothing is opened")

    (tmp_path / "file").touch()
    assert command.run("qchunk", "", never, ["set", "--rerun", str(tmp_path / "file/out.rrd")]) == 74
    assert "Choose another with --rerun" in capsys.readouterr().err
