"""openpi_ript/inspect.py: what it says of good and bad datasets, and its exit codes."""

import dataclasses
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from chunkwise.config.load import load_for_data
from chunkwise.errors import DataError
from openpi_ript import inspect as inspect_module
from openpi_ript.config.data import ALOHA, DROID, UR5E, DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data import norm
from openpi_ript.data.dataset import open_data
from openpi_ript.data.lerobot_writer import Recorded, write_lerobot
from openpi_ript.data.pack import main as pack_main
from openpi_ript.inspect import Inspection, inspect, main
from tests.lerobot_files import CAMERAS, record, write_v21, write_v30


def test_a_good_dataset_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = record()
    root = write_v30(tmp_path / "set", episodes)
    assert main([str(root), "--json", "--horizon", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["fps"], report["frames"]) == ("LeRobot v3.0", 10.0, 21)
    assert report["cameras"] == list(CAMERAS)
    assert [(e["index"], e["length"], e["verdict"]) for e in report["episodes"]] == [
        (0, 7, "good"),
        (1, 5, "good"),
        (2, 9, "good"),
    ]
    assert report["episodes"][1]["dims"] == {"observation.state": 6, "action": 7}
    assert report["episodes"][2]["path"] == "data/chunk-000/file-001.parquet"
    assert len({e["hash"] for e in report["episodes"]}) == 3
    state = np.concatenate([e.state for e in episodes]).astype(np.float64)
    np.testing.assert_allclose(report["stats"]["state"]["mean"], state.mean(0), atol=1e-9)
    assert report["stats_seconds_per_million_frames"] > 0
    assert "2 of 3 episodes succeeded" in report["notes"]
    assert (report["problems"], report["refused"]) == ([], False)
    assert main([str(root)]) == 0
    text = capsys.readouterr().out
    assert "training would take this dataset" in text
    assert "s a million frames" in text


def test_statistics_that_it_writes_are_the_ones_training_takes(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    file = tmp_path / "norm_stats.json"
    dims = [str(dim) for dim in UR5E.relative_dims]
    assert main([str(root), "--horizon", "4", "--relative-dims", *dims, "--write-stats", str(file)]) == 0
    cameras = {"base_0_rgb": CAMERAS[0]}
    config = DataConfig(path=str(root), robot=UR5E, cameras=cameras, horizon=4, action_norm="quantile")
    own = open_data(config)
    np.testing.assert_array_equal(norm.load_stats(file, own.stats_source)["actions"].q99, own.stats["actions"].q99)


def arms(root: Path, task: str = "fold", **columns: np.ndarray) -> Path:
    """Three episodes of 40 frames of ALOHA's 14 numbers."""
    rng = np.random.default_rng(0)

    def numbers() -> np.ndarray:
        return rng.random((40, 14)).astype(np.float32)

    episodes = [
        Recorded(columns={"observation.state": numbers(), "action": numbers()} | columns, images={}, task=task)
        for _ in range(3)
    ]
    write_lerobot(root, episodes, fps=50, robot="aloha", provenance={}, names={})
    return root


def test_statistics_are_of_the_adapters_numbers(tmp_path: Path) -> None:
    """ALOHA's second joint turns the other way round for pi0: its mean has the other sign."""
    root = arms(tmp_path / "set")
    words = [str(root), "--horizon", "4", "--relative-dims", *map(str, ALOHA.relative_dims), "--write-stats"]
    plain, turned = tmp_path / "plain.json", tmp_path / "turned.json"
    assert main([*words, str(plain)]) == 0
    assert main([*words, str(turned), "--adapter", "aloha"]) == 0
    config = DataConfig(path=str(root), robot=ALOHA, cameras={}, horizon=4, norm_stats=str(turned))
    mean = open_data(config).stats["state"].mean
    raw = np.array(json.loads(plain.read_text())["norm_stats"]["state"]["mean"])
    np.testing.assert_allclose(mean[:6], raw[:6] * [1, -1, -1, 1, 1, 1])
    with pytest.raises(DataError, match=r"adapter aloha makes, found those of none.*inspect --adapter aloha") as error:
        open_data(dataclasses.replace(config, norm_stats=str(plain)))
    assert "delete" not in str(error.value)
    # A run's own are read without its dataset.
    np.testing.assert_array_equal(norm.load_stats(turned, {})["state"].mean, mean)
    other = dataclasses.replace(config, robot=dataclasses.replace(ALOHA, adapter="none"))
    with pytest.raises(DataError, match="adapter none makes, found those of aloha"):
        open_data(other)


def test_tasks_without_words_are_taken_with_a_default_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = arms(tmp_path / "set", task="")
    assert main([str(root), "--horizon", "4"]) == 65
    assert "--default-prompt" in capsys.readouterr().out
    assert main([str(root), "--horizon", "4", "--default-prompt", "fold"]) == 0
    config = DataConfig(path=str(root), robot=RobotConfig(state_dim=14, action_dim=14), cameras={}, default_prompt=" ")
    with pytest.raises(DataError, match=r"expected an instruction for tasks \[0\], found ''; set data\.default_prompt"):
        open_data(config)
    for words in (["--default-prompt", " "], ["--horizon", "0"], ["--tolerance-s", "nan"]):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path / "nothing"), *words])
        assert ended.value.code == 64


def test_a_state_in_several_columns_is_taken_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As DROID's; the file is what a training of data.state_parts computes itself."""
    rng = np.random.default_rng(1)
    numbers = {"joints": rng.random((9, 7)), "grip": rng.random((9, 1)), "action": rng.random((9, 8))}
    columns = {key: value.astype(np.float32) for key, value in numbers.items()}
    episode = Recorded(columns=columns, images={}, task="x")
    write_lerobot(tmp_path / "set", [episode], fps=15, robot="franka", provenance={}, names={})
    file = tmp_path / "stats.json"
    words = [str(tmp_path / "set"), "--horizon", "2", "--adapter", "droid", "--write-stats", str(file)]
    assert main([*words, "--state-parts", "joints", "grip"]) == 0
    mean = json.loads(file.read_text())["norm_stats"]["state"]["mean"]
    np.testing.assert_allclose(mean[:8], np.concatenate([numbers["joints"], numbers["grip"]], 1).mean(0), atol=1e-6)
    data = DataConfig(path=str(tmp_path / "set"), robot=DROID, cameras={}, state_parts=("joints", "grip"), horizon=2)
    np.testing.assert_array_equal(open_data(data).stats["state"].mean, mean)
    assert main([*words[:-2], "--state-parts", "joints"]) == 65
    capsys.readouterr()
    assert main(words[:-2]) == 65
    out = capsys.readouterr().out
    assert "expected column 'observation.state', found ['action', 'episode_index', " in out
    assert (
        "name its own with --state-key, or --state-parts where the state is in several columns, and --action-key" in out
    )


def test_columns_that_number_the_rows_are_no_state_and_no_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(arms(tmp_path / "set"))
    for flag, column, field in (
        ("--state-key", "task_index", "state_key"),
        ("--action-key", "index", "action_key"),
        ("--state-parts", "frame_index", "state_parts"),
    ):
        assert main([root, "--horizon", "4", flag, column]) == 65
        assert f"data.{field}: expected columns of the robot's, found ['{column}']" in capsys.readouterr().out
    assert main([root, "--horizon", "4", "--state-parts", "observation.state", "task_index"]) == 0


def test_numbers_that_are_left_as_they_are_raise_no_doubt_of_statistics(tmp_path: Path) -> None:
    root = arms(tmp_path / "set", "fold", **{"observation.state": np.full((40, 14), 30.0, np.float32)})
    assert not [note for note in inspect(Inspection(path=root, horizon=4))["notes"] if "another dataset" in note]


def test_a_fault_of_a_column_that_training_does_not_read_is_a_note(tmp_path: Path) -> None:
    """Training opens such a dataset."""
    root = arms(tmp_path / "set", effort=np.full((40, 2), np.nan, np.float32))
    report = inspect(Inspection(path=root, horizon=4))
    assert (report["problems"], report["refused"]) == ([], False)
    unread = [note for note in report["notes"] if note.endswith("training does not read it")]
    assert len(unread) == 3
    assert "episode 0, data/chunk-000/episode_000000.parquet: effort, row 0" in unread[0]
    assert set(report["episodes"][0]["dims"]) == {"observation.state", "action"}
    open_data(DataConfig(path=str(root), robot=ALOHA, cameras={}, horizon=4))


def test_a_pack_is_inspected_too(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    pack_main([str(root), str(tmp_path / "pack"), "--image-size", "28", "28", "--encoding", "raw"])
    report, plain = (inspect(Inspection(path=path, horizon=4)) for path in (tmp_path / "pack", root))
    assert report["kind"] == "pack"
    assert not report["refused"]
    assert report["source"] == plain["source"]
    assert report["stats"] == plain["stats"]
    shard = tmp_path / "pack/pictures-00000.arrayrecord"
    shard.write_bytes(shard.read_bytes()[:1000])
    assert main([str(tmp_path / "pack")]) == 65


def test_every_bad_episode_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = record()
    episodes[0].action[3, 1] = np.inf
    root = write_v21(tmp_path / "set", episodes)
    film = root / f"videos/chunk-000/{CAMERAS[1]}/episode_000002.mp4"
    film.write_bytes(film.read_bytes()[:300])
    assert main([str(root), "--json"]) == 65
    report = json.loads(capsys.readouterr().out)
    assert [episode["verdict"] for episode in report["episodes"]] == ["bad", "good", "bad"]
    assert len(report["problems"]) == 2
    assert "episode 0, data/chunk-000/episode_000000.parquet: action, row 3" in report["problems"][0]
    assert f"episode 2, videos/chunk-000/{CAMERAS[1]}/episode_000002.mp4" in report["problems"][1]
    assert report["refused"]


def test_an_image_damaged_inside_shows_only_when_decoded(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image_file")
    image = root / f"images/{CAMERAS[0]}/episode_000001/frame_000002.png"
    image.write_bytes(image.read_bytes()[:80])
    assert not inspect(Inspection(path=root, images=False))["refused"]
    assert main([str(root), "--no-images"]) == main([str(root), "--no-pictures"]) == 0  # as it was called before
    report = inspect(Inspection(path=root))
    assert len(report["problems"]) == 1
    assert f"episode 1, {CAMERAS[0]}, row 2" in report["problems"][0]


def test_a_camera_of_floats_cast_to_bytes_is_noted(tmp_path: Path) -> None:
    episodes = record()
    episodes[1].images[CAMERAS[0]][:] = 1
    report = inspect(Inspection(path=write_v21(tmp_path / "set", episodes, "image")))
    assert any(f"episode 1, {CAMERAS[0]}: no value above 1 in 5 images" in note for note in report["notes"])


def test_a_dimension_that_never_moves_is_named(tmp_path: Path) -> None:
    episodes = record()
    for episode in episodes:
        episode.state[:, 4] = 0.5
    report = inspect(Inspection(path=write_v21(tmp_path / "set", episodes, "image"), horizon=4))
    assert "state, dimension 4: it never moves (spread 0)" in report["notes"]


def test_what_is_no_dataset_ends_with_65(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 65
    assert "expected a LeRobot dataset with meta/info.json" in capsys.readouterr().out
    root = write_v21(tmp_path / "set", record(), "image")
    assert main([str(root), "--state-key", "joints"]) == 65
    assert "expected column 'joints', found" in capsys.readouterr().out
    assert main([str(root), "--relative-dims", "6"]) == 65
    with pytest.raises(SystemExit) as usage:
        main([str(root), "--jsn"])
    assert usage.value.code == 64


@pytest.mark.parametrize(("place", "code"), [("folder", 64), ("file/stats.json", 74)])
def test_a_place_that_nothing_can_be_written_to_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, code: int
) -> None:
    """Kills: a traceback after all of a dataset was read."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(inspect_module, "inspect", mock.Mock(side_effect=AssertionError))
    assert main([str(tmp_path), "--write-stats", str(tmp_path / place)]) == code
    assert str(tmp_path / place) in capsys.readouterr().err


CONFIG = f"""
import dataclasses
from chunkwise.config import TrainConfig
from openpi_ript.config import UR5E, AdvantageConfig, DataConfig, GuidanceConfig, OpenpiRiptConfig, toy


def get_config():
    data = DataConfig(
        path="elsewhere",
        robot=UR5E,
        cameras={{"base_0_rgb": "{CAMERAS[0]}"}},
        horizon=8,
        image_size=(28, 28),
        advantage=AdvantageConfig(group_by="dataset"),
    )
    model = dataclasses.replace(toy("pi0"), action_dim=14, optimality=True)
    train = TrainConfig(steps=4, batch_size=4)
    return OpenpiRiptConfig(train=train, model=model, data=data, guidance=GuidanceConfig(), tokenizer="not/needed")
"""


@pytest.fixture
def training(tmp_path: Path) -> list[str]:
    """Options that name a training on the first camera alone, guided by the success of rollouts."""
    (tmp_path / "mine.py").write_text(CONFIG)
    return ["--config", str(tmp_path / "mine.py")]


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_training_it_looks_at_what_that_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], training: list[str], packed: bool
) -> None:
    """A camera that it leaves out may be damaged; one that it reads ends it."""
    root = write_v21(tmp_path / "set", record(), "image_file")
    if packed:
        root = tmp_path / "pack"
        pack_main([str(tmp_path / "set"), str(root), "--image-size", "28", "28", "--encoding", "raw"])
    else:
        damaged = root / f"images/{CAMERAS[1]}/episode_000001/frame_000002.png"
        damaged.write_bytes(damaged.read_bytes()[:80])
        assert main([str(root)]) == 65
    capsys.readouterr()
    assert main([str(root), *training]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "training with this config takes this dataset"
    assert main([str(root), *training, "--json", "--data.cameras.base-0-rgb", "nowhere"]) == 65
    report = json.loads(capsys.readouterr().out)
    assert report["refused"]
    assert "nowhere" in report["refusal"]
    if not packed:
        read = root / f"images/{CAMERAS[0]}/episode_000001/frame_000002.png"
        read.write_bytes(read.read_bytes()[:80])
        assert main([str(root), *training, "--no-images"]) == 0
        capsys.readouterr()
        assert main([str(root), *training]) == 65
        lines = capsys.readouterr().out.splitlines()
        assert "problem: " in lines[-2]
        assert "training would end at the first image that does not decode, of 1 episode(s)" in lines[-1]


@pytest.mark.parametrize(
    ("fields", "said", "code"),
    [
        (["--data.robot.state-dim", "5", "--data.robot.relative-dims", "0"], "of 5 values as robot.state_dim says", 65),
        (["--data.advantage.group-by", "init_hash"], "no rollout is better than the others of its group", 64),
        (["--data.holdout", "0.5"], "no rollout is better than the others of its group", 64),
        (["--data.init-key", "absent", "--data.advantage.group-by", "init_hash"], "absent", 65),
        (["--data.fps", "30"], "expected 30 fps as data.fps says, found 10", 65),
    ],
)
def test_of_a_training_it_says_what_that_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], training: list[str], fields: list[str], said: str, code: int
) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    assert main([str(root), *training, *fields]) == code
    assert said in capsys.readouterr().out


def test_statistics_of_a_training_leave_out_what_it_holds_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], training: list[str]
) -> None:
    """By hand: the mean of the frames of the episodes that are trained on."""
    episodes = record((7, 5, 9, 6))
    root, file = write_v21(tmp_path / "set", episodes, "image"), tmp_path / "stats.json"
    apart = [*training, "--data.init-key", "observation.state", "--data.advantage.group-by", "dataset"]
    assert main([str(root), *apart, "--data.holdout", "0.5", "--write-stats", str(file)]) == 0
    config = load_for_data(OpenpiRiptConfig, training[1], root, ["--data.holdout", "0.5"], program="x")
    data = open_data(config.data)
    trained = sorted({int(data.episodes_of(np.array([row]))[0]) for row in data.rows})
    assert 0 < len(trained) < 4
    mean = json.loads(file.read_text())["norm_stats"]["state"]["mean"]
    np.testing.assert_allclose(mean[:6], np.concatenate([episodes[i].state for i in trained]).mean(0), atol=1e-6)
    again = open_data(dataclasses.replace(config.data, norm_stats=str(file)))
    np.testing.assert_array_equal(again.stats["state"].mean, data.stats["state"].mean)


def test_options_that_a_config_stands_for_are_refused_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], training: list[str]
) -> None:
    for words, said in (
        ([*training, "--horizon", "9"], "--horizon has no effect beside --config; set --data.horizon in its place"),
        ([*training, "--state-parts", "a"], "--state-parts has no effect beside --config; set --data.state-parts"),
        (["--data.horizon", "9"], "unrecognized arguments: --data.horizon 9; fields of a config need --config"),
    ):
        with pytest.raises(SystemExit) as usage:
            main([str(tmp_path), *words])
        assert usage.value.code == 64
        assert said in capsys.readouterr().err
    for words, said in (
        (["--config", "qchunk/debug"], "a QChunkConfig; expected a OpenpiRiptConfig"),
        ([*training, "--data.horizn", "9"], "--data.horizn"),
    ):
        assert main([str(tmp_path), *words]) == 64
        assert said in capsys.readouterr().err
