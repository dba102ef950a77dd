import dataclasses
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.errors import ConfigError, DataError, StorageError
from configs.qchunk import debug
from qchunk import convert as convert_module
from qchunk import train
from qchunk.config import DataConfig, EvalConfig
from qchunk.convert import convert, detect, main
from tests import lerobot_files
from tests.qchunk.converters.sources import (
    d4rl_arrays,
    demo,
    refused,
    robomimic,
    settings,
    write_d4rl,
    write_robomimic,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_formats_are_recognised(tmp_path: Path):
    assert detect(robomimic(tmp_path / "a.hdf5")) == "robomimic"
    assert detect(write_d4rl(tmp_path / "b.hdf5", d4rl_arrays())) == "d4rl"
    np.savez(tmp_path / "c.npz", x=np.zeros(1))
    assert detect(tmp_path / "c.npz") == "ogbench"
    assert detect(lerobot_files.write_v21(tmp_path / "d", lerobot_files.record(), storage="image")) == "lerobot"
    with h5py.File(tmp_path / "e.hdf5", "w") as h5:
        h5["x"] = 1
    for path, text in (
        (tmp_path / "none", "there is no such file or folder"),
        (tmp_path / "e.hdf5", r"found \['x'\]"),
        (tmp_path, "A folder of ALOHA HDF5 episodes, or of .npz files .*, needs no conversion"),
    ):
        with pytest.raises(DataError, match=text):
            detect(path)


def test_exit_codes_and_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = robomimic(tmp_path / "a.hdf5")
    out = str(tmp_path / "out")
    assert main([str(source), out, "--filter-key", "train", "--observation-keys", "object"]) == 0
    assert "wrote 2 episode(s) into" in capsys.readouterr().out
    assert main([str(source), out]) == 64
    assert "exists; convert into a folder that does not exist yet" in capsys.readouterr().err
    other = str(tmp_path / "other")
    assert main([str(source), other, "--filter-key", "best"]) == 64
    assert "there is no filter key 'best'; /mask holds ['train', 'valid']" in capsys.readouterr().err
    assert main([str(source), other, "--max-episode-steps", "5"]) == 64
    assert "--max-episode-steps means nothing for robomimic; it is for d4rl" in capsys.readouterr().err
    assert main([str(tmp_path / "none.hdf5"), other]) == 65
    with pytest.raises(SystemExit) as stop:
        main([str(source), other, "--camera", "agentview"])
    assert stop.value.code == 64
    assert not Path(other).exists()


@pytest.mark.long
def test_what_was_converted_is_trained_on_by_a_config_that_records(tmp_path: Path):
    """The converter's note has the name of a recording's, and no settings of one: it was taken for one once."""
    out = tmp_path / "out"
    convert(robomimic(tmp_path / "a.hdf5"), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "dataset.json" in before
    config = dataclasses.replace(
        debug.get_config(),
        run=RunConfig(dir=str(tmp_path / "run")),
        train=TrainConfig(steps=1, batch_size=4),
        data=DataConfig(path=str(out), episodes_per_epoch=2, steps_per_epoch=4, action_norm="quantile"),
        eval=EvalConfig(),
    )
    assert config.record is not None
    train.main(config, "converted")
    assert (tmp_path / "run/done.json").is_file()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_settings_that_cannot_be(tmp_path: Path):
    source = robomimic(tmp_path / "a.hdf5")
    for changes, text in (
        ({"cameras": {"a": "x", "b": "x"}}, "cannot name a camera"),
        ({"cameras": {"a": "../x"}}, "cannot name a camera"),
        ({"quality": 0}, "--quality is 0; expected 1 to 100"),
    ):
        with pytest.raises(ConfigError, match=text):
            convert(source, tmp_path / "out", settings=settings(**changes))


def test_a_failure_while_writing_keeps_what_was_written_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = robomimic(tmp_path / "a.hdf5")
    write, count = convert_module.write_episode, 0

    def full_disk(*args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")
        write(*args, **kwargs)

    monkeypatch.setattr(convert_module, "write_episode", full_disk)
    with pytest.raises(StorageError, match=r"could not be written: .*No space left"):
        convert(source, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".out.part", "a.hdf5"]
    convert(source, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.hdf5", "out"]
    episodes = len(list((tmp_path / "out").glob("*.hdf5")))
    assert count == episodes + 1, "of those that were written none is written again"
    convert(source, tmp_path / "other")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_a_damaged_image_is_refused_and_leaves_nothing(tmp_path: Path):
    content = demo(5, 0, images=True)
    source = write_robomimic(tmp_path / "image.hdf5", {"demo_0": content})
    with h5py.File(source, "r+") as h5:
        del h5["data/demo_0/obs/agentview_image"]
        h5["data/demo_0/obs"].create_dataset(  # pyright: ignore
            "agentview_image", data=content["obs/agentview_image"], chunks=(1, 16, 24, 3), fletcher32=True
        )
    raw = bytearray(source.read_bytes())
    at = raw.index(content["obs/agentview_image"][3].tobytes())
    raw[at : at + 100] = bytes(100)
    source.write_bytes(raw)
    text = refused(source, tmp_path / "out")
    assert "image.hdf5/data/demo_0/obs, rows 0 on: expected readable images, found" in text
