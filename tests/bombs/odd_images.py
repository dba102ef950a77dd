"""Cases: images and videos of rare kinds, and such that change, end or turn."""

import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from tests.bombs import Command, case
from tests.bombs.hdf5 import good_episode
from tests.bombs.images import chunk, drive, png
from tests.bombs.programs import driving_validate, openpi_inspect, qchunk_convert, qchunk_inspect, train_lerobot
from tests.lerobot_files import CAMERAS, record, write_v21

SIZE = (48, 32)
"""Width and height of the images of tests.driving.drives."""
ROWS = (b"\0" + bytes(144)) * 32


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = SIZE, **settings: Any) -> bytes:
    """An image of any format of Pillow."""
    out = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(out, kind, **settings)
    return out.getvalue()


def shown(folder: Path, image: bytes) -> Command:
    """The image in a drive."""
    return driving_validate(drive(folder, image))


def in_hdf5(folder: Path, image: bytes) -> Command:
    """The image as all rows of a camera."""
    with good_episode(folder / "episode_0.hdf5") as h5:
        h5["/observations/images/top"] = np.stack([np.frombuffer(image, np.uint8)] * 20)
    return qchunk_inspect(folder)


def film(folder: Path, data: bytes | None = None, name: str = "data") -> tuple[Path, Path]:
    """A LeRobot dataset, and one of its videos, which is made to hold `data`."""
    root = write_v21(folder / name, record((7, 9, 8)), "video")
    path = sorted((root / "videos").glob(f"*/{CAMERAS[0]}/*.mp4"))[0]
    if data is not None:
        path.write_bytes(data)
    return root, path


def box(kind: bytes, content: bytes) -> bytes:
    """Of an mp4."""
    return struct.pack(">I", 8 + len(content)) + kind + content


def edited(path: Path, kind: bytes, at: int, content: bytes) -> None:
    """Writes over a box of an mp4, `at` bytes behind its name."""
    data = bytearray(path.read_bytes())
    place = data.find(kind)
    assert place > 0
    data[place + 4 + at : place + 4 + at + len(content)] = content
    path.write_bytes(data)


@case(may_read=True)
def jpeg_of_cmyk(folder: Path) -> Command:
    """A JPEG of four inks, in a drive."""
    return shown(folder, encoded("JPEG", "CMYK"))


@case(may_read=True)
def jpeg_of_cmyk_in_hdf5(folder: Path) -> Command:
    """The same as the rows of a camera."""
    return in_hdf5(folder, encoded("JPEG", "CMYK"))


@case(may_read=True)
def jpeg_of_grey_in_hdf5(folder: Path) -> Command:
    """A grey JPEG as the rows of a camera."""
    return in_hdf5(folder, encoded("JPEG", "L"))


@case
def jpeg_of_12_bits(folder: Path) -> Command:
    """A JPEG whose header says 12 bits."""
    data = bytearray(encoded("JPEG"))
    at = data.find(b"\xff\xc0")
    data[at + 1], data[at + 4] = 0xC1, 12
    return shown(folder, bytes(data))


@case
def jpeg_of_arithmetic_codes(folder: Path) -> Command:
    """A JPEG whose header says arithmetic coding."""
    return shown(folder, encoded("JPEG").replace(b"\xff\xc0", b"\xff\xc9", 1))


@case
def jpeg_without_loss(folder: Path) -> Command:
    """A JPEG whose header says lossless."""
    return shown(folder, encoded("JPEG").replace(b"\xff\xc0", b"\xff\xc3", 1))


@case
def jpeg_without_height(folder: Path) -> Command:
    """A JPEG of height 0, whose lines are to be counted."""
    data = bytearray(encoded("JPEG"))
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 7] = b"\0\0"
    return shown(folder, bytes(data))


@case
def jpeg_of_restarts(folder: Path) -> Command:
    """30 million restart markers behind the first block."""
    data = encoded("JPEG")
    at = data.rfind(b"\xff\xda") + 20
    return shown(folder, data[:at] + b"\xff\xd0" * 30_000_000 + b"\xff\xd9")


@case
def jpeg_of_comments(folder: Path) -> Command:
    """900 comments of 64 KB, in 59 MB, and half an image."""
    data = encoded("JPEG")
    return shown(folder, data[:2] + (b"\xff\xfe\xff\xff" + bytes(65533)) * 900 + data[2 : len(data) // 2] + b"\xff\xd9")


@case(may_read=True)
def jpeg_turned_by_exif(folder: Path) -> Command:
    """A JPEG that says that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return shown(folder, encoded("JPEG", exif=exif))


@case(may_read=True)
def jpeg_with_exif_in_a_circle(folder: Path) -> Command:
    """EXIF directories that lead to one another."""
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 8)
    data = encoded("JPEG")
    return shown(folder, data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:])


@case(may_read=True)
def jpeg_one_pixel_high(folder: Path) -> Command:
    """65,500 x 1."""
    return in_hdf5(folder, encoded("JPEG", size=(65_500, 1)))


@case
def png_with_a_wrong_checksum(folder: Path) -> Command:
    """A PNG whose pixels do not have their checksum."""
    data = bytearray(png(*SIZE, rows=ROWS))
    data[-16] ^= 1
    return shown(folder, bytes(data))


@case
def png_without_half_its_rows(folder: Path) -> Command:
    """A PNG whose pixels end early, all checksums right."""
    return shown(folder, png(*SIZE, rows=ROWS[: len(ROWS) // 2]))


@case
def png_of_two_headers(folder: Path) -> Command:
    """A PNG with a second header, of 20,000 x 20,000."""
    head = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return shown(folder, png(*SIZE, chunk(b"IHDR", head), rows=ROWS))


@case(may_read=True)
def png_that_moves(folder: Path) -> Command:
    """An APNG that says that it has two billion frames."""
    return shown(folder, png(*SIZE, chunk(b"acTL", struct.pack(">II", 2_000_000_000, 0)), rows=ROWS))


@case(may_read=True)
def png_of_16_bits_and_alpha(folder: Path) -> Command:
    """16 bits a channel, and one of them transparency: half the bits would be lost."""
    rows = (b"\0" + bytes(48 * 8)) * 32
    return shown(folder, png(*SIZE, depth=16, colour=6, rows=rows))


@case
def postscript_called_jpg(folder: Path) -> Command:
    """A program for a printer, which Pillow would give to Ghostscript."""
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 32\n%%EndComments\n{} loop\n%%EOF\n"
    return shown(folder, text)


@case
def tiff_called_jpg(folder: Path) -> Command:
    """A TIFF whose directory follows itself."""
    entries = [(256, 3, 48), (257, 3, 32), (258, 3, 8), (262, 3, 1), (273, 4, 8), (278, 3, 32), (279, 4, 1536)]
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, t, 1, v) for tag, t, v in entries)
    return shown(folder, b"II*\0" + struct.pack("<I", 8) + body + struct.pack("<I", 8))


@case
def gif_called_jpg(folder: Path) -> Command:
    """A GIF."""
    return shown(folder, encoded("GIF", "P"))


@case
def icon_called_jpg(folder: Path) -> Command:
    """An icon whose image is a PNG of 30,000 x 30,000."""
    inner = png(30_000, 30_000)
    head = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 48, 32, 0, 0, 1, 24, len(inner), 22)
    return shown(folder, head + inner)


@case
def lerobot_image_of_another_kind(folder: Path) -> Command:
    """A frame's PNG is 16 bits deep, grey, and of another size."""
    root = write_v21(folder / "data", record((7, 9, 8)), "image_file")
    sorted((root / "images").glob("**/*.png"))[0].write_bytes(png(640, 480, depth=16, colour=0))
    return openpi_inspect(root)


@case
def video_of_no_frames(folder: Path) -> Command:
    """A track, and nothing in it."""
    root, path = film(folder)
    for kind in (b"stsz", b"stts", b"stsc", b"stco"):
        edited(path, kind, 8 if kind == b"stsz" else 4, bytes(4))
    return openpi_inspect(root)


@case
def video_of_a_huge_timescale(folder: Path) -> Command:
    """A timescale of four billion ticks a second: all frames are in one instant."""
    root, path = film(folder)
    edited(path, b"mdhd", 12, b"\xff\xff\xff\xff")
    return openpi_inspect(root)


@case
def video_without_a_timescale(folder: Path) -> Command:
    """A timescale of 0."""
    root, path = film(folder)
    edited(path, b"mdhd", 12, bytes(4))
    return openpi_inspect(root)


@case
def video_of_negative_times(folder: Path) -> Command:
    """Frames that last -2 seconds."""
    root, path = film(folder)
    edited(path, b"stts", 12, b"\xff\xff\xf0\x00")
    return openpi_inspect(root)


@case
def video_that_leaves_out_its_start(folder: Path) -> Command:
    """An edit list that starts at the fourth frame."""
    root, path = film(folder)
    edited(path, b"elst", 12, struct.pack(">i", 4096))
    return openpi_inspect(root)


@case(may_read=True)
def video_that_lies_on_its_side(folder: Path) -> Command:
    """A matrix that turns the image by 90 degrees: 24 x 32 is shown as 32 x 24."""
    root, path = film(folder)
    edited(path, b"tkhd", 40, struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30))
    return openpi_inspect(root)


@case
def video_that_changes_its_size(folder: Path) -> Command:
    """The first frame is 24 x 32, the others 4000 x 4000; each is an image of its own."""
    root, path = film(folder)
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream("mjpeg", rate=10)
        stream.height, stream.width, stream.pix_fmt = 24, 32, "yuvj420p"
        for n in range(7):
            packet = av.Packet(encoded("JPEG", size=(32, 24) if n == 0 else (4000, 4000)))
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, n, n, Fraction(1, 10)
            packet.is_keyframe = True
            container.mux(packet)
    return openpi_inspect(root)


@case
def video_whose_tables_are_packed(folder: Path) -> Command:
    """Its tables are 2 GB, deflated to 2 MB (QuickTime's cmov)."""
    packer = zlib.compressobj(9)
    size = 2_000_000_000
    inner = b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()
    cmov = box(b"cmov", box(b"dcom", b"zlib") + box(b"cmvd", struct.pack(">I", size) + inner))
    root, _ = film(folder, box(b"ftyp", b"qt  \0\0\2\0qt  ") + box(b"moov", cmov))
    return openpi_inspect(root)


@case
def video_of_deep_boxes(folder: Path) -> Command:
    """200,000 boxes in one another."""
    depth = 200_000
    data = b"".join(struct.pack(">I", 8 * (depth - n)) + b"udta" for n in range(depth))
    root, _ = film(folder, box(b"ftyp", b"isom\0\0\2\0isom") + box(b"moov", data))
    return openpi_inspect(root)


@case
def video_that_is_an_image(folder: Path) -> Command:
    """A PNG of 24 x 32 called mp4."""
    root, _ = film(folder, png(32, 24, rows=(b"\0" + bytes(96)) * 24))
    return openpi_inspect(root)


@case
def video_that_is_a_subtitle(folder: Path) -> Command:
    """An mp4 in which there is sound alone."""
    root, path = film(folder)
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream("aac", rate=48_000)
        frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
        frame.sample_rate = 48_000
        frame.planes[0].update(bytes(4096))
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return openpi_inspect(root)


@case
def video_cut_short(folder: Path) -> Command:
    """The last frames are not there, the tables in front say they are; converted."""
    root, path = film(folder)
    whole = path.with_suffix(".whole.mp4")
    path.rename(whole)
    with av.open(str(whole)) as old, av.open(str(path), "w", options={"movflags": "faststart"}) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    whole.unlink()
    path.write_bytes(path.read_bytes()[:-300])
    return qchunk_convert(root)


@case
def video_cut_short_in_training(folder: Path) -> Command:
    """A video of which half is zeros, in training."""
    root, path = film(folder)
    data = bytearray(path.read_bytes())
    at = data.find(b"mdat")
    data[at + 800 : at + 1600] = bytes(800)
    path.write_bytes(data)
    return train_lerobot(root)
