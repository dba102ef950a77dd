"""The challenge's archive, read back by the official messages."""

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import unknown_fields

from chunkwise.config.experiment import CheckpointConfig, RunConfig, TrainConfig
from chunkwise.errors import ConfigError, DataError, NonFiniteError
from driving.config import ConvConfig, DataConfig, DrivingConfig, EvalConfig, ModelConfig, WaypointConfig
from driving.convert import convert
from driving.converters.episode_writer import ConvertSettings
from driving.data.batches import open_data
from driving.eval import submit
from driving.eval.submission import About, archive, rounded, submission
from driving.train import main
from tests.driving.converters import test_waymo_e2e as e2e
from tests.driving.converters.waymo_protos import OFFICIAL
from tests.driving.drives import write_drive

ABOUT = About(account_name="a@b.org", unique_method_name="method", authors=("A", "Ö"), public_model_names=())


def read(content: bytes) -> tuple[str, Any]:
    """Name of the archive's one file, and the message in it."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        (entry,) = tar.getmembers()
        file = tar.extractfile(entry)
        assert file is not None
        message = OFFICIAL["E2EDChallengeSubmission"]()
        message.ParseFromString(file.read())
    return entry.name, message


def test_the_message_is_the_official_one():
    rng = np.random.default_rng(0)
    predictions = {f"segment{i}-{i}": rng.normal(size=(20, 2)) * 50 for i in range(3)}
    content = archive(submission(predictions, ABOUT, parameters=3_200_000), "mine")
    assert content == archive(submission(predictions, ABOUT, parameters=3_200_000), "mine")
    name, found = read(content)
    assert name == "mine/part0"
    assert not len(unknown_fields.UnknownFieldSet(found))
    assert [one.frame_name for one in found.predictions] == list(predictions)
    for one, places in zip(found.predictions, predictions.values(), strict=True):
        np.testing.assert_array_equal(one.trajectory.pos_x, places[:, 0].astype(np.float32))
        np.testing.assert_array_equal(one.trajectory.pos_y, places[:, 1].astype(np.float32))
    assert (found.submission_type, found.account_name, found.unique_method_name) == (1, "a@b.org", "method")
    assert (list(found.authors), found.num_model_parameters) == (["A", "Ö"], "3200K")
    assert found.HasField("uses_public_model_pretraining")
    assert not found.uses_public_model_pretraining
    more = dataclasses.replace(ABOUT, public_model_names=("CLIP",), affiliation="u", description="d", method_link="l")
    _, found = read(archive(submission({}, more, parameters=1), "mine"))
    assert found.uses_public_model_pretraining
    assert list(found.public_model_names) == ["CLIP"]
    assert (found.affiliation, found.description, found.method_link) == ("u", "d", "l")


@pytest.mark.parametrize("places", [np.zeros((19, 2)), np.full((20, 2), np.nan)])
def test_predictions_that_the_challenge_does_not_take(places: np.ndarray):
    with pytest.raises(ValueError, match="a-0: expected 20 finite places"):
        submission({"a-0": places}, ABOUT, parameters=1)


def test_parameters_as_the_challenge_writes_them():
    numbers = (1, 1_600, 9_999_999, 10_000_000, 429_400_000, 3_238_048_528, 32_400_000_000)
    assert [rounded(number) for number in numbers] == ["1K", "2K", "10000K", "10M", "429M", "3238M", "32B"]


@pytest.mark.long
def test_from_records_to_the_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    start = 0
    for split, count in (("training", 3), ("val", 1), ("test", 2)):
        for i in range(count):
            frames = [e2e.record(start + j, segment=f"{split}{i}", future=split != "test") for j in range(3)]
            e2e.write(tmp_path / "set" / f"{split}.tfrecord-{i:05d}-of-00003", *frames)
            start += 3
    convert(tmp_path / "set", tmp_path / "data", format="waymo_e2e", settings=ConvertSettings(), report=lambda _: None)
    config = DrivingConfig(
        run=RunConfig(dir=str(tmp_path / "run")),
        train=TrainConfig(steps=1, batch_size=4),
        data=DataConfig(path=str(tmp_path / "data"), image_size=(16, 24), waypoint_steps=20, waypoint_dt_s=0.25),
        model=ModelConfig(conv=ConvConfig(channels=(8,), blocks=(0,)), camera_width=8, scene_width=8),
        waypoints=WaypointConfig(hidden_sizes=(8,)),
        eval=EvalConfig(split="val", batch_size=4, blind_updates=2, plotted_moments=0),
        checkpoint=CheckpointConfig(every=1),
    )
    main(config, "e2e")
    arguments = [str(tmp_path / "run"), str(tmp_path / "mine.tar.gz"), "--account", "a@b.org", "--method", "m"]
    assert submit.main(arguments) == 0
    assert "wrote 2 trajectories" in capsys.readouterr().out
    _, found = read((tmp_path / "mine.tar.gz").read_bytes())
    assert [one.frame_name for one in found.predictions] == ["test0-014", "test1-017"], "the last of each segment"
    data = open_data(config.data, "test")
    rows = data.index.starts[data.episodes] + 2
    policy = submit.evaluate.WaypointPolicy(
        config,
        submit.read_weights(
            tmp_path / "run", config, lambda: submit.waypoints.init_params(config, submit.rngs.key(0, "init"))
        )[1],
    )
    expected = policy.predict(submit.waypoints.inputs(data.batch(rows), 0))
    written = [np.stack([one.trajectory.pos_x, one.trajectory.pos_y], axis=-1) for one in found.predictions]
    np.testing.assert_allclose(written, expected, atol=1e-4)

    # A folder of test segments alone has no part to train on, and all of it is submitted.
    for i in range(7):
        frames = [e2e.record(start + j, segment=f"other{i}", future=False) for j in range(3)]
        e2e.write(tmp_path / "more" / f"test.tfrecord-{i:05d}-of-00007", *frames)
        start += 3
    alone = ["--data", str(tmp_path / "alone")]
    settings = ConvertSettings()
    convert(tmp_path / "more", tmp_path / "alone", format="waymo_e2e", settings=settings, report=lambda _: None)
    assert submit.main([arguments[0], str(tmp_path / "alone.tar.gz"), *arguments[2:], *alone]) == 0
    _, found = read((tmp_path / "alone.tar.gz").read_bytes())
    assert [one.frame_name for one in found.predictions] == [f"other{i}-{20 + 3 * i:03d}" for i in range(7)]

    write_drive(tmp_path / "unstated", "e0", frames=3)
    unstated = ["--data", str(tmp_path / "unstated")]
    assert submit.main([*arguments, *unstated]) == DataError.exit_code
    assert "source.split: expected test segments, by a word such as 'test', found ['']" in capsys.readouterr().err

    assert submit.main([arguments[0], str(tmp_path / "mine.bin"), *arguments[2:]]) == ConfigError.exit_code
    assert "expected a name that ends in .tar.gz" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert submit.main([str(tmp_path / "no"), str(tmp_path / "file/a.tar.gz"), *arguments[2:]]) == 74, "first"
    assert "Choose another with OUT" in capsys.readouterr().err

    # "TESTING" is a word for a test as well, and no frame is submitted twice.
    files = sorted(file for file in (tmp_path / "alone").glob("*.json") if not file.name.startswith("_"))
    for file, split in zip(files, ("TESTING", "v1.0-test"), strict=False):
        tree = json.loads(file.read_text())
        tree["source"]["split"] = split
        file.write_text(json.dumps(tree))
    assert submit.main([arguments[0], str(tmp_path / "alone.tar.gz"), *arguments[2:], *alone]) == 0
    assert "wrote 7 trajectories" in capsys.readouterr().out
    one, other = files[2:4]
    tree = json.loads(one.read_text())
    tree["frames"][-1]["name"] = json.loads(other.read_text())["frames"][-1]["name"]
    one.write_text(json.dumps(tree))
    assert submit.main([arguments[0], str(tmp_path / "twice.tar.gz"), *arguments[2:], *alone]) == DataError.exit_code
    told = capsys.readouterr().err
    assert f"found the frame {tree['frames'][-1]['name']} at the end of {one.name} and of {other.name}" in told

    assert submit.main([arguments[0], str(tmp_path / ".tar.gz"), *arguments[2:]]) == ConfigError.exit_code
    assert "expected a name before .tar.gz" in capsys.readouterr().err
    assert submit.main([*arguments, "--author", "M\udcfcller"]) == ConfigError.exit_code
    assert "authors is 'M\\udcfcller': expected text in UTF-8" in capsys.readouterr().err
    nowhere = lambda *_: np.full((2, 20, 2), np.nan)  # noqa: E731
    monkeypatch.setattr(submit.evaluate, "predict", nowhere)
    assert submit.main(arguments) == NonFiniteError.exit_code
    assert "at step 1 its waypoints at test0-014 are not finite, as those at 2 of 2 frames" in capsys.readouterr().err
