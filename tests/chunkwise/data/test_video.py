from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from chunkwise.data.video import write_mp4


def _frames(count: int, height: int, width: int) -> Iterator[np.ndarray]:
    """A grey ramp over time with a red left half, so that order and colour can be read back."""
    for i in range(count):
        frame = np.full((height, width, 3), 20 * i, np.uint8)
        frame[:, : width // 2] = (200, 30, 30)
        yield frame


def _read(path: Path) -> tuple[list[np.ndarray], str, str, float]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return frames, stream.codec_context.name, str(stream.codec_context.pix_fmt), float(stream.average_rate or 0)


def test_frames_come_back_in_order_and_colour(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "film.mp4"
    assert write_mp4(path, _frames(10, 48, 64), fps=12.5) == 10
    frames, codec, pixel_format, rate = _read(path)
    assert codec == "h264"
    assert pixel_format == "yuv420p"
    assert rate == 12.5
    assert [f.shape for f in frames] == [(48, 64, 3)] * 10
    for i, frame in enumerate(frames):
        np.testing.assert_allclose(frame[:, 40:].mean(), 20 * i, atol=4)
        np.testing.assert_allclose(frame[:, :24].mean(axis=(0, 1)), (200, 30, 30), atol=8)


def test_odd_sizes_grow_by_one(tmp_path: Path) -> None:
    write_mp4(tmp_path / "odd.mp4", _frames(3, 31, 33), fps=5.0)
    frames, *_ = _read(tmp_path / "odd.mp4")
    assert [f.shape for f in frames] == [(32, 34, 3)] * 3


def test_a_failed_film_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"frame 1 of .*film.mp4 has shape \(4, 6, 3\)"):
        write_mp4(tmp_path / "film.mp4", [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)], fps=5.0)
    with pytest.raises(ValueError, match="no frames"):
        write_mp4(tmp_path / "film.mp4", [], fps=5.0)
    assert list(tmp_path.iterdir()) == []
