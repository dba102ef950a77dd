"""openpi_ript/data/doubts.py: what is said, and refused, of numbers that lie far out once normalised."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import DataError
from chunkwise.train.run_dir import RunFolder
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.doubts import Doubts, doubts, plausible
from openpi_ript.data.lerobot_writer import Recorded, write_lerobot
from openpi_ript.data.norm import dataset_stats
from openpi_ript.inspect import main as inspect_main
from openpi_ript.train import main
from tests.openpi_ript.small_run import small_config, supervised

CONFIG = DataConfig(
    path="unused",
    robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3, relative_dims=(0, 1)),
    horizon=4,
    state_norm="quantile",
    action_norm="quantile",
)


def columns() -> dict[str, np.ndarray]:
    """300 frames in which the gripper, the third number of an action, is 1 once, in frame 150, and else 0."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(300, 2)).astype(np.float32)
    action = np.concatenate([state + 0.1, np.zeros((300, 1))], axis=1).astype(np.float32)
    action[150, 2] = 1
    return {"observation.state": state, "action": action}


def table(**changes: np.ndarray) -> FrameTable:
    own = columns() | {"task_index": np.zeros(300, np.int64)} | changes
    return FrameTable(fps=10.0, lengths=np.array([100, 200]), episodes=np.arange(2), columns=own, tasks={0: "go"})


def found(frames: FrameTable, config: DataConfig = CONFIG) -> Doubts:
    return doubts(frames, config, dataset_stats(frames, config))


def test_what_moves_rarely_is_told_with_how_far_it_goes() -> None:
    """2 (1 - 0) / 1e-6 - 1 = 1999999, which the windows that begin in frames 147 to 150 reach."""
    told = found(table())
    (line,) = told.notes
    assert line.startswith(
        "actions, dimension 2: it moves so rarely that its q01 and q99 are the same; 4 of 300 windows"
    )
    assert "reach up to 2e+06 with data.action_norm quantile, above the 1e+06 that new trainings" in line
    assert "set data.action_norm mean_std" in line
    assert told.refused == told.notes
    assert found(table(), dataclasses.replace(CONFIG, action_norm="mean_std")) == Doubts(notes=(), refused=())


def test_a_window_sees_nothing_of_the_next_episode() -> None:
    action = columns()["action"]
    action[:, 2] = 0
    action[100, 2] = 1  # first frame of the second episode
    assert "; 1 of 300 windows reach" in found(table(action=action)).notes[0]


def test_what_goes_less_far_is_told_and_taken() -> None:
    """2 * 0.25 / 1e-6 - 1 = 5e5: of a state, in one frame."""
    state = columns()["observation.state"]
    state[:, 1] = 0
    state[7, 1] = 0.25
    state[:2, 0] = -9, 9  # no later batch is wider, which would count the first one's zeros anew
    told = found(table(**{"observation.state": state}))
    (line,) = [line for line in told.notes if line.startswith("state")]
    assert "1 of 300 frames reach up to 5e+05 with data.state_norm quantile; set data.state_norm" in line
    assert line not in told.refused


def test_relative_actions_are_judged_as_training_sees_them() -> None:
    """Targets that are the state but in one frame: relative ones are 0 at each window's first step, and move little."""
    state = np.zeros((300, 2), np.float32)
    state[:, 0] = np.arange(300) * 100
    action = np.concatenate([state, np.zeros((300, 1))], axis=1).astype(np.float32)
    still = np.zeros(3)
    frames = table(**{"observation.state": state, "action": action})
    stats = dataset_stats(frames, CONFIG) | {"actions": NormStats(mean=still, std=still, q01=still, q99=still)}
    told = doubts(frames, dataclasses.replace(CONFIG, norm_stats="other.json"), stats)
    # 300 per window's last step: 2 * 300 / 1e-6; a bound by the column alone, 2 * 59800 / 1e-6, is never reached.
    assert any(
        re.match(r"actions, dimension 0: 298 of 300 windows reach up to 6e\+08 .*another", n) for n in told.refused
    )


def test_constant_numbers_raise_no_doubt() -> None:
    action = columns()["action"]
    action[:, 2] = 0.5
    assert found(table(action=action)) == Doubts(notes=("actions, dimension 2: it never moves (spread 0)",), refused=())


def test_values_far_out_are_noted() -> None:
    x = np.array([[0.0, 40.0], [1.0, 42.0]], np.float32)
    assert list(plausible(x, "state")) == [
        "state, dimension 1: normalised values average 41.0; are these another dataset's statistics?"
    ]
    assert "another dataset" not in plausible(x, "state", own=True)[0]
    assert not plausible(x, "state", told={1})


def test_actions_too_are_doubted_with_others_statistics() -> None:
    stats = dataset_stats(table(), CONFIG)
    own = dataclasses.replace(stats["actions"], mean=stats["actions"].mean + np.array([0, 50, 0]), std=np.ones(3))
    config = dataclasses.replace(CONFIG, action_norm="mean_std", norm_stats="other.json")
    (line,) = doubts(table(), config, stats | {"actions": own}).notes
    assert line == "actions, dimension 1: normalised values average 50.0; are these another dataset's statistics?"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rare") / "set"
    episode = Recorded(columns=columns(), images={}, task="move to the red disc")
    write_lerobot(root, [episode], fps=10, robot="arm", provenance={}, names={})
    return root


def run_on(root: Path, dataset: Path, run: Path) -> OpenpiRiptConfig:
    config = supervised(small_config(dataset, run))
    data = dataclasses.replace(CONFIG, path=str(root), cameras={}, horizon=8, image_size=(28, 28))
    return dataclasses.replace(config, data=data)


def test_a_new_training_refuses_them_and_one_that_goes_on_does_not(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tmp_path / "tokenizer.model"
    tokenizer.write_text("unread")
    config = dataclasses.replace(run_on(root, tmp_path, tmp_path / "run"), tokenizer=str(tokenizer))
    with pytest.raises(
        DataError, match=r"a new training refuses these data:\n.*actions, dimension 2: it moves so rarely"
    ):
        main(config, "test")

    class Begun(Exception):
        """The task was made."""

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr("openpi_ript.train._make_task", begin)
    other = dataclasses.replace(config.data, action_norm="mean_std")
    with pytest.raises(Begun):
        main(
            dataclasses.replace(config, data=other, run=dataclasses.replace(config.run, dir=str(tmp_path / "b"))),
            "test",
        )
    going_on = dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))
    with pytest.raises(DataError, match="a new training refuses these data"):
        main(going_on, "test")  # a study and a scheduler always say so
    with RunFolder(going_on, "test") as folder:
        folder.log(1, "train", {"loss": 0.5})
    with pytest.raises(Begun):
        main(going_on, "test")


def test_inspect_tells_it_of_the_normalisation_that_has_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_main([str(root), "--horizon", "4", "--relative-dims", "0", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("dimension 2: it moves so rarely") == 1
    assert "never moves" not in out
