"""Interactions in the loop: when they come, and that a run which is stopped or killed repeats the rest."""

import dataclasses
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.distributed import stopping
from chunkwise.errors import DataError, PreemptedError
from chunkwise.state import TrainState
from chunkwise.train import loop
from chunkwise.train.clock import Clock
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import Numbered, ToyConfig, ToyTask, toy_config
from tests.chunkwise.train.test_loop import Crash, resumed, rows, train


class World(Numbered):
    """An interaction before updates 7, 10, 13, ...: each adds the weights' sum to a file of numbers."""

    start, every, averaged = 7, 3, True

    def __init__(self, folder: Path, on_interact: Any = None) -> None:
        super().__init__()
        self.path = folder / "numbers"
        self.on_interact = on_interact
        self.seen: list[int] = []

    def interact(self, state: TrainState, step: int, stopping: Any) -> dict[str, list[float]] | None:
        self.seen.append(step)
        number = float(np.asarray(state.params["w"]).sum())
        with open(self.path, "a") as file:
            file.write(f"{number!r}\n")
        if self.on_interact is not None:
            self.on_interact(step)
        if stopping():
            return None
        self.numbers.append(number)
        return {"number": [number, 0.0], "never": []}

    def rewind(self, position: dict[str, Any] | None) -> None:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.numbers = [float(line) for line in lines[: 0 if position is None else position["count"]]]
        self.path.write_text("".join(f"{number!r}\n" for number in self.numbers))


class WorldTask(ToyTask):
    """Fits what the world said last."""

    def __init__(self, config: ToyConfig, world: World, **hooks: Any) -> None:
        super().__init__(config, **hooks)
        self.world = world

    def batches(self, start_step: int, **rows: int) -> Iterator[Any]:
        for batch in super().batches(start_step, **rows):
            shift = self.world.numbers[-1] if self.world.numbers else 0.0
            yield {**batch, "y": batch["y"] + np.float32(shift)}


def train_in_world(config: ToyConfig, on_interact: Any = None, **hooks: Any) -> tuple[str, World]:
    with RunFolder(config, "toy") as folder:
        world = World(folder.path, on_interact)
        return fit(config, WorldTask(config, world, **hooks), folder, interaction=world), world


class Working:
    """What an update under way returns: known after 3 s."""

    def __init__(self, now: list[float]) -> None:
        self.now = now

    def block_until_ready(self) -> None:
        self.now[0] += 3


def test_updates_under_way_are_charged_with_their_time(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("chunkwise.train.clock.time.perf_counter", lambda: now[0])
    clock = Clock(step=1.0)
    began = clock.after([(5, {"loss": Working(now)}, 2, None), (7, {"loss": Working(now)}, 2, None)])
    now[0] += 2
    clock.charge("interact", began)
    assert (clock.step, clock.interact) == (7.0, 2.0)
    assert clock.after([]) == 108.0


def test_what_comes_after_updates_is_timed_from_when_these_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before an interaction, an evaluation and a save; the last call before an interaction is still under way."""
    asked: list[int] = []
    wait = Clock.after

    def after(clock: Clock, calls: Any) -> float:
        asked.append(len(calls))
        return wait(clock, calls)

    monkeypatch.setattr(Clock, "after", after)
    seen: list[int] = []
    config = toy_config(tmp_path, train=TrainConfig(steps=16, batch_size=4, log_every=100, eval_every=5))
    train_in_world(config, lambda step: seen.append(len(asked)))
    assert seen == sorted(set(seen)), "one wait more each time"
    assert any(asked), "calls were under way"
    assert len(asked) >= len(seen) + 3, "evaluations and the last save too"


def test_interactions_come_at_their_steps_whatever_the_updates_per_call(tmp_path: Path):
    digests = []
    for updates in (1, 3, 7):
        config = toy_config(tmp_path / str(updates))
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, updates_per_call=updates))
        digest, world = train_in_world(config)
        digests.append(digest)
        assert world.seen == [7, 10, 13, 16, 19]
    assert len(set(digests)) == 1
    assert rows(tmp_path / "1") == rows(tmp_path / "7")
    # Lines at 5, 10, 15, 20: interactions at 7; 10 and 13; 16 and 19. Each gives two values, the second of them 0.
    lines = [row for row in rows(tmp_path / "1") if row["split"] == "train"]
    numbers = world.numbers
    assert "number" not in lines[0]
    means = [row["number"] for row in lines[1:]]
    np.testing.assert_allclose(means, [numbers[0] / 2, sum(numbers[1:3]) / 4, sum(numbers[3:]) / 4], rtol=1e-6)
    assert digests[0] != train(toy_config(tmp_path / "alone"))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[float], bytes]:
    """Digest, what the world said, and the metrics of a run that was left alone; it interacts at 7, 10, 13, 16, 19."""
    folder = tmp_path_factory.mktemp("untouched")
    digest, world = train_in_world(toy_config(folder))
    return digest, world.numbers, (folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("where", "step"),
    [
        *(("batch", i) for i in (7, 12, 17)),
        *(pytest.param("batch", i, marks=pytest.mark.long) for i in (2, 9, 13, 19)),
        *(("interact", i) for i in (7, 13, 19)),
    ],
)
@pytest.mark.parametrize(("signalled", "error"), [(False, Crash), (True, PreemptedError)])
def test_an_interrupted_interaction_ends_as_an_untouched_one(
    tmp_path: Path,
    untouched: tuple[str, list[float], bytes],
    where: str,
    step: int,
    signalled: bool,
    error: type[Exception],
):
    def interrupt(at: int) -> None:
        if at == step and signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        elif at == step:
            raise Crash

    config = toy_config(tmp_path)
    hooks: dict[str, Any] = {f"on_{where}": interrupt}
    with pytest.raises(error):
        train_in_world(config, **hooks)
    digest, world = train_in_world(resumed(config))
    assert (digest, world.numbers, (tmp_path / "metrics.jsonl").read_bytes()) == untouched


def test_a_start_that_an_interaction_refuses_changes_nothing(
    tmp_path: Path, untouched: tuple[str, list[float], bytes], monkeypatch: pytest.MonkeyPatch
):
    """Neither the config that it was compared with, nor what metrics.jsonl has behind the save."""

    def crash(at: int) -> None:
        if at == 19:
            raise Crash

    config = toy_config(tmp_path)
    with pytest.raises(Crash):
        train_in_world(config, on_batch=crash)
    files = [tmp_path / name for name in ("config.json", "metrics.jsonl", "machine.json")]
    (tmp_path / "metrics.jsonl").write_bytes(files[1].read_bytes() + b'{"step": 18, "split": "train"}\n')
    before = [file.read_bytes() for file in files]
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=40, log_every=4))

    def refuse(world: World, position: Any) -> None:
        raise DataError("numbers: damaged")

    with monkeypatch.context() as patch:
        patch.setattr(World, "rewind", refuse)
        with pytest.raises(DataError, match="numbers: damaged"):
            train_in_world(resumed(longer))
    assert [file.read_bytes() for file in files] == before
    digest, world = train_in_world(resumed(config))
    assert (digest, world.numbers, files[1].read_bytes()) == untouched


@pytest.mark.parametrize("step", [7, 13])
def test_an_interaction_that_comes_home_while_the_run_is_saved_without_it_counts_once(
    tmp_path: Path, untouched: tuple[str, list[float], bytes], step: int, monkeypatch: pytest.MonkeyPatch
):
    """The watching thread forces the log to disk while the main one comes home: the position of before beside the word
    that it had acted lost a stretch of environment steps."""
    monkeypatch.setattr(stopping, "GRACE", 0.2)
    saving, home = threading.Event(), threading.Event()
    came_home = loop._Run._came_home

    def then_tell(self: Any, found: Any) -> None:
        came_home(self, found)
        home.set()

    def leave(self: Any, error: BaseException) -> None:
        """The main thread goes on where the process would end; the save is the watching one's."""
        assert isinstance(error, PreemptedError)
        sys._getframe(1).f_locals["section"].taken = False

    class Slow(World):
        def interact(self, state: TrainState, step: int, stopping: Any) -> dict[str, list[float]] | None:
            return super().interact(state, step, lambda: False)

        def sync(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                saving.set()
                assert home.wait(60)

    def stop(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
            assert saving.wait(60)

    monkeypatch.setattr(loop._Run, "_came_home", then_tell)
    monkeypatch.setattr(stopping.Watch, "_end", leave)
    config = toy_config(tmp_path)

    def lost(at: int) -> None:
        """Keeps the main thread, which should be gone, from another update."""
        if at == step:
            raise Crash

    with RunFolder(config, "toy") as folder:
        world = Slow(folder.path, stop)
        task = WorldTask(config, world, on_batch=lost)
        with pytest.raises(PreemptedError, match=f"saved at step {step}"):
            fit(config, task, folder, interaction=world)
    digest, again = train_in_world(resumed(config))
    assert (digest, again.numbers, (tmp_path / "metrics.jsonl").read_bytes()) == untouched


@pytest.mark.parametrize("step", [7, 13])
def test_an_interaction_that_fails_since_its_simulator_got_the_signal_too_is_dropped(
    tmp_path: Path, untouched: tuple[str, list[float], bytes], step: int, capsys: pytest.CaptureFixture[str]
):
    def fail(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
            raise Crash("the simulator's process has ended")

    config = toy_config(tmp_path)
    with pytest.raises(PreemptedError, match=f"saved at step {step}"):
        train_in_world(config, fail)
    assert "dropped, since the run is to stop: Crash: the simulator's process has ended" in capsys.readouterr().out
    digest, world = train_in_world(resumed(config))
    assert (digest, world.numbers, (tmp_path / "metrics.jsonl").read_bytes()) == untouched


@pytest.mark.parametrize("step", [7, 8, 13])
def test_data_that_never_come_lose_no_interaction(
    tmp_path: Path, untouched: tuple[str, list[float], bytes], step: int, monkeypatch: pytest.MonkeyPatch
):
    """Before updates 7 and 13 the world is met; then the reader waits for ever."""
    monkeypatch.setattr("chunkwise.train.loop.PATIENCE", 0.1)
    monkeypatch.setattr("chunkwise.distributed.stopping._NUDGE", 0.1)

    def never(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()

    config = toy_config(tmp_path)
    with pytest.raises(PreemptedError, match=f"saved at step {step}"):
        train_in_world(config, on_batch=never)
    digest, world = train_in_world(resumed(config))
    assert (digest, world.numbers, (tmp_path / "metrics.jsonl").read_bytes()) == untouched


def test_the_digest_tells_what_was_brought_from_the_world(tmp_path: Path):
    """Runs with the same weights, whose worlds stand at other places."""

    class Noted(World):
        def __init__(self, folder: Path, word: str) -> None:
            super().__init__(folder)
            self.word = word

        def position(self) -> dict[str, Any]:
            return super().position() | {"word": self.word}

    found = []
    for i, word in enumerate(("here", "there", "here")):
        config = toy_config(tmp_path / str(i), train=TrainConfig(steps=2, batch_size=8, log_every=2))
        with RunFolder(config, "toy") as folder:
            found.append(fit(config, ToyTask(config), folder, interaction=Noted(folder.path, word)))
    assert found[0] == found[2] != found[1]


def test_every_second_is_charged_once_to_what_it_was_spent_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    charged: list[tuple[str, float, float]] = []

    class Noted(Clock):
        def charge(self, purpose: str, since: float) -> None:
            before = getattr(self, purpose)
            super().charge(purpose, since)  # whose own end counts: on a busy machine two looks at a clock lie far apart
            charged.append((purpose, since, since + getattr(self, purpose) - before))

    monkeypatch.setattr("chunkwise.train.loop.Clock", Noted)
    train = TrainConfig(steps=2, batch_size=8, log_every=2, eval_every=1)
    config = toy_config(tmp_path, train=train, checkpoint=CheckpointConfig(every=1))
    with RunFolder(config, "toy") as folder:
        world = World(folder.path)
        world.start, world.every = 1, 1
        fit(config, ToyTask(config), folder, interaction=world)
    first = ["data", "compile", "step"]
    after = [("step", purpose) for purpose in ("evaluate", "save", "interact")]  # updates under way, and what waited
    second = [*itertools.chain(*after), "data", "step"]
    last = [*itertools.chain(*after[:2])]
    assert [purpose for purpose, _, _ in charged] == ["start", *first, *second, *last]
    for (_, _, end), (_, since, _) in itertools.pairwise(charged):
        assert end <= since, "no second twice"
    told = json.loads((tmp_path / "timing.jsonl").read_text().splitlines()[-1])
    assert told["step"] == 2
    for name in ("start", *first, "evaluate", "save", "interact"):
        spent = sum(end - since for purpose, since, end in charged if purpose == name)
        assert told["seconds"][name] == pytest.approx(spent, abs=1e-3)
