"""data.refresh_ahead: what a pool lets go of before a refresh, and that no batch shows it."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from qchunk.config import DataConfig
from qchunk.data import make_batches
from qchunk.data.image_store import open_store, plan
from qchunk.data.pool import Pool
from qchunk.data.readers.aloha import AlohaSource
from qchunk.data.refresh import episodes_of_pool
from tests.qchunk.image_recordings import CAMERAS, dataset
from tests.qchunk.recordings import assert_same, config

LENGTHS = (60, 70, 50, 65, 55, 60, 45, 80, 75, 62, 58, 66)
WAYS: list[dict[str, Any]] = [
    {"frames": "recorded"},
    {"frames": "recorded", "image_size": None, "depth_cameras": ("cam_high",)},
    {"frames": "decoded"},
    {"frames": "recorded", "read_threads": 3},
    {"frames": "recorded", "shards": 2},
    {"frames": "recorded", "refresh": "rolling", "refresh_parts": 2},
]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[AlohaSource]:
    """Datasets, once for each episode whose images are read. Threads of other tests may still be loading."""
    found: list[AlohaSource] = []
    read = AlohaSource.images

    def images(source: AlohaSource, index: int) -> Any:
        found.append(source)
        return read(source, index)

    monkeypatch.setattr(AlohaSource, "images", images)
    return found


def settings(**changes: Any) -> dict[str, Any]:
    """Of small pools, of which an epoch's last three batches show little."""
    return {"batch": 4, "steps_per_epoch": 20, "cameras": CAMERAS[:2], "image_size": (10, 14)} | changes


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.long) for way in WAYS[:3]] + WAYS[3:])
def test_batches_are_those_without_and_nothing_is_read_twice(
    tmp_path: Path, loads: list[AlohaSource], way: dict[str, Any]
):
    root = dataset(tmp_path / "data", lengths=LENGTHS, depth=True)
    cfg = config(root, **settings(**way, refresh_ahead=3))
    batches: Any = make_batches(cfg)
    found = list(itertools.islice(batches, 60))
    if not cfg.data.read_threads:
        parts = batches._batches._schedule.parts
        batches._batches._pools._loading[3 * parts].result()
        source, held = batches._batches._dataset.source, [set[int]()]
        for number in range(3 * parts + 1):
            draws = [episodes_of_pool(cfg, source, *divmod(number, parts), shard) for shard in range(cfg.data.shards)]
            held.append({index for draw in draws for index in draw.indices.tolist()})
        assert loads.count(source) == sum(len(after - before) for before, after in itertools.pairwise(held))
    for one, other in zip(found, make_batches(config(root, **settings(**way))), strict=False):
        assert_same(one, other)


def test_a_pool_keeps_what_its_last_steps_draw_and_what_the_next_one_holds(tmp_path: Path):
    root = dataset(tmp_path / "data", lengths=LENGTHS)
    batches: Any = make_batches(config(root, **settings(frames="recorded", refresh_ahead=3)))
    pools = batches._batches._pools
    for _ in range(17):
        next(batches)
    (pool,) = pools._loading[0].result().values()
    whole = pool.stats()["image_bytes"]
    assert set(pools._loading) == {0}  # three steps are left, and the next pool does not load before the first of them
    next(batches)
    (after,) = pools._loading[1].result().values()
    shared = set(pool._indices) & set(after._indices)
    for index, frames in zip(pool._indices, pool._frames, strict=True):
        assert frames.holds(range(45)) == (index in shared)
    assert shared < set(pool._indices)
    assert pool.stats()["image_bytes"] < 0.8 * whole


def test_a_step_back_reads_its_episodes_again(tmp_path: Path, loads: list[AlohaSource]):
    root = dataset(tmp_path / "data", lengths=LENGTHS)
    batches: Any = make_batches(config(root, **settings(frames="recorded", refresh_ahead=2)))
    expected = []
    for step in range(19):
        expected.append(next(batches))
        assert batches.get_state()["next_index"] == step + 1
    batches._batches._pools._loading[1].result()
    before = loads.count(batches._batches._dataset.source)
    batches.set_state({"next_index": 3})
    for batch in expected[3:]:
        assert_same(next(batches), batch)
    assert loads.count(batches._batches._dataset.source) > before


def test_the_budget_counts_what_stays(tmp_path: Path):
    root = dataset(tmp_path / "data", lengths=LENGTHS)
    pool = Pool(config(root, **settings(frames="decoded")), 0, 0)
    assert pool._store is not None

    def needed(**changes: Any) -> int:
        cfg = config(root, **settings(frames="decoded", episodes_per_epoch=6, **changes))
        source: Any = pool._store._source  # pyright: ignore[reportOptionalMemberAccess]
        store = open_store(cfg, source, pools=1, rows=4)
        return plan(cfg, source, store.form, pools=1, rows=4).bytes_needed["decoded"]

    frame = 2 * 3 * 10 * 14  # of two cameras
    longest = sum(sorted(LENGTHS)[-6:]) * frame
    assert needed() - needed(refresh_ahead=3) == sum(LENGTHS) * frame - longest - (2 * 4 * 3 + 2 * 6) * frame
    assert needed(refresh_ahead=20, refresh="rolling", refresh_parts=1) <= needed()


def test_it_needs_images_and_fits_between_two_refreshes():
    with pytest.raises(ValueError, match=r"data\.refresh_ahead is 5, and there are no images"):
        DataConfig(path="", refresh_ahead=5)
    with pytest.raises(ValueError, match=r"data\.refresh_ahead is 6; expected 1 to 5, the updates from one refresh"):
        DataConfig(path="", cameras=("a",), refresh="rolling", steps_per_epoch=40, refresh_ahead=6)
    with pytest.raises(ValueError, match=r"data\.refresh_ahead is 0; expected 1 to 40"):
        DataConfig(path="", cameras=("a",), steps_per_epoch=40, refresh_ahead=0)
