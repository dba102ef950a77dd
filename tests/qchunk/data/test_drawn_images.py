"""Images that are decoded once and drawn again: when they come, what is kept, and that a batch never shows it."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qchunk.data import make_batches
from qchunk.data.drawn_images import KeptImages, steps_until_again
from tests.qchunk.image_recordings import CAMERAS, dataset
from tests.qchunk.recordings import assert_same, config

SIZE = (2, 3)


class Counted:
    """Images that show their frame's number; odd ones have to be decoded."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, frame: int, out: np.ndarray) -> None:
        self.written.append(frame)
        out[...] = frame

    def decodes(self, frame: int) -> bool:
        return frame % 2 == 1


def drawn(kept: KeptImages, frames: Counted, frame: int, due: int = 0) -> int:
    """The number that a drawn image shows."""
    out = np.zeros((*SIZE, 3), np.uint8)
    kept.write(frames, frame, out, due)
    assert len(np.unique(out)) == 1
    return int(out[0, 0, 0])


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=12))
def test_steps_until_again_are_those_of_a_search(block: list[list[int]]):
    expected = []
    for s, images in enumerate(block):
        last = {image: i for i, image in enumerate(images)}  # of two in one step the last one keeps it
        later = [[t - s for t in range(s + 1, len(block)) if image in block[t]] for image in images]
        expected.append([x[0] if x and last[p] == i else 0 for i, (p, x) in enumerate(zip(images, later, strict=True))])
    np.testing.assert_array_equal(steps_until_again(np.array(block)), expected)


def test_an_image_is_decoded_once_while_it_is_due():
    kept, frames = KeptImages(2, SIZE), Counted()
    assert [drawn(kept, frames, 7, due) for due in (3, 5, 0, 0)] == [7, 7, 7, 7]
    assert frames.written == [7, 7]  # the third draw was the last that it was kept for
    assert (kept.decoded, kept.reused) == (2, 2)


def test_what_is_no_jpeg_is_never_kept():
    kept, frames = KeptImages(2, SIZE), Counted()
    assert [drawn(kept, frames, 4, due) for due in (3, 0)] == [4, 4]
    assert frames.written == [4, 4]


def test_without_room_an_image_is_decoded_again_and_what_was_missed_makes_room():
    kept, frames = KeptImages(1, SIZE), Counted()
    assert [drawn(kept, frames, frame, due) for frame, due in ((1, 4), (3, 6), (3, 6))] == [1, 3, 3]
    assert frames.written == [1, 3, 3]
    kept.forget(4)  # image 1 is due at step 4 itself
    assert drawn(kept, frames, 1, 4) == 1
    assert frames.written == [1, 3, 3]
    kept.forget(5)
    assert [drawn(kept, frames, 3, due) for due in (9, 0)] == [3, 3]
    assert frames.written == [1, 3, 3, 3]


def test_the_same_frame_of_another_episode_is_another_image():
    kept, one, other = KeptImages(4, SIZE), Counted(), Counted()
    drawn(kept, one, 1, 5)
    drawn(kept, other, 1, 5)
    assert (one.written, other.written) == ([1], [1])


def test_threads_never_see_half_an_image():
    kept, frames, wrong = KeptImages(8, (64, 64)), Counted(), []

    def draw(seed: int) -> None:
        rng, out = np.random.default_rng(seed), np.zeros((64, 64, 3), np.uint8)
        for step in range(2000):
            frame = int(rng.integers(10)) * 2 + 1
            kept.write(frames, frame, out, int(rng.integers(2)) * (step + 3))
            kept.forget(step - 2)
            wrong.extend([frame] if np.any(out != frame) else [])

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    assert kept.reused > 100
    kept.forget(10**6)
    assert sorted(kept._free) == list(range(8))


@pytest.mark.parametrize("changes", [{}, {"read_threads": 3}, {"shards": 2}])
def test_batches_are_those_without_and_fewer_are_decoded(tmp_path: Path, monkeypatch: Any, changes: dict[str, Any]):
    settings: dict[str, Any] = {"cameras": CAMERAS, "image_size": (10, 14), "frames": "recorded"} | changes
    settings |= {"steps_per_epoch": 30, "episodes_per_epoch": 4}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = dataset(tmp_path / "data", lengths=(8, 9, 10, 11, 12))
    batches: Any = make_batches(config(root, **settings))
    found = [next(batches) for _ in range(70)]
    monkeypatch.setattr("qchunk.data.image_store.SPARE_BYTES", 0)
    for one, other in zip(found, make_batches(config(root, **settings)), strict=False):
        assert_same(one, other)
    if not changes.get("read_threads"):
        kept = batches._batches._kept
        assert kept.reused > kept.decoded
