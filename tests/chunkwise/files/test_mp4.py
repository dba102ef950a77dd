"""mp4 files whose tables would be unpacked by ffmpeg without a limit, and such that change their size."""

import io
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.errors import DataError
from chunkwise.files import mp4
from chunkwise.files.mp4 import require_plain_tables
from tests.lerobot_files import CAMERAS, record, write_v21

PACKED = b"\0\0\0\x20cmov\0\0\0\x0cdcomzlib\0\0\0\x0ccmvd\0\0\0\0"


def box(kind: bytes, content: bytes, *, large: bool = False) -> bytes:
    if large:
        return struct.pack(">I4sQ", 1, kind, 16 + len(content)) + content
    return struct.pack(">I4s", 8 + len(content), kind) + content


@pytest.mark.parametrize(
    "data",
    [
        box(b"moov", PACKED),
        box(b"moov", box(b"trak", box(b"udta", PACKED))),
        box(b"mdat", bytes(100)) + box(b"moov", PACKED),
        box(b"mdat", bytes(100), large=True) + box(b"free", PACKED),
        struct.pack(">I4s", 0, b"moov") + PACKED,
        box(b"moov", bytes(64 - 8 - 20) + PACKED),  # over the border of two pieces
        b"\0\0\0\x03junk" + PACKED,
    ],
)
def test_packed_tables_are_refused_wherever_they_are(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.mp4"
    file.write_bytes(box(b"ftyp", b"qt  ") + data)
    with pytest.raises(DataError, match=r"a.mp4: expected an mp4 with plain tables, found compressed ones \(cmov\)"):
        require_plain_tables(file)
    for piece in (1, 7, 64):
        monkeypatch.setattr(mp4, "_PIECE", piece)
        with pytest.raises(DataError, match="cmov"):
            require_plain_tables(file)


def test_images_and_the_letters_alone_are_none(tmp_path: Path):
    file = tmp_path / "a.mp4"
    file.write_bytes(box(b"mdat", PACKED) + box(b"moov", b"cmov dcom") + b"\0\0")
    require_plain_tables(file)
    file.write_bytes(b"")
    require_plain_tables(file)


def test_a_video_that_changes_its_size_is_named_when_it_is_decoded_and_checked(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record((7,)), "video")
    video = sorted((root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4"))[0]
    with av.open(str(video), "w", format="mp4") as container:
        stream: Any = container.add_stream("mjpeg", rate=10)
        stream.height, stream.width, stream.pix_fmt = 24, 32, "yuvj420p"
        for n in range(7):
            jpeg = io.BytesIO()
            Image.new("RGB", (32, 24) if n < 3 else (64, 48)).save(jpeg, "JPEG")
            packet: Any = av.Packet(jpeg.getvalue())
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, n, n, Fraction(1, 10)
            packet.is_keyframe = True
            container.mux(packet)
    images = LeRobotImages(read_meta(root), CAMERAS)
    assert images.read(0, 2)[CAMERAS[0]].shape == (24, 32, 3)
    with pytest.raises(DataError, match="frame 3, found damaged data: a frame of 48 x 64 in a video of 24 x 32"):
        images.read(0, 3)
    assert images.check(0) == []
    (problem,) = images.check(0, last=True)
    assert "48 x 64" in problem.found


def test_holes_are_not_searched(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(bytes(4096))
    with open(path, "ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"a\.mp4: expected at most 4096 MiB \(holes .*--data\.limits\.hole-mib"):
        require_plain_tables(path)
