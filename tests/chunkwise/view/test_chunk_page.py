"""The page of rollouts and of a policy in a real browser: parts, advantages, the last frame, the drawn chunks.

`CHUNKWISE_SCREENSHOTS=FOLDER` has it write images of the page there.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import DataError
from chunkwise.view.server import PageServer
from chunkwise.view.source import Chunk, PolicyView, Recordings, View
from openpi_ript.ript.recordings import RolloutRecordings
from tests.browser import Tab, browsing, needs_chromium
from tests.chunkwise.view.played import Played
from tests.openpi_ript.ript.test_recordings import by_hand, write_config
from tests.openpi_ript.small_run import make_dataset

pytestmark = [
    pytest.mark.long,
    needs_chromium,
]
HOSTILE = "<img src=x onerror=\"document.title='run'\">"
INK = """(() => {
  const canvas = document.querySelector('CANVAS');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const found = [];
  for (let i = 0; i < data.length; i += 4)
    if (Math.abs(data[i] - 200) + Math.abs(data[i + 1] - 100) + Math.abs(data[i + 2] - 27) < 12)
      found.push([i / 4 % canvas.width / canvas.width, Math.floor(i / 4 / canvas.width) / canvas.height]);
  return found;
})()"""
"""Places, as shares of width and height, of a canvas' pixels of the second colour, #c8641b."""


class Wish:
    """A policy that wants what it is told to, but not beyond frame 20."""

    name = HOSTILE

    def __init__(self, actions: list[list[float]], *, in_plane: bool = False) -> None:
        self.actions, self.in_plane = np.array(actions, np.float32), in_plane

    def chunk(self, episode: int, frame: int) -> Chunk:
        if frame > 20:
            raise DataError(f"frame {frame}: {HOSTILE}")
        done = np.array([[step, 0] for step in (1, 2, 3)], np.float32)
        return Chunk(
            actions=self.actions, over="action", recorded=done, in_plane=self.in_plane, notes=(f"value {HOSTILE}",)
        )


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made


@contextmanager
def opened(tab: Tab, recordings: Recordings, policy: PolicyView | None = None) -> Iterator[PageServer]:
    with PageServer(View(recordings=recordings, policy=policy)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            tab.errors.clear()
            tab.go("about:blank")
            tab.go(server.url)
            tab.wait("document.body && document.body.dataset.examined === 'true'")
            yield server
        finally:
            server.shutdown()
            thread.join()


def at(tab: Tab, server: PageServer, episode: int, frame: int) -> None:
    tab.go(f"{server.url}#episode={episode}&frame={frame}")
    tab.wait(f"document.body.dataset.shown === '{episode}:{frame}'")


def text(tab: Tab, selector: str) -> str:
    return tab.evaluate(f"document.querySelector('{selector}').textContent")


def test_rollouts_by_round_with_their_advantages_and_last_frame(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = Path(os.environ.get("CHUNKWISE_SCREENSHOTS", tmp_path / "shots")).absolute()
    root, run = make_dataset(tmp_path), tmp_path / "run"
    by_hand(run, {0: [True, False, False, False], 4: [False] * 4})
    by_hand(run, {1: [True, True, True, False]}, step=6)
    write_config(root, run)
    monkeypatch.chdir(tmp_path)  # so that the page shows no path of this machine
    with opened(tab, RolloutRecordings(Path("run"))) as server:
        at(tab, server, 1, 0)
        assert "advantage -0.333 · negative, weight 0.45" in text(tab, "#task")
        assert "Initial state 0, seed 1; 4 updates behind the policy" in text(tab, "#notes")
        names = "[...document.querySelectorAll('.episode .name')].map((one) => one.textContent)"
        assert len(tab.evaluate(names)) == 12
        tab.evaluate("document.getElementById('group').value = 'round of update 6'")
        tab.evaluate("document.getElementById('group').dispatchEvent(new Event('input'))")
        assert tab.evaluate(names) == [f"state_00001-{k:02d} of step_00000006-abc" for k in range(4)]
        below = tab.evaluate("[...document.querySelectorAll('.episode .task')].map((one) => one.textContent)")
        assert [words.partition(" · ")[0] for words in below] == ["advantage +0.333"] * 3 + ["advantage -1"]
        tab.press("n")
        tab.wait("document.body.dataset.shown === '8:0'")
        tab.press("End")
        tab.wait("document.body.dataset.shown === '8:4'")
        pixel = "[...document.querySelector('#cameras canvas').getContext('2d').getImageData(3, 5, 1, 1).data]"
        rollout = RolloutRecordings(run).read(8)
        assert rollout.length == 4
        assert tab.evaluate(pixel)[:3] == rollout.observations["agentview_image"][4][5, 3].tolist()
        assert tab.evaluate("document.querySelectorAll('.failed').length") == 0
        tab.screenshot(folder / "rollouts.png")
        assert not tab.errors


def test_a_policys_chunk_is_drawn_where_its_actions_are(tab: Tab, tmp_path: Path):
    """The second number of the action is 1 throughout; the policy wants 1, then 5 to 9 beyond the plot's range."""
    actions = [[float(t), 1.0 if t < 2 else 3.0 + t] for t in range(6)]
    with opened(tab, Played((5, 30)), Wish(actions)) as server:
        at(tab, server, 1, 10)
        assert text(tab, "#window h3") == f"What {HOSTILE} would do at frame 10"
        assert f"value {HOSTILE}" in text(tab, "#window")
        found = np.array(tab.evaluate(INK.replace("CANVAS", ".plot canvas")))
        line = np.median(found[:, 1])  # the recorded one is flat
        above = found[found[:, 1] < line - 0.05]
        first, last = above[:, 0].min(), above[:, 0].max()
        assert 11 / 29 - 0.01 <= first <= 12 / 29 + 0.01, "it leaves the line after frame 11"
        assert abs(last - 15 / 29) < 0.01, "its sixth action is at frame 15"
        at(tab, server, 1, 25)
        assert f"frame 25: {HOSTILE}" in text(tab, "#window")
        found = np.array(tab.evaluate(INK.replace("CANVAS", ".plot canvas")))
        assert np.ptp(found[:, 1]) < 0.05, "the chunk of another frame is gone"
        assert tab.evaluate("document.title") == "a <b>folder</b> | chunkwise view"
        assert tab.evaluate("document.querySelectorAll('img').length") == 0
        assert not tab.errors


def test_places_are_drawn_as_seen_from_above(tab: Tab, tmp_path: Path):
    """Driven: 3 m straight ahead. Wanted: 3 m ahead and 3 m to the left."""
    with opened(tab, Played((5, 30)), Wish([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], in_plane=True)) as server:
        at(tab, server, 1, 10)
        assert "driven (line), the policy's (dashed)" in text(tab, "#window figcaption")
        x, y = np.array(tab.evaluate(INK.replace("CANVAS", ".plane canvas"))).T
        assert x.min() < 0.15, "its end is to the left"
        assert y.min() < 0.15, "and ahead"
        far = np.argmin(y)
        assert x[far] < 0.2
        plot = np.array(tab.evaluate(INK.replace("CANVAS", ".plot canvas")))
        assert np.ptp(plot[:, 1]) < 0.05, "and nowhere in the plots"
        assert not tab.errors
