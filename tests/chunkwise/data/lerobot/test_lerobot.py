"""LeRobot datasets of both versions from disk, windows, images by time, packs, and bad datasets."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.lerobot.packing import write_pack
from chunkwise.data.lerobot.tables import FrameTable, delta_indices, iter_tables, load_table, window
from chunkwise.data.lerobot.video import LeRobotImages, VideoFile
from chunkwise.data.pack import PackedImages, read_pack_table
from chunkwise.data.shards import PackSettings
from chunkwise.errors import DataError
from tests.lerobot_files import CAMERAS, FPS, TASKS, Recorded, Storage, record, write_v21, write_v30

KEYS = ("observation.state", "action", "next.success")
Write = Callable[..., Path]
LAYOUTS: list[tuple[Write, Storage]] = [
    (write_v21, "video"),
    (write_v30, "video"),
    (write_v21, "image"),
    (write_v30, "image"),
    (write_v21, "image_file"),
]


def edit_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def good_table(root: Path) -> FrameTable:
    return load_table(read_meta(root), KEYS, on_bad="refuse")[0]


@pytest.mark.parametrize(("write", "storage"), LAYOUTS)
def test_what_was_recorded_is_what_is_read(tmp_path: Path, write: Write, storage: Storage) -> None:
    episodes = record()
    root = write(tmp_path / "set", episodes, storage)
    meta = read_meta(root)
    assert (meta.fps, meta.tasks, meta.cameras) == (FPS, dict(enumerate(TASKS)), CAMERAS)
    assert [episode.length for episode in meta.episodes] == [7, 5, 9]
    table = good_table(root)
    for key, name in zip(KEYS, ("state", "action", "success"), strict=True):
        np.testing.assert_array_equal(table.columns[key], np.concatenate([getattr(e, name) for e in episodes]))
    assert table.starts.tolist() == [0, 7, 12]
    images = LeRobotImages(meta, CAMERAS)
    order = [(e, f) for e, episode in enumerate(episodes) for f in range(len(episode.state))]
    for number in np.random.default_rng(0).permutation(len(order)):
        episode, frame = order[number]
        for camera, image in images.read(episode, frame).items():
            error = np.abs(image.astype(int) - episodes[episode].images[camera][frame])
            assert error.max() == 0 if storage != "video" else error.mean() < 2  # neighbours are 9 apart
    assert [images.check(episode) for episode in range(3)] == [[], [], []]


def test_both_versions_have_one_fingerprint_and_other_data_another(tmp_path: Path) -> None:
    tables = [good_table(w(tmp_path / str(n), record(), s)) for n, (w, s) in enumerate(LAYOUTS)]
    prints = {table.fingerprint(KEYS) for table in tables}
    assert len(prints) == 1
    other = good_table(write_v21(tmp_path / "other", record(seed=1)))
    assert other.fingerprint(KEYS) not in prints
    assert dataclasses.replace(tables[0], fps=20.0).fingerprint(KEYS) not in prints


def test_a_window_stays_in_its_episode_and_marks_what_it_repeats() -> None:
    frames, is_pad = window(np.array([0, 3, 4]), np.array([5, 5, 5]), np.array([-1, 0, 1, 2]))
    assert frames.tolist() == [[0, 0, 1, 2], [2, 3, 4, 4], [3, 4, 4, 4]]
    assert is_pad.tolist() == [[True, False, False, False], [False, False, False, True], [False, False, True, True]]


def test_delta_timestamps_must_lie_on_the_grid() -> None:
    assert delta_indices([-0.1, 0.0, 0.1, 0.30001], 10.0, key="action").tolist() == [-1, 0, 1, 3]
    with pytest.raises(DataError, match=r"action.*multiples of 1/10 s.*0\.0333"):
        delta_indices([i / 30 for i in range(3)], 10.0, key="action")


def test_a_video_frame_is_found_by_time_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    frames = record((14,))[0].images[CAMERAS[0]]
    from tests.lerobot_files import write_video

    write_video(path, frames)
    with av.open(str(path)) as container:
        in_order = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    video = VideoFile(path)
    assert len(video) == 14
    for index in [13, 0, 1, 2, 7, 6, 5, 5, 9, 13, 12, 3]:
        np.testing.assert_array_equal(video.frame_at(index / FPS, 1e-4), in_order[index])
    with pytest.raises(DataError, match=r"0\.5500 s within 0\.0001 s.*0\.0500 s away among 14 frames"):
        video.frame_at(0.55, 1e-4)
    with pytest.raises(DataError, match=r"expected a frame at 1\.4000 s"):
        video.frame_at(1.4, 1e-4)


def make_pack(root: Path, out: Path, encoding: str, size: tuple[int, int] = (24, 32)) -> PackedImages:
    meta = read_meta(root)
    settings = PackSettings(image_size=size, encoding=encoding)  # pyright: ignore[reportArgumentType]
    write_pack(out, meta, good_table(root), CAMERAS, settings)
    return PackedImages(out, read_pack_table(out), CAMERAS)


@pytest.mark.parametrize(("write", "storage"), LAYOUTS[1:3])
def test_raw_and_packed_agree(tmp_path: Path, write: Write, storage: Storage) -> None:
    root = write(tmp_path / "set", record(), storage)
    unpacked = LeRobotImages(read_meta(root), CAMERAS)
    exact = make_pack(root, tmp_path / "raw", "raw")
    jpeg = make_pack(root, tmp_path / "jpeg", "jpeg")
    table = read_pack_table(tmp_path / "raw")
    assert table.fingerprint(KEYS) == good_table(root).fingerprint(KEYS)
    for episode, frame in [(2, 8), (0, 0), (1, 4), (0, 6)]:
        wanted = unpacked.read(episode, frame)
        for camera in CAMERAS:
            np.testing.assert_array_equal(exact.read(episode, frame)[camera], wanted[camera])
            error = np.abs(jpeg.read(episode, frame)[camera].astype(int) - wanted[camera])
            assert error.mean() <= 1.5  # the bound of quality 95 on smooth images
            assert error.max() <= 12


def test_shards_hold_whole_episodes_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkwise.data.packing.FRAMES_PER_SHARD", 12)
    root = write_v21(tmp_path / "set", record(), "image")
    images = make_pack(root, tmp_path / "pack", "raw")
    manifest = json.loads((tmp_path / "pack/manifest.json").read_text())
    assert [shard["rows"] for shard in manifest["shards"]] == [12, 9]
    wanted = LeRobotImages(read_meta(root), CAMERAS).read(2, 3)[CAMERAS[1]]
    np.testing.assert_array_equal(images.read(2, 3)[CAMERAS[1]], wanted)


def test_a_damaged_pack_is_never_read_silently(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    image = make_pack(root, tmp_path / "pack", "raw").read(1, 2)[CAMERAS[1]]
    with pytest.raises(DataError, match="does not exist yet"):
        make_pack(root, tmp_path / "pack", "raw")
    shard = tmp_path / "pack/pictures-00000.arrayrecord"
    data = bytearray(shard.read_bytes())
    data[data.index(image.tobytes()) + 100] ^= 1
    shard.write_bytes(data)
    images = PackedImages(tmp_path / "pack", read_pack_table(tmp_path / "pack"), CAMERAS)
    with pytest.raises(DataError, match=r"episode 1, row 2: expected a whole record, found .*hash mismatch"):
        images.read(1, 2)
    assert set(images.read(1, 3)) == set(CAMERAS)
    shard.write_bytes(bytes(data[: len(data) // 2]))
    with pytest.raises(DataError, match="ArrayRecord"):
        PackedImages(tmp_path / "pack", read_pack_table(tmp_path / "pack"), CAMERAS)
    with pytest.raises(DataError, match=r"cameras.*'top'"):
        PackedImages(tmp_path / "pack", read_pack_table(tmp_path / "pack"), ["top"])
    (tmp_path / "pack/tables.npz").write_bytes((tmp_path / "pack/tables.npz").read_bytes()[:500])
    with pytest.raises(DataError, match=r"tables\.npz"):
        read_pack_table(tmp_path / "pack")


def spoil(field: str, row: int, value: float) -> Callable[[list[Recorded]], None]:
    def change(episodes: list[Recorded]) -> None:
        getattr(episodes[1], field)[row] = value

    return change


BAD_ROWS = [
    (
        "state",
        2,
        np.nan,
        "observation.state",
        r"finite numbers that float32 holds, found \[nan.* \(1 rows",
    ),
    ("action", 4, np.inf, "action", "finite numbers"),
    ("task", 3, 7, "task_index", r"a task of meta/tasks, which has \[0, 1\], found 7"),
    ("timestamp", 4, 0.43, "timestamp", "10 fps"),
]


@pytest.mark.parametrize("write", [write_v21, write_v30])
@pytest.mark.parametrize(("field", "row", "value", "key", "words"), BAD_ROWS)
def test_a_bad_row_is_named(
    tmp_path: Path, write: Write, field: str, row: int, value: float, key: str, words: str
) -> None:
    episodes = record()
    spoil(field, row, value)(episodes)
    root = write(tmp_path / "set", episodes, "image")
    with pytest.raises(DataError, match=rf"episode 1, data/.*\.parquet: {key}, row {row}: expected .*{words}"):
        good_table(root)


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    episodes = record()
    episodes[0].state[1] = np.nan
    episodes[2].timestamp += 1
    root = write_v21(tmp_path / "set", episodes, "image")
    (root / "data/chunk-000/episode_000001.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"3 of 3 episodes are bad: 3 problem\(s\)") as error:
        good_table(root)
    assert [line.split(",")[0].strip() for line in str(error.value).splitlines()[1:]] == [
        f"episode {n}" for n in range(3)
    ]


def test_one_bad_episode_in_a_hundred_may_be_skipped(tmp_path: Path) -> None:
    episodes = record((2,) * 100, size=(8, 8))
    episodes[41].state[1] = np.nan
    root = write_v30(tmp_path / "set", episodes, "image")
    table, problems = load_table(read_meta(root), KEYS, on_bad="skip")
    assert [problem.episode for problem in problems] == [41]
    assert table.episodes.tolist() == [n for n in range(100) if n != 41]
    assert table.frames == 198
    episodes[42].state[1] = np.nan
    root = write_v30(tmp_path / "worse", episodes, "image")
    with pytest.raises(DataError, match="2 of 100 episodes are bad"):
        load_table(read_meta(root), KEYS, on_bad="skip")


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def narrower(table: pa.Table) -> pa.Table:
    values = [row[:5] for row in table["observation.state"].to_pylist()]
    return table.set_column(0, "observation.state", pa.array(values, pa.list_(pa.float32())))


def one_short_row(table: pa.Table) -> pa.Table:
    values = table["observation.state"].to_pylist()
    values[2] = values[2][:5]
    return table.set_column(0, "observation.state", pa.array(values, pa.list_(pa.float32())))


def one_null(table: pa.Table) -> pa.Table:
    values = table["observation.state"].to_pylist()
    values[3][1] = None
    return table.set_column(0, "observation.state", pa.array(values, pa.list_(pa.float32())))


def too_large_for_float32(table: pa.Table) -> pa.Table:
    values = table["observation.state"].to_pylist()
    values[2][1] = 1e300
    return table.set_column(0, "observation.state", pa.array(values, pa.list_(pa.float64())))


BAD_TABLES = [
    (
        too_large_for_float32,
        r"observation\.state, row 2: expected finite numbers that float32 holds, found .*1e\+300",
    ),
    (narrower, r"observation\.state, row 0: expected 6 values as info\.json's shape \[6\] says, found 5 values"),
    (one_short_row, r"observation\.state, row 2: expected 6 values.*found 5"),
    (one_null, r"observation\.state, row 3: expected numbers, found 1 nulls"),
    (lambda table: table.slice(0, 3), "3 rows where meta/ says 5"),
    (lambda table: table.drop_columns(["action"]), r"no column \['action'\]"),
    (lambda table: table.take([0, 2, 1, 3, 4]), r"frame_index, row 1: expected 0, 1, 2, \.\.\., found 2 \(2 rows"),
]


@pytest.mark.parametrize(("change", "words"), BAD_TABLES)
def test_a_bad_table_is_named(tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: str) -> None:
    root = write_v21(tmp_path / "set", record(), "image_file")
    rewrite(root / "data/chunk-000/episode_000001.parquet", change)
    with pytest.raises(DataError, match=rf"episode 1, data/chunk-000/episode_000001\.parquet.*{words}"):
        good_table(root)


def test_a_truncated_table_is_named(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", record(), "image")
    path = root / "data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    found = list(iter_tables(read_meta(root), KEYS))
    assert [len(episode.problems) for episode in found] == [1, 1, 0]
    assert "file-000.parquet" in str(found[0].problems[0])
    assert "damaged parquet" in str(found[1].problems[0])


BAD_INFO = [
    ({"codebase_version": "v1.6"}, "codebase_version: expected v2.0, v2.1 or v3.0"),
    ({"fps": 0}, "fps: expected a number above 0, found 0"),
    ({"total_frames": 22}, "total_frames: expected 22, found 21 in meta/episodes"),
    ({"total_episodes": "3"}, "total_episodes: expected int, found '3'"),
    ({"features": {"action": 3}}, "action: expected"),
    ({"data_path": "../elsewhere/{episode_index:06d}.parquet"}, "expected a path inside the dataset"),
    ({"data_path": "/etc/{episode_index:06d}"}, "expected a path inside the dataset"),
    ({"data_path": "https://host/{episode_index}"}, "expected a path inside the dataset"),
    ({"data_path": "{episode_index.__class__}"}, "expected data_path made of"),
    ({"data_path": "{episode_index:0999999999d}"}, "expected data_path made of"),
    ({"data_path": "{episode}"}, "expected data_path made of"),
]


@pytest.mark.parametrize(("values", "words"), BAD_INFO)
def test_a_bad_description_is_named(tmp_path: Path, values: dict[str, object], words: str) -> None:
    root = write_v21(tmp_path / "set", record(), "image_file")
    edit_json(root / "meta/info.json", **values)
    with pytest.raises(DataError, match="expected") as error:
        good_table(root)
    assert words in str(error.value)


def test_episodes_must_count_from_zero_and_not_be_empty(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image_file")
    path = root / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2]]))
    with pytest.raises(DataError, match="expected 1 in place 1, found 2"):
        read_meta(root)
    path.write_text("\n".join([lines[0], lines[1].replace('"length": 5', '"length": 0'), lines[2]]))
    with pytest.raises(DataError, match=r"episode 1, meta/episodes: length: expected at least 1 frame, found 0"):
        read_meta(root)
    path.write_text("\n".join([lines[0], lines[1].replace("1", "NaN", 1), lines[2]]))
    with pytest.raises(DataError, match=r"episodes\.jsonl, line 2.*NaN"):
        read_meta(root)


def test_version_20_is_read_as_21(tmp_path: Path) -> None:
    """The dataset of openpi's LIBERO example is of that version; they differ in statistics that are not used here."""
    root = write_v21(tmp_path / "set", record(), "image")
    wanted = good_table(root)
    edit_json(root / "meta/info.json", codebase_version="v2.0")
    assert good_table(root).fingerprint(KEYS) == wanted.fingerprint(KEYS)


def test_lists_of_one_value_are_single_values(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image_file")
    wanted = good_table(root)

    def listed(table: pa.Table) -> pa.Table:
        for key in ("timestamp", "next.success", "frame_index"):
            values = pa.array([[value] for value in table[key].to_pylist()])
            table = table.set_column(table.schema.get_field_index(key), key, values)
        return table

    for index in range(3):
        rewrite(root / f"data/chunk-000/episode_{index:06d}.parquet", listed)
    found = good_table(root)
    assert found.columns["next.success"].shape == (21,)
    np.testing.assert_array_equal(found.columns["next.success"], wanted.columns["next.success"])


def set_column(name: str, values: list[object]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.get_field_index(name), name, pa.array(values))


BAD_EPISODE_TABLES = [
    ("length", [7.0, 5.0, 9.5], "episode 0, meta/episodes/.*: expected whole numbers.*found {'length': 7.0}"),
    ("length", [7, 5, None], "episode 2, meta/episodes/.*found {'length': None}"),
    ("episode_index", ["0", "1", "2"], "meta/episodes/.*expected whole numbers.*found {'episode_index': '0'}"),
    ("data/file_index", ["0", "0", "1"], "episode 0, .*found {'data/file_index': '0'}; the same in episode 1, "),
    (f"videos/{CAMERAS[0]}/from_timestamp", ["0", "0", "1"], "episode 2, .*seconds in from_timestamp, found .*'1'"),
    (f"videos/{CAMERAS[0]}/from_timestamp", [0.0, np.nan, 0.5], "episode 1, .*from_timestamp': nan"),
    (
        f"videos/{CAMERAS[0]}/from_timestamp",
        [0.0, 0.0, 0.2],
        rf"episode 2, videos/.*/file-001.mp4: {CAMERAS[0]}: expected a start at 0.500 s or later, where episode 1 ends",
    ),
]


@pytest.mark.parametrize(("column", "values", "words"), BAD_EPISODE_TABLES)
def test_a_bad_table_of_episodes_is_named(tmp_path: Path, column: str, values: list[object], words: str) -> None:
    root = write_v30(tmp_path / "set", record())
    rewrite(root / "meta/episodes/chunk-000/file-000.parquet", set_column(column, values))
    with pytest.raises(DataError, match=words):
        read_meta(root)


def test_a_link_that_leads_out_is_refused_but_not_the_hub_cache(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "hub/snapshots/abc", record(), "image_file")
    table = root / "data/chunk-000/episode_000001.parquet"
    blobs = tmp_path / "hub/blobs"
    blobs.mkdir()
    table.rename(blobs / "1234")
    table.symlink_to(blobs / "1234")
    assert good_table(root).frames == 21
    (blobs / "1234").rename(tmp_path / "outside.parquet")
    table.unlink()
    table.symlink_to(tmp_path / "outside.parquet")
    with pytest.raises(DataError, match=r"episode 1.*inside the dataset"):
        good_table(root)


@pytest.mark.parametrize("write", [write_v21, write_v30])
def test_a_video_with_too_few_frames_is_named_with_both_counts(tmp_path: Path, write: Write) -> None:
    from tests.lerobot_files import write_video

    episodes = record()
    root = write(tmp_path / "set", episodes)
    film = sorted((root / "videos").rglob(f"*{CAMERAS[0]}*/**/*.mp4"))[-1]
    frames = episodes[2].images[CAMERAS[0]][:6] if write is write_v21 else episodes[1].images[CAMERAS[0]][:5]
    write_video(film, frames)
    meta = read_meta(root)
    problems = [str(problem) for e in range(3) for problem in LeRobotImages(meta, CAMERAS).check(e)]
    assert len(problems) == 1
    assert problems[0].startswith("episode 2, videos/")
    assert "expected 9 frames" in problems[0]
    assert f"among the {len(frames)} frames of the video" in problems[0]


def test_missing_and_damaged_images_are_named(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record())
    film = root / f"videos/chunk-000/{CAMERAS[1]}/episode_000001.mp4"
    film.write_bytes(film.read_bytes()[:200])
    (root / f"videos/chunk-000/{CAMERAS[0]}/episode_000002.mp4").unlink()
    meta = read_meta(root)
    images = LeRobotImages(meta, CAMERAS)
    assert f"episode 1, videos/chunk-000/{CAMERAS[1]}/episode_000001.mp4" in str(images.check(1)[0])
    assert "no such file" in str(images.check(2)[0])
    with pytest.raises(DataError, match="to be a camera"):
        LeRobotImages(meta, ["action"])
    with pytest.raises(DataError, match=r"expected feature 'top', found"):
        LeRobotImages(meta, ["top"])


def test_a_truncated_image_in_a_table_is_named(tmp_path: Path) -> None:
    episodes = record()
    root = write_v21(tmp_path / "set", episodes, "image_file")
    image = root / f"images/{CAMERAS[0]}/episode_000001/frame_000003.png"
    image.write_bytes(image.read_bytes()[:60])
    images = LeRobotImages(read_meta(root), CAMERAS)
    with pytest.raises(DataError, match=rf"episode 1, {CAMERAS[0]}, row 3: expected a whole JPEG or PNG of 24 x 32"):
        images.read(1, 3)
    image.unlink()
    with pytest.raises(DataError, match=r"row 3: expected the image images/.*found no file"):
        images.read(1, 3)


def test_a_disk_that_hiccups_is_tried_four_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    images = LeRobotImages(read_meta(write_v21(tmp_path / "set", record(), "image")), CAMERAS)
    good, calls = images._read_camera, []

    def hiccup(*args: object):
        calls.append(args)
        if len(calls) < limit:
            raise OSError("stale file handle")
        return good(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(images, "_read_camera", hiccup)
    limit = 4
    assert set(images.read(0, 0)) == set(CAMERAS)
    calls.clear()
    limit = 10
    words = r"set: episode 0, data/.*000000\.parquet, row 1: expected images .*found stale file handle in up to 4 tries"
    with pytest.raises(DataError, match=words):
        images.read(0, 1)


def test_a_damaged_page_of_images_is_named_when_it_is_read(tmp_path: Path) -> None:
    """Opening looks at an episode's first and last image alone: what is between can only show while training."""
    root = write_v21(tmp_path / "set", record(), "image")
    path = root / "data/chunk-000/episode_000001.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    group = pq.ParquetFile(path).metadata.row_group(2)
    names = [group.column(n).path_in_schema for n in range(group.num_columns)]
    chunk = group.column(names.index(f"{CAMERAS[0]}.bytes"))
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 24] = b"\xff" * 24
    path.write_bytes(data)
    images = LeRobotImages(read_meta(root), CAMERAS)
    assert images.check(1) == []
    with pytest.raises(DataError, match=r"set: episode 1, data/.*000001\.parquet, row 2: expected images of .*found"):
        images.read(1, 2)
