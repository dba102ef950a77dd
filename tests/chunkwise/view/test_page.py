"""The page in a real browser: lists, filters, keys, the right frame; what a dataset brings is never run.

`CHUNKWISE_SCREENSHOTS=FOLDER` has it write images of the page there.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chunkwise.view.server import PageServer
from chunkwise.view.source import Recordings, TrainingView, View
from qchunk.config import DataConfig
from qchunk.data.recordings import open_recordings
from qchunk.data.window import TrainingWindows
from tests.browser import Tab, browsing, needs_chromium
from tests.chunkwise.view.played import Played, frame_color
from tests.qchunk.image_recordings import write_episode
from tests.qchunk.recordings import config

pytestmark = [
    pytest.mark.long,
    needs_chromium,
]
HOSTILE = (
    "<img src=x onerror=\"document.title='run'\">",
    "<script>document.title='run'</script>",
    "'\"><svg onload=document.title='run'>",
    "{{constructor.constructor('document.title=1')()}} ${document.title='run'} \u202etxt.exe",
    "javascript:document.title='run'",
)
PIXEL = "[...document.querySelector('#cameras canvas').getContext('2d').getImageData(3, 3, 1, 1).data]"
"""Red, green, blue and opacity of the first camera's image."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made


@contextmanager
def served(recordings: Recordings, training: TrainingView | None = None) -> Iterator[PageServer]:
    with PageServer(View(recordings=recordings, training=training)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:  # else a test that fails waits for the thread
            server.shutdown()
            thread.join()


def shown(tab: Tab, episode: int, frame: int) -> None:
    """Waits until the page has drawn a frame, and holds that it is that one's image."""
    tab.wait(f"document.body.dataset.shown === '{episode}:{frame}'")
    assert tab.evaluate(PIXEL) == [*frame_color(episode, frame), 255]
    assert tab.evaluate("document.getElementById('frame').textContent").startswith(f"frame {frame} of ")


def names(tab: Tab) -> list[str]:
    """Episodes of the list, as far as they are drawn."""
    return tab.evaluate("[...document.querySelectorAll('.episode .name')].map((one) => one.textContent)")


def set_field(tab: Tab, field: str, value: str) -> None:
    tab.evaluate(f"document.getElementById('{field}').value = '{value}'")
    tab.evaluate(f"document.getElementById('{field}').dispatchEvent(new Event('input'))")


def opened(tab: Tab, server: PageServer) -> None:
    tab.errors.clear()
    tab.go("about:blank")
    tab.go(server.url)
    tab.wait("document.body && document.body.dataset.examined === 'true'")


def test_it_opens_filters_scrubs_and_obeys_keys(tab: Tab):
    with served(Played((40, 30, 12))) as server:
        opened(tab, server)
        shown(tab, 0, 0)
        assert names(tab) == ["episode_0", "episode_1", "episode_2"]
        tab.press("ArrowRight")
        shown(tab, 0, 1)
        tab.press("ArrowRight", shift=True)
        shown(tab, 0, 11)
        tab.press("ArrowLeft")
        shown(tab, 0, 10)
        tab.press("End")
        shown(tab, 0, 39)
        tab.press("n")
        shown(tab, 1, 0)
        tab.press("g")  # the problem's frame
        shown(tab, 1, 3)
        assert "row 3: expected finite numbers" in tab.evaluate("document.getElementById('problems').textContent")
        tab.click(".plot canvas", 1.0)
        tab.press("Home")
        shown(tab, 1, 0)
        tab.click(".plot canvas", 0.5)
        tab.wait("document.body.dataset.shown !== '1:0'")
        assert tab.evaluate("document.body.dataset.shown") in ("1:14", "1:15")
        set_field(tab, "scrubber", "29")
        shown(tab, 1, 29)
        tab.press("p")
        shown(tab, 0, 0)
        tab.press(" ")
        shown(tab, 0, 39)  # plays to the end
        tab.press("/")
        tab.write("LIFT")
        assert names(tab) == ["episode_1"]
        tab.press("n")
        assert tab.evaluate("document.getElementById('filter').value") == "LIFTn", "keys are letters in a field"
        set_field(tab, "filter", "")
        tab.press("Escape")
        for field, value, left in (
            ("outcome", "success", [0]),
            ("outcome", "unknown", [2]),
            ("trouble", "bad", [1]),
            ("trouble", "good", [0, 2]),
            ("shortest", "30", [0, 1]),
            ("longest", "30", [1, 2]),
        ):
            set_field(tab, field, value)
            assert names(tab) == [f"episode_{number}" for number in left], (field, value)
            set_field(tab, field, "")
        assert not tab.errors


def test_an_address_leads_to_a_frame(tab: Tab):
    with served(Played((40, 30, 12))) as server:
        opened(tab, server)
        tab.go(f"{server.url}#episode=2&frame=7")
        shown(tab, 2, 7)


def test_nothing_of_a_dataset_is_run(tab: Tab):
    recordings = Played((5,) * len(HOSTILE), dict(enumerate(HOSTILE)))
    with served(recordings) as server:
        opened(tab, server)
        shown(tab, 0, 0)
        assert names(tab)[:3] == list(HOSTILE[:3])
        for number in range(1, len(HOSTILE)):
            tab.press("n")
            shown(tab, number, 0)
        assert tab.evaluate("document.title") == "a <b>folder</b> | chunkwise view"
        assert tab.evaluate("document.querySelectorAll('img, svg, script:not([src]), b').length") == 0
        assert "\u202e" not in names(tab)[3]
        assert not tab.errors
        # The policy forbids what a mistake of the page would allow.
        forbidden = "document.body.insertAdjacentHTML('beforeend', '<img src=x>')"
        assert (
            tab.evaluate(f"(() => {{try {{ {forbidden} }} catch (error) {{ return error.name }} }})()") == "TypeError"
        )


def test_a_hundred_thousand_frames(tab: Tab):
    with served(Played((500,) * 190 + (5_000,))) as server:
        opened(tab, server)
        shown(tab, 0, 0)
        assert "100,000 frames" in tab.evaluate("document.getElementById('state').textContent")
        assert len(names(tab)) < 60, "only those in sight are drawn"
        tab.evaluate("document.getElementById('list').scrollTop = 1e9")
        tab.wait("document.querySelector('[data-number=\"190\"]') !== null")
        tab.click('[data-number="190"]')
        shown(tab, 190, 0)
        tab.press("End")
        shown(tab, 190, 4_999)
        recordings = server.view.recordings
        assert isinstance(recordings, Played)
        assert set(recordings.opened) == {0, 190}, "an episode is read when it is shown"


def test_a_dataset_of_aloha_and_what_training_draws_of_it(tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of 90 frames, at a chunk's length of 5: whole chunks, one of which the end leaves 3, and the last frame's."""
    folder = Path(os.environ.get("CHUNKWISE_SCREENSHOTS", tmp_path / "shots")).absolute()
    monkeypatch.chdir(tmp_path)  # so that the page shows no path of this machine
    data = Path("recordings")
    for number, length in enumerate((120, 90, 150, 60)):
        file = data / f"score_{5 * (number % 2)}/episode_{number}.hdf5"
        write_episode(file, length, number, depth=True, size=(120, 160))
    made = config(data, cameras=("cam_high", "cam_left_wrist"), image_size=(48, 64))
    recordings = open_recordings(DataConfig(path=str(data)))
    episode = list(recordings.names).index("score_5/episode_1.hdf5")
    with served(recordings, TrainingWindows(made, "qchunk/own_data", recordings)) as server:
        opened(tab, server)
        assert tab.evaluate("document.getElementById('state').textContent") == "4 episodes · 420 frames"
        # Where time cut an episode off, the step whose next state was not recorded is not valid.
        for frame, valid in ((42, [1, 1, 1, 1, 1]), (87, [1, 1, 0, 0, 0]), (89, [0, 0, 0, 0, 0])):
            tab.go(f"{server.url}#episode={episode}&frame={frame}")
            tab.wait(f"document.body.dataset.shown === '{episode}:{frame}'")
            cells = "document.querySelectorAll('#window tr[data-name=valid] td')"
            assert tab.evaluate(f"[...{cells}].map((one) => Number(one.textContent))") == valid
            assert tab.evaluate(f"[...{cells}].map((one) => one.className)") == ["" if v else "padded" for v in valid]
            assert tab.evaluate("document.querySelectorAll('#cameras canvas').length") == 4
            images = "[...document.querySelectorAll('#window canvas')].map((one) => [one.width, one.height])"
            assert tab.evaluate(images) == [[64, 48], [64, 48]]
            assert tab.evaluate("document.querySelectorAll('.failed').length") == 0
        tab.go(f"{server.url}#episode={episode}&frame=87")
        tab.wait(f"document.body.dataset.shown === '{episode}:87'")
        for scheme in ("light", "dark"):
            tab.scheme(scheme)
            tab.screenshot(folder / f"aloha_{scheme}.png")
            assert (folder / f"aloha_{scheme}.png").stat().st_size > 10_000
        tab.evaluate("document.querySelector('main').scrollTo(0, 1e6)")
        tab.scheme("light")
        tab.screenshot(folder / "window.png")
        assert not tab.errors
