"""Cases: JPEG, PNG and video."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
from PIL import Image

from tests.bombs import Command, case
from tests.bombs.hdf5 import good_episode
from tests.bombs.programs import driving_validate, openpi_inspect, qchunk_inspect, train
from tests.driving.drives import write_drive
from tests.lerobot_files import CAMERAS, record, write_v21


def chunk(kind: bytes, content: bytes) -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2, rows: bytes = b"") -> bytes:
    """A PNG of chunks between its header and its data."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", head), *chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def progressive(scans: int, size: tuple[int, int] = (2000, 2000)) -> bytes:
    """A progressive JPEG whose last scan is there so many times."""
    out = io.BytesIO()
    Image.new("RGB", size, (90, 120, 60)).save(out, "JPEG", progressive=True, quality=10)
    data = out.getvalue()
    last = data.rfind(b"\xff\xda")
    scan = data[last:-2]
    return data[:-2] + scan * scans + b"\xff\xd9"


def drive(folder: Path, image: bytes) -> Path:
    """A driving dataset, the first image of which is another."""
    write_drive(folder, "a", frames=4)
    first = sorted((folder / "a_images").glob("*.jpg"))[0]
    first.write_bytes(image)
    return folder


def video(path: Path, size: tuple[int, int], frames: int, codec: str = "mpeg4") -> None:
    """A black video of height x width."""
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame(size[1], size[0], "yuv420p")
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for number in range(frames):
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@case
def jpeg_of_883_scans(folder: Path) -> Command:
    """A progressive JPEG that passes 883 times over its image."""
    return driving_validate(drive(folder, progressive(873, (48, 32))))


@case
def jpeg_of_883_scans_in_hdf5(folder: Path) -> Command:
    """The same as the rows of a camera."""
    data = np.frombuffer(progressive(873), np.uint8)
    with good_episode(folder / "episode_0.hdf5") as h5:
        h5.create_dataset("/observations/images/top", data=np.stack([data] * 20), compression="gzip")
    return qchunk_inspect(folder)


@case
def jpeg_sequential_of_many_scans(folder: Path) -> Command:
    """A JPEG that is not progressive, and whose components come in scans of their own, again and again."""
    data = progressive(900, (48, 32))
    return driving_validate(drive(folder, data.replace(b"\xff\xc2", b"\xff\xc1", 1)))


@case
def jpeg_of_65500_squared(folder: Path) -> Command:
    """A small JPEG whose header says 65,500 x 65,500."""
    out = io.BytesIO()
    Image.new("RGB", (64, 64)).save(out, "JPEG")
    data = bytearray(out.getvalue())
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65500, 65500)
    return driving_validate(drive(folder, bytes(data)))


@case
def jpeg_file_of_a_gigabyte(folder: Path) -> Command:
    """A whole JPEG, and a gigabyte of nothing behind it."""
    root = drive(folder, b"")
    out = io.BytesIO()
    Image.new("RGB", (48, 32)).save(out, "JPEG")
    with sorted((root / "a_images").glob("*.jpg"))[0].open("wb") as file:
        file.write(out.getvalue())
        file.truncate((1 << 30) - 2)
        file.seek(0, 2)
        file.write(b"\xff\xd9")
    return driving_validate(root)


@case
def png_of_ten_thousand_squared(folder: Path) -> Command:
    """A PNG of 12 KB that is 300 MB."""
    return driving_validate(drive(folder, png(10_000, 10_000)))


@case(may_read=True)
def png_of_more_data_than_pixels(folder: Path) -> Command:
    """A PNG of 48 x 32 whose data unpack to 2 GB."""
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(2000)) + packer.flush()
    head = struct.pack(">IIBBBBB", 48, 32, 8, 2, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return driving_validate(drive(folder, image))


@case(may_read=True)
def png_of_texts(folder: Path) -> Command:
    """A PNG with 500 texts and profiles, each of which unpacks to 100 MB."""
    text = zlib.compress(bytes(100 << 20), 9)
    parts = [chunk(b"zTXt", f"k{n}".encode() + b"\0\0" + text) for n in range(500)]
    parts += [chunk(b"iCCP", b"p\0\0" + text)]
    return driving_validate(drive(folder, png(48, 32, *parts, rows=(b"\0" + bytes(144)) * 32)))


@case
def png_of_16_bits(folder: Path) -> Command:
    """A depth map where an image should be, larger than the limit."""
    return driving_validate(drive(folder, png(9000, 9000, depth=16, colour=0)))


@case
def video_of_16384_by_8192(folder: Path) -> Command:
    """A video where info.json says 24 x 32."""
    root = write_v21(folder / "data", record((7,)), "video")
    for path in (root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4"):
        video(path, (8192, 16384), 7, "libx264")
    return openpi_inspect(root)


@case
def video_of_another_size(folder: Path) -> Command:
    """A video of 3000 x 4000 where info.json says 24 x 32, in training."""
    root = write_v21(folder / "data", record((7,)), "video")
    for path in (root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4"):
        video(path, (3000, 4000), 7)
    return train("openpi_ript", root)


@case
def video_that_is_a_list_of_files(folder: Path) -> Command:
    """A text that makes a player open other files."""
    root = write_v21(folder / "data", record((7,)), "video")
    (path,) = (root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4")
    path.rename(path.with_name("other.mp4"))
    path.write_text("ffconcat version 1.0\nfile 'other.mp4'\n")
    return openpi_inspect(root)


@case
def video_of_endless_samples(folder: Path) -> Command:
    """An mp4 whose table of samples says two billion."""
    root = write_v21(folder / "data", record((7,)), "video")
    (path,) = (root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4")
    content = bytearray(path.read_bytes())
    count = 400_000_000
    at = content.find(b"stsz")
    sizes = int.from_bytes(content[at + 12 : at + 16], "big")
    assert sizes == 7
    content[at + 8 : at + 16] = struct.pack(">II", 1, count)  # all samples of one byte
    at = content.find(b"stts")
    content[at + 8 : at + 16] = struct.pack(">II", 1, count)
    at = content.find(b"stsc")
    content[at + 12 : at + 20] = struct.pack(">II", 1, count)
    path.write_bytes(content)
    return openpi_inspect(root)


@case
def hdf5_rows_that_are_all_one_image(folder: Path) -> Command:
    """JPEG rows of 8K, 6,000 of them in a megabyte."""
    out = io.BytesIO()
    Image.new("RGB", (7680, 4320)).save(out, "JPEG", quality=10)
    data = np.frombuffer(out.getvalue(), np.uint8)
    count = 6000
    path = folder / "episode_0.hdf5"
    with h5py.File(path, "w") as h5:
        h5["/observations/qpos"] = np.zeros((count, 5), np.float32)
        h5["/action"] = np.zeros((count, 3), np.float32)
        rows = h5.create_dataset(
            "/observations/images/top", (count, len(data)), "u1", chunks=(100, len(data)), compression="gzip"
        )
        for first in range(0, count, 100):
            rows[first : first + 100] = np.stack([data] * 100)
    return [*qchunk_inspect(folder), "--data.limits.seconds", "20"]
