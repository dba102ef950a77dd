"""What a file may cost: each limit holds just below and refuses just above, with the flag that raises it."""

import dataclasses
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chunkwise.cli.command import Parser
from chunkwise.data.images import decode
from chunkwise.data.lerobot.video import VideoFile
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.npz import read_npz
from chunkwise.files.parquet import open_parquet, read_columns, read_rows
from chunkwise.files.strict_json import parse_json, read_json
from tests.lerobot_files import write_video


def refused(do: Callable[[], object], name: str) -> str:
    """The message of the refusal by one limit."""
    with pytest.raises(budget.LimitError) as error:
        do()
    assert error.value.limit == name
    assert budget.flag(name) in str(error.value)
    return str(error.value)


def jpeg(**settings: object) -> bytes:
    """An image of 6 x 10 pixels."""
    out = io.BytesIO()
    Image.new("RGB", (10, 6), (90, 120, 60)).save(out, "JPEG", **settings)
    return out.getvalue()


def test_size_of_metadata(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with budget.using(metadata_mib=1):
        file.write_text('"' + "x" * ((1 << 20) - 2) + '"')
        assert len(read_json(file)) == (1 << 20) - 2
        file.write_text('"' + "x" * ((1 << 20) - 1) + '"')
        assert "a.json: expected at most 1 MiB" in refused(lambda: read_json(file), "metadata_mib")


def test_values_of_json() -> None:
    with budget.using(metadata_values=5):
        assert parse_json("[1, 2, 3, [4]]", source="a") == [1, 2, 3, [4]]  # 2 brackets and 3 commas
        refused(lambda: parse_json("[1, 2, 3, [4, 5]]", source="a"), "metadata_values")


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_levels_of_json(opened: str, closed: str) -> None:
    with budget.using(json_depth=7):
        parse_json(opened * 7 + "1" + closed * 7, source="a")
        refused(lambda: parse_json(opened * 8 + "1" + closed * 8, source="a"), "json_depth")


def test_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    with budget.using(seconds=5):
        clock = budget.Clock("a.json")
        now[0] = 105.0
        clock.check()
        now[0] = 105.1
        assert "a.json: expected at most 5 seconds" in refused(clock.check, "seconds")


def test_arrays_of_one_file_count_together() -> None:
    spent = budget.Spent("a", 100 << 20)  # may expand to 5000 MiB
    with budget.using(decoded_mib=3):
        spent.add(2 << 20)
        spent.add(1 << 20)
        assert "a: b: expected" in refused(lambda: spent.add(1, "b"), "decoded_mib")
        spent.add(1, streamed=True)


def test_expansion_above_what_is_free() -> None:
    with budget.using(free_mib=2, expansion=3):
        budget.Spent("a", 10).add(2 << 20)
        refused(lambda: budget.Spent("a", 10).add((2 << 20) + 1), "expansion")
        budget.Spent("a", 1 << 20).add(3 << 20)
        refused(lambda: budget.Spent("a", 1 << 20).add((3 << 20) + 1, streamed=True), "expansion")


def test_an_npz_is_asked_for_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x=np.zeros(1 << 18, np.float32), y=np.arange(3))
    with budget.using(free_mib=1):
        assert read_npz(file, ["x"])["x"].shape == (1 << 18,)
        refused(lambda: read_npz(file), "expansion")
    with budget.using(table_columns=2):
        assert sorted(read_npz(file)) == ["x", "y"]
    with budget.using(table_columns=1):
        refused(lambda: read_npz(file), "table_columns")


def test_an_npz_is_read_as_numpy_reads_it(tmp_path: Path) -> None:
    arrays = {
        "a": np.random.default_rng(0).normal(size=(7, 3)),
        "empty": np.zeros((4, 0), np.int32),
        "text": np.array("{}"),
        "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
        "bool": np.arange(5) > 2,
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
        found = read_npz(tmp_path / "a.npz")
        assert list(found) == list(arrays)
        for name, x in arrays.items():
            assert found[name].dtype == x.dtype
            np.testing.assert_array_equal(found[name], x)


def test_headers_of_arrays_that_lie(tmp_path: Path) -> None:
    def member(text: bytes, data: bytes = b"", version: bytes = b"\x01\x00", size: int | None = None) -> Path:
        length = len(text) if size is None else size
        head = b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", length) + text
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", head + data)
        return tmp_path / "a.npz"

    def words(shape: str, descr: str = "'<f4'") -> bytes:
        return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()

    cases = [
        (words("(((((3,"), b"", "expected an array's header"),
        (words("(2,)"), bytes(4), "expected 8 bytes for float32 of shape .2,., found 4"),
        (words("(1,)"), bytes(8), "expected 4 bytes for float32 of shape .1,., found 8"),
        (words("(-1,)"), bytes(4), "expected a shape of sizes of at least 0"),
        (words("(1,)", "'|O'"), bytes(8), "expected numbers or text, found dtype object"),
        (words("(9" + "9" * 30 + ",)"), b"", "expected 39999"),
    ]
    for text, data, expected in cases:
        with pytest.raises(DataError, match=expected):
            read_npz(member(text, data))
    with pytest.raises(DataError, match="header of at most 65536 bytes"):
        read_npz(member(words("(1,)"), size=1 << 30, version=b"\x02\x00"))


def table(path: Path, **columns: pa.Array) -> Path:
    """Writes a parquet file."""
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def test_rows_and_columns_of_a_table(tmp_path: Path) -> None:
    file = table(tmp_path / "a.parquet", a=pa.array([1, 2, 3]), b=pa.array([1, 2, 3]))
    with budget.using(table_rows=3, table_columns=2, metadata_values=6):
        assert len(read_rows(file, open_parquet(file), ["a", "b"])) == 3
    with budget.using(table_rows=2):
        refused(lambda: open_parquet(file), "table_rows")
    with budget.using(table_columns=1):
        refused(lambda: open_parquet(file), "table_columns")
    with budget.using(metadata_values=5):
        refused(lambda: read_rows(file, open_parquet(file), ["a", "b"]), "metadata_values")


def test_memory_of_a_table(tmp_path: Path) -> None:
    numbers = pa.array(np.zeros(129_000))  # 1 MiB with arrow's bits of validity, in a few hundred bytes
    texts = pa.array(["x" * 4096] * 257)
    file = table(tmp_path / "a.parquet", a=numbers)
    with budget.using(free_mib=1):
        assert read_columns(file, open_parquet(file), ["a"]).num_rows == 129_000
    file = table(tmp_path / "b.parquet", a=pa.array(np.zeros(1 << 17)))
    with budget.using(free_mib=1):
        refused(lambda: read_columns(file, open_parquet(file), ["a"]), "expansion")
    file = table(tmp_path / "c.parquet", a=texts)  # its dictionary has one text: the rest shows only while it is read
    with budget.using(free_mib=1):
        refused(lambda: read_columns(file, open_parquet(file), ["a"]), "expansion")


def test_pixels_of_an_image() -> None:
    with budget.using(image_pixels=60):
        assert decode(jpeg(), source="a").shape == (6, 10, 3)
    with budget.using(image_pixels=59):
        assert "a: expected at most 59 pixels" in refused(lambda: decode(jpeg(), source="a"), "image_pixels")


def test_scans_of_a_jpeg() -> None:
    data = jpeg(progressive=True)
    scans = data.count(b"\xff\xda")
    assert scans > 3
    with budget.using(image_scans=scans):
        assert decode(data, source="a").shape == (6, 10, 3)
    with budget.using(image_scans=scans - 1):
        refused(lambda: decode(data, source="a"), "image_scans")
        decode(jpeg(), source="a")  # one scan


def test_a_scan_cannot_be_hidden_by_what_comes_before_it() -> None:
    data = jpeg(progressive=True)
    comment = b"\xff\xfe\x00\x04\xff\xc0"
    for begin in (comment, b"\x00", b"\xff", b"\xff\x01", b"\xff\xd0", comment * 200):
        with budget.using(image_scans=2), pytest.raises(DataError):
            decode(data[:2] + begin + data[2:], source="a")


def test_frames_of_a_video(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", np.zeros((4, 24, 32, 3), np.uint8))
    with budget.using(video_frames=4, image_pixels=24 * 32):
        assert len(VideoFile(tmp_path / "a.mp4")) == 4
    with budget.using(video_frames=3):
        refused(lambda: VideoFile(tmp_path / "a.mp4"), "video_frames")
    with budget.using(image_pixels=24 * 32 - 1):
        refused(lambda: VideoFile(tmp_path / "a.mp4"), "image_pixels")


def test_a_video_of_another_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", np.zeros((2, 24, 32, 3), np.uint8))
    video = VideoFile(tmp_path / "a.mp4")
    for shape in ([24, 32, 3], [3, 24, 32], [1]):
        video.require_size(shape)
    with pytest.raises(DataError, match=r"expected frames of shape .32, 24, 3."):
        video.require_size([32, 24, 3])


def test_a_list_of_other_files_is_no_video(tmp_path: Path) -> None:
    write_video(tmp_path / "b.mp4", np.zeros((2, 24, 32, 3), np.uint8))
    (tmp_path / "a.mp4").write_text("ffconcat version 1.0\nfile 'b.mp4'\n")
    with pytest.raises(DataError, match="expected a video"):
        VideoFile(tmp_path / "a.mp4")


def test_pipes_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (budget.open_file, budget.regular, budget.read_bytes, read_json, read_npz, VideoFile, open_parquet):
        with pytest.raises(DataError, match=r"pipe: expected a regular file, found a pipe"):
            read(tmp_path / "pipe")


def test_size_of_an_encoded_image_and_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes((1 << 20) + 1))
    for name in ("image_mib", "record_mib"):
        with budget.using(**{name: 1}):
            refused(lambda name=name: budget.read_bytes(tmp_path / "a", name), name)
            budget.require(name, 1 << 20, "a")


@pytest.mark.parametrize(("first", "found"), [(5, b"abcdefghi"), (9, b"abcdefghi"), (12, b"abcdefghijkl")])
def test_a_file_is_read_whole_in_parts_and_while_it_grows(
    first: int, found: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 9 bytes when it is opened; the first read gives `first` of them, further ones come in pairs."""
    content = found[:9] if first <= 9 else found
    path, sizes, read = tmp_path / "a", [first, *[2] * 9], os.read
    path.write_bytes(content[:9])

    def in_parts(descriptor: int, count: int) -> bytes:
        path.write_bytes(content)
        return read(descriptor, min(count, sizes.pop(0)))

    monkeypatch.setattr(os, "read", in_parts)
    assert budget.read_bytes(path) == found


def test_a_file_that_grows_over_its_limit_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "a", os.read
    path.write_bytes(bytes(1 << 20))

    def grown(descriptor: int, count: int) -> bytes:
        path.write_bytes(bytes(2 << 20))
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", grown)
    with budget.using(metadata_mib=1):
        refused(lambda: budget.read_bytes(path), "metadata_mib")


def test_the_command_line_of_a_tool_goes_over_any_config() -> None:
    arguments = Parser().parse_args(["--data.limits.image-pixels", "7"])
    assert vars(arguments) == {}
    budget.use(dataclasses.replace(budget.LIMITS, image_pixels=8, image_scans=9))
    assert (budget.current().image_pixels, budget.current().image_scans) == (7, 9)
    with pytest.raises(SystemExit) as stop:
        Parser().parse_args(["--data.limits.image-pixels", "0"])
    assert stop.value.code == 64


@pytest.mark.parametrize("turn", [0, 1])
def test_limits_of_one_test_do_not_reach_the_next(turn: int) -> None:
    assert budget.current() == budget.LIMITS
    budget.use(dataclasses.replace(budget.LIMITS, image_pixels=1))
    budget.override(image_scans=1)


def test_every_limit_has_its_line_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
    for field in dataclasses.fields(budget.Limits):
        assert f"| `{budget.flag(field.name)}` | {field.default:,} {field.metadata['unit']} |" in text, field.name


def test_one_key_twice_among_many_is_found_in_linear_time() -> None:
    text = json.dumps({f"k{n}": 0 for n in range(100_000)})[:-1] + ', "k99999": 1}'
    with pytest.raises(DataError, match="'k99999' twice"):
        parse_json(text, source="a")


def test_row_groups_and_the_footer_of_a_parquet_file_are_asked_for(tmp_path: Path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), file, row_group_size=1)
    with budget.using(table_groups=3):
        assert open_parquet(file).num_row_groups == 3
    with budget.using(table_groups=2):
        refused(lambda: open_parquet(file), "table_groups")
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"note": "x" * (2 << 20)}), file)
    with budget.using(metadata_mib=1):
        assert "footer" in refused(lambda: open_parquet(file), "metadata_mib")
    with budget.using(metadata_mib=6):
        assert open_parquet(file).num_row_groups == 1
