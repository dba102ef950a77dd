import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from chunkwise.errors import ConfigError, DataError
from qchunk.config import DataConfig
from qchunk.data import (
    Pool,
    dims,
    image_store,
    make_batches,
    open_dataset,
    refresh,
    specification_batch,
    specification_batches,
    stream,
)
from qchunk.data import dataset as dataset_lib
from qchunk.data.frames import Planes
from tests.qchunk.image_recordings import CAMERAS, HEIGHT, WIDTH, dataset, write_episode
from tests.qchunk.recordings import ACTION, assert_same, config

SMALL = (10, 14)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def plain_image(root: Path, episode: str, camera: str, frame: int, size: tuple[int, int] | None) -> np.ndarray:
    """An image read from the file without any code of the loader."""
    with h5py.File(root / episode, "r") as h5:
        row: Any = h5[f"/observations/images/{camera}"]
        if row.ndim == 4:
            image = row[frame]
        else:
            jpeg = row[frame].tobytes().rstrip(b"\0")
            small: Any = {} if size is None else {"min_height": size[0], "min_width": size[1]}
            image = simplejpeg.decode_jpeg(jpeg, **small)
    if size is None:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BOX))


@pytest.mark.parametrize("size", [None, SMALL])
@pytest.mark.parametrize(
    ("kind", "large_image"),
    [
        ("decoded", 0),
        ("decoded", image_store.LARGE_IMAGE),
        ("recorded", image_store.LARGE_IMAGE),
        ("raw", 0),
        ("raw", image_store.LARGE_IMAGE),
        ("raw recorded", 0),
    ],
)
def test_images_have_the_bits_of_a_plain_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: tuple[int, int] | None, large_image: int
):
    monkeypatch.setattr(image_store, "LARGE_IMAGE", large_image)
    root = dataset(tmp_path, jpeg="raw" not in kind)
    frames = {"raw": "auto", "raw recorded": "recorded"}.get(kind, kind)
    pool = Pool(config(root, cameras=CAMERAS, image_size=size, frames=frames, episodes_per_epoch=6), 0, 0)
    rng = np.random.default_rng(0)
    for _ in range(40):
        episode = int(rng.integers(6))
        start, last = int(rng.integers(pool.lengths[episode])), int(pool.lengths[episode]) - 1
        found = pool.transition(episode, start)
        for key, frame in (("observations", start), ("next_observations", min(start + 5, last))):
            for k, camera in enumerate(CAMERAS):
                plain = plain_image(root, pool.ids[episode], camera, frame, size)
                np.testing.assert_array_equal(found[key]["images"][k], plain, strict=True)
            assert found[key]["depth_images"] is None


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (13, 31), (48, 64), (20, 90)])
def test_planes_give_back_what_was_put(size: tuple[int, int]):
    rng = np.random.default_rng(1)
    kept = Planes(planes=np.empty((3, 3, *size), np.uint8))
    images = rng.integers(0, 256, (3, *size, 3), np.uint8)
    for frame, image in enumerate(images):
        kept.put(frame, image)
    out = np.zeros((5, *size, 3), np.uint8)  # images of odd sizes begin at any byte
    for frame, place in ((2, 1), (0, 3)):
        kept.write(frame, out[place])
    np.testing.assert_array_equal(out[[1, 3]], images[[2, 0]])
    assert not out[[0, 2, 4]].any()
    larger = rng.integers(0, 256, (50, 90, 3), np.uint8)
    kept.put(1, larger)
    kept.write(1, out[0])
    how = Image.Resampling.BOX if size[0] <= 50 and size[1] <= 90 else Image.Resampling.BILINEAR
    np.testing.assert_array_equal(out[0], np.asarray(Image.fromarray(larger).resize((size[1], size[0]), how)))
    with pytest.raises(ValueError, match="expected uint8 of"):
        kept.write(0, np.zeros((size[0] + 1, size[1], 3), np.uint8))


def take(batches: Any, count: int) -> list[Any]:
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("changes", [{"frames": "recorded"}, {"read_threads": 2}, {"decode_threads": 1}, {"shards": 1}])
def test_what_is_kept_where_never_shows_in_a_batch(tmp_path: Path, changes: dict[str, Any]):
    settings: dict[str, Any] = {"cameras": CAMERAS[:2], "depth_cameras": ("cam_high",), "image_size": SMALL}
    root = dataset(tmp_path, depth=True)
    one = take(make_batches(config(root, frames="decoded", decode_threads=3, **settings)), 25)
    settings |= {"frames": "decoded"} | changes
    other = take(make_batches(config(root, **settings)), 25)
    for a, b in zip(one, other, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize(("shards", "processes", "frames"), [(2, 4, "recorded"), (1, 4, "decoded"), (4, 2, "recorded")])
def test_processes_share_the_images_of_a_batch(tmp_path: Path, shards: int, processes: int, frames: str):
    """Each its own rows: the first of a shard's slice, later ones, or the slices of several shards."""
    settings: dict[str, Any] = {"cameras": CAMERAS[:2], "depth_cameras": ("cam_high",), "image_size": SMALL}
    root = dataset(tmp_path, lengths=(6, 9), depth=True)
    cfg = config(root, shards=shards, episodes_per_epoch=2, frames=frames, **settings)
    whole = take(make_batches(cfg), 2)
    parts = [take(make_batches(cfg, shard=p, num_shards=processes), 2) for p in range(processes)]
    for step, batch in enumerate(whole):
        assert_same(batch, stream._concatenate([part[step] for part in parts]))


def test_shapes_cameras_and_dims(tmp_path: Path):
    root = dataset(tmp_path, depth=True)
    cfg = config(root, cameras=("cam_high",), depth_cameras=("cam_high",))
    batch: Any = next(make_batches(cfg))
    assert (batch["observations"]["images"].shape, batch["observations"]["images"].dtype) == (
        (8, 1, HEIGHT, WIDTH, 3),
        np.uint8,
    )
    assert batch["next_observations"]["depth_images"].shape == (8, 1, HEIGHT, WIDTH)
    assert batch["next_observations"]["depth_images"].dtype == np.uint16
    assert dims(cfg).cameras == ("cam_high",)
    assert dims(cfg).image_size == (HEIGHT, WIDTH)
    assert dims(config(root, cameras=CAMERAS, image_size=SMALL)).image_size == SMALL
    assert dims(config(root)).image_size is None


@pytest.mark.parametrize("kind", [">u2", ">f4"])
def test_depth_of_the_other_byte_order_is_the_same(kind: str, tmp_path: Path):
    here, there = dataset(tmp_path / "here", lengths=(6, 6), depth=True), tmp_path / "there"
    dataset(there, lengths=(6, 6), depth=True)
    name = "/observations/images_depth/cam_high"
    for root, order in ((here, False), (there, True)):
        for file in root.iterdir():
            with h5py.File(file, "r+") as h5:
                maps = np.asarray(h5[name]).astype(np.dtype(kind) if order else np.dtype(kind).newbyteorder("="))
                del h5[name]
                h5[name] = maps
    for size in (None, (HEIGHT // 2, WIDTH // 4)):
        settings: dict[str, Any] = {"depth_cameras": ("cam_high",), "episodes_per_epoch": 2, "image_size": size}
        one, other = (Pool(config(root, **settings), 0, 0).transition(0, 3)["observations"] for root in (here, there))
        np.testing.assert_array_equal(one["depth_images"], other["depth_images"], strict=True)
    assert other["depth_images"].dtype.isnative


def test_depth_is_the_nearest_pixel(tmp_path: Path):
    root = dataset(tmp_path, lengths=(6, 6), depth=True)
    settings: dict[str, Any] = {"depth_cameras": ("cam_high",), "episodes_per_epoch": 2}
    whole = Pool(config(root, **settings), 0, 0)
    small = Pool(config(root, image_size=(HEIGHT // 2, WIDTH // 4), **settings), 0, 0)
    with h5py.File(root / whole.ids[0], "r") as h5:
        maps: Any = h5["/observations/images_depth/cam_high"]
        np.testing.assert_array_equal(whole.transition(0, 3)["observations"]["depth_images"][0], maps[3], strict=True)
        plain = maps[3][1::2, 2::4]
    np.testing.assert_array_equal(small.transition(0, 3)["observations"]["depth_images"][0], plain, strict=True)


def test_blue_jpegs_are_turned_back(tmp_path: Path):
    root = dataset(tmp_path)
    for size in (None, SMALL):
        settings: dict[str, Any] = {"cameras": CAMERAS, "image_size": size, "episodes_per_epoch": 6}
        rgb = Pool(config(root, **settings), 0, 0).transition(0, 1)["observations"]["images"]
        bgr = Pool(config(root, jpeg_channels="bgr", **settings), 0, 0).transition(0, 1)["observations"]["images"]
        np.testing.assert_array_equal(rgb, bgr[..., ::-1])


def test_the_order_of_jpegs_channels_is_said_to_be_none_of_raw_images(tmp_path: Path):
    said = "data.jpeg_channels is bgr, and no image is a JPEG; others are taken as they are, as RGB"
    jpegs, raw = dataset(tmp_path / "jpegs"), dataset(tmp_path / "raw", jpeg=False)
    asked: dict[str, Any] = {"cameras": CAMERAS, "jpeg_channels": "bgr"}
    assert said in open_dataset(config(raw, **asked)).notes
    assert said not in open_dataset(config(jpegs, **asked)).notes
    assert said not in open_dataset(config(raw, cameras=CAMERAS)).notes


@pytest.mark.parametrize("form", ["without lengths", "byte strings", "no attribute"])
def test_other_forms_of_jpeg_rows(tmp_path: Path, form: str):
    usual, other = tmp_path / "usual", tmp_path / "other"
    dataset(usual, lengths=(6, 6))
    dataset(other, lengths=(6, 6))
    for file in other.iterdir():
        with h5py.File(file, "r+") as h5:
            if form == "without lengths":
                del h5["compress_len"]
            elif form == "no attribute":
                del h5.attrs["compress"]
            else:
                for camera in CAMERAS:
                    rows: Any = h5[f"/observations/images/{camera}"]
                    strings = np.array([row.tobytes() for row in rows[()]], f"S{rows.shape[1]}")
                    del h5[f"/observations/images/{camera}"]
                    h5[f"/observations/images/{camera}"] = strings
    settings: dict[str, Any] = {"cameras": CAMERAS, "episodes_per_epoch": 2}
    one, two = (Pool(config(root, **settings), 0, 0) for root in (usual, other))
    assert_same(one.transition(1, 2), two.transition(1, 2))


def test_the_base_action_is_appended(tmp_path: Path):
    root = dataset(tmp_path, lengths=(6, 6))
    pool = Pool(config(root, base_action=True, episodes_per_epoch=2), 0, 0)
    with h5py.File(root / pool.ids[0], "r") as h5:
        arm, base = (np.asarray(h5[name]) for name in ("/action", "/base_action"))
    np.testing.assert_array_equal(pool.transition(0, 0)["actions"], np.concatenate([arm, base], 1)[:5])
    assert dims(config(root, base_action=True)).action == ACTION + 2


def specified(images: np.ndarray) -> np.ndarray:
    """Float CHW as a loader in torch makes it."""
    return np.einsum("b k h w c -> b k c h w", images.astype(np.float32) / 255.0)


def test_the_specifications_form(tmp_path: Path):
    root = dataset(tmp_path, depth=True)
    batches = make_batches(config(root, cameras=CAMERAS, depth_cameras=("cam_high",)))
    batch: Any = next(batches)
    found = specification_batch(batch)
    assert found.keys() == batch.keys()
    for name in ("observations", "next_observations"):
        assert list(found[name]) == ["qpos", "images", "depth_images"]
        np.testing.assert_array_equal(found[name]["images"], specified(batch[name]["images"]), strict=True)
        depth = batch[name]["depth_images"].astype(np.float32)
        np.testing.assert_array_equal(found[name]["depth_images"], depth, strict=True)
    last = specification_batch(batch, layout="khwc")["observations"]["images"]
    assert last.shape == (8, 3, HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 2), found["observations"]["images"])
    without = specification_batch(next(make_batches(config(root))))
    assert without["observations"]["images"] is without["observations"]["depth_images"] is None
    for one in zip(range(6), specification_batches(batches, threads=2), strict=False):
        assert one[1]["observations"]["images"].max() <= 1


class TestMemory:
    def sizes(self, root: Path) -> tuple[int, int]:
        """Bytes of the recorded JPEGs of all cameras, and of the images decoded at SMALL."""
        stored = frames = 0
        for file in root.iterdir():
            with h5py.File(file, "r") as h5:
                stored += int(np.asarray(h5["/compress_len"]).sum())
                frames += len(np.asarray(h5["/action"]))
        return stored, frames * len(CAMERAS) * SMALL[0] * SMALL[1] * 3

    def test_the_budget_chooses_and_it_is_said(self, tmp_path: Path, capsys: pytest.CaptureFixture):
        root = dataset(tmp_path)
        stored, decoded = self.sizes(root)
        assert stored > decoded  # tiny images: decoded is the smaller
        big: dict[str, Any] = {"cameras": CAMERAS, "episodes_per_epoch": 6}
        next(make_batches(config(root, image_size=SMALL, **big)))
        said = capsys.readouterr().out
        assert "data: images of 3 camera(s), 10 x 14, kept decoded once: at most 0.00 GiB for 6 episodes" in said
        assert "each pool decodes at most 168 JPEGs while it loads" in said
        assert "each batch decodes at most 48 JPEGs, an epoch 480" in said
        assert "data: kept as recorded they would take" in said

    def test_auto_keeps_jpegs_where_the_decoded_do_not_fit(self, tmp_path: Path, capsys: pytest.CaptureFixture):
        root = dataset(tmp_path, lengths=(300, 300), size=(64, 64))
        settings: dict[str, Any] = {"cameras": CAMERAS, "episodes_per_epoch": 2, "image_size": (64, 64)}
        decoded = 600 * 3 * 64 * 64 * 3
        pool = Pool(config(root, frames="decoded", **settings), 0, 0)
        assert pool.stats()["image_bytes"] == decoded
        tight = {**settings, "memory_gib": 0.8 * decoded / 2**30}
        pool = Pool(config(root, **tight), 0, 0)
        assert pool.stats()["image_bytes"] < 0.5 * decoded
        next(make_batches(config(root, **tight)))
        assert "kept as recorded" in capsys.readouterr().out

    def test_too_small_a_budget_is_refused(self, tmp_path: Path):
        root = dataset(tmp_path)
        with pytest.raises(ConfigError, match=r"data\.memory_gib is 1e-06, but the images of 6 episodes need 0\.00"):
            make_batches(config(root, cameras=CAMERAS, memory_gib=1e-6))
        with pytest.raises(ConfigError, match=r"need \d\.\d\d GiB as recorded; lower data\.episodes_per_epoch"):
            make_batches(config(root, cameras=CAMERAS, memory_gib=1e-6, frames="recorded"))

    def test_an_episode_in_both_pools_is_kept_once(self, tmp_path: Path):
        root = dataset(tmp_path, lengths=(8, 8))
        batches: Any = make_batches(config(root, cameras=CAMERAS, episodes_per_epoch=2, steps_per_epoch=3))
        take(batches, 2)
        batches._batches._pools._loading[1].result()
        pools = [future.result()[0] for future in batches._batches._pools._loading.values()]
        assert len(pools) == 2
        assert {id(one) for one in pools[0]._frames} == {id(one) for one in pools[1]._frames}


class TestNothingIsOverwritten:
    def test_a_device_array_keeps_its_batch(self, tmp_path: Path):
        """jax.device_put keeps an aligned numpy array's memory on a CPU; the batches after it must not land there."""
        root = dataset(tmp_path)
        batches = make_batches(config(root, cameras=CAMERAS))
        held, copies, aliased = [], [], False
        for step in range(12):
            batch: Any = next(batches)
            images = batch["observations"]["images"]
            stacked = images[None]  # as the train loop does with one batch
            on_device = jax.device_put(stacked)
            copies.append(images.copy())
            if step == 0:
                aliased = on_device.unsafe_buffer_pointer() == images.ctypes.data
            held.append(on_device)
            del batch, images, stacked
        assert aliased, "the danger that this test is about is gone"
        for on_device, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(np.asarray(on_device)[0], copy)

    def test_memory_is_used_again(self, tmp_path: Path):
        batches = make_batches(config(dataset(tmp_path), cameras=CAMERAS))
        addresses = set()
        for _ in range(20):
            batch: Any = next(batches)
            images = batch["observations"]["images"]
            addresses.add(images.ctypes.data)
            lent, on_device = weakref.ref(images), jax.device_put(images)
            del batch, images, on_device
            for _ in range(500):  # JAX lets go of the host's memory in its own time
                gc.collect()
                if lent() is None:
                    break
                time.sleep(0.01)
        assert len(addresses) <= 4


class TestRolling:
    def config(self, root: Path, **more: Any) -> Any:
        rolling: dict[str, Any] = {"refresh": "rolling", "refresh_parts": 3, "episodes_per_epoch": 6}
        return config(root, **(rolling | {"steps_per_epoch": 11} | more))

    def test_the_pool_changes_by_parts_and_is_the_epochs_own_at_its_end(self, tmp_path: Path):
        root = dataset(tmp_path, lengths=(4,) * 30)
        cfg = self.config(root)
        whole = [set(Pool(config(root, episodes_per_epoch=6, steps_per_epoch=11), epoch, 0).ids) for epoch in range(3)]
        assert set(Pool(cfg, 0, 0).ids) == whole[0]
        for epoch in (1, 2):
            before = Pool(cfg, epoch - 1, 0, part=2).ids
            for part in range(3):
                now = Pool(cfg, epoch, 0, part=part).ids
                changed = [place for place in range(6) if now[place] != before[place]]
                assert set(changed) <= {2 * part, 2 * part + 1}
                assert set(now[: 2 * part + 2]) <= whole[epoch]
                before = now
            assert set(before) == whole[epoch]

    def test_every_part_has_about_the_ratio(self, tmp_path: Path):
        root = dataset(tmp_path, lengths=(4,) * 40)
        cfg = self.config(root, episodes_per_epoch=10, positive_ratio=0.6, refresh_parts=5)
        for part in range(5):
            assert abs(Pool(cfg, 3, 0, part=part).stats()["positive_ratio"] - 0.6) < 0.11

    @pytest.mark.parametrize("step", [0, 3, 4, 10, 11, 14, 15, 40, 1_000_003])
    def test_resuming_at_any_step_is_exact(self, tmp_path: Path, step: int):
        root = dataset(tmp_path, lengths=(7, 12, 5, 9, 20, 3, 4, 8, 6, 11))
        cfg = self.config(root, cameras=CAMERAS[:1], image_size=SMALL)
        before = min(step, 9)
        run = take(make_batches(cfg, start_step=step - before), before + 4)
        resumed = take(make_batches(cfg, start_step=step), 4)
        for one, other in zip(run[before:], resumed, strict=True):
            assert_same(one, other)

    def test_threads_shards_and_processes_do_not_change_the_stream(self, tmp_path: Path):
        from qchunk.data.stream import _concatenate

        root = dataset(tmp_path, lengths=(7, 12, 5, 9, 20, 3, 4, 8))
        cfg = self.config(root, shards=2)
        plain = take(make_batches(cfg), 30)
        for one, other in zip(plain, take(make_batches(self.config(root, shards=2, read_threads=3)), 30), strict=True):
            assert_same(one, other)
        halves = [take(make_batches(cfg, shard=p, num_shards=2), 30) for p in range(2)]
        for step, one in enumerate(plain):
            assert_same(one, _concatenate([half[step] for half in halves]))

    def test_memory_is_one_pool_and_a_part(self, tmp_path: Path):
        from qchunk.data.image_store import resident_episodes

        assert resident_episodes(DataConfig(path="", episodes_per_epoch=32), 1) == 64
        assert resident_episodes(DataConfig(path="", episodes_per_epoch=32, refresh="rolling"), 2) == 72

    def test_parts_need_an_episode_and_a_step_each(self):
        with pytest.raises(ValueError, match=r"data\.refresh_parts is 8; expected at most 4"):
            DataConfig(path="", refresh="rolling", episodes_per_epoch=4)


class TestRefresh:
    def test_the_wait_is_said_at_each_epoch(
        self, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(refresh.Refreshes, "SECONDS_BETWEEN_LINES", 0.0)
        batches: Any = make_batches(config(dataset(tmp_path), steps_per_epoch=4))
        take(batches, 9)
        said = [line for line in capsys.readouterr().out.splitlines() if "epoch" in line]
        assert len(said) == 2
        assert said[0].startswith("data: epoch 1 begins; the one before took ")
        assert "waiting for refreshes (" in said[0]

    def test_loading_images_stops_when_the_run_ends(self, tmp_path: Path):
        from concurrent.futures import CancelledError

        from qchunk.data.image_store import open_store

        root = dataset(tmp_path)
        cfg = config(root, cameras=CAMERAS)
        store = open_store(cfg, dataset_lib.open_dataset(cfg).source, pools=1, rows=8)
        stop = threading.Event()
        stop.set()
        with pytest.raises(CancelledError):
            store.load(0, stop)

    def test_a_file_that_changed_is_refused(self, tmp_path: Path):
        root = dataset(tmp_path, lengths=(6, 6))
        cfg = config(root, cameras=CAMERAS, episodes_per_epoch=2)
        opened = dataset_lib.open_dataset(cfg)
        write_episode(root / "episode_0.hdf5", 6, 0, jpeg=False, success=True)
        with pytest.raises(DataError, match=r"episode_0\.hdf5: changed since the dataset was opened"):
            Pool(cfg, 0, 0, dataset=opened)
