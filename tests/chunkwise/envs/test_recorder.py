"""Claiming a folder, sharing out episodes, and folders that appear when they are whole."""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkwise.cli.progress import follow
from chunkwise.config.experiment import FleetConfig
from chunkwise.envs import recorder
from chunkwise.envs.recorder import (
    Dataset,
    MetadataFiles,
    claim,
    record,
    record_whole,
    to_be_recorded,
)
from chunkwise.errors import BusyError, ConfigError, StorageError
from chunkwise.files.lock import locked
from chunkwise.files.new_folder import new_folder
from tests.chunkwise.calls import Calls
from tests.chunkwise.distributed.test_jobs import opener

METADATA = MetadataFiles(unfinished="_recording.json", finished="recording.json")


def test_a_folder_is_claimed_for_one_recording(tmp_path: Path) -> None:
    again = functools.partial(claim, tmp_path, METADATA, made_by="test", packages=("numpy",))
    assert again({"seed": 1, "sizes": (2, 3)})
    assert again({"seed": 1, "sizes": (2, 3)})
    with pytest.raises(ConfigError, match=r"record\.seed is 2, there 1"):
        again({"seed": 2, "sizes": (2, 3)})
    (tmp_path / METADATA.unfinished).rename(tmp_path / METADATA.finished)
    assert not again({"seed": 1, "sizes": (2, 3)})
    (tmp_path / METADATA.finished).rename(tmp_path / "holiday.txt")
    with pytest.raises(ConfigError, match="is not empty and holds no recording"):
        again({"seed": 1})


@pytest.mark.parametrize(
    ("finished", "ours"),
    [
        ('{"made_by": "test", "config": {}}', True),
        ('{"made_by": "a converter", "settings": {}}', False),
        ("{}", False),
        ('["test"]', False),
    ],
)
def test_what_others_made_is_not_recorded_again(tmp_path: Path, finished: str, ours: bool) -> None:
    """A converter's note may have the name of a recording's."""
    assert to_be_recorded(tmp_path / "none", METADATA, "test")
    assert not to_be_recorded(tmp_path, METADATA, "test")
    (tmp_path / METADATA.finished).write_text(finished)
    assert to_be_recorded(tmp_path, METADATA, "test") == ours
    (tmp_path / METADATA.unfinished).write_text("{}")
    assert to_be_recorded(tmp_path, METADATA, "test")


def test_a_recording_is_made_claimed_finished_and_gone_on_with(tmp_path: Path) -> None:
    path, said, asked = tmp_path / "deep/set", [], []

    def missing() -> list[int]:
        asked.append(json.loads((path / METADATA.unfinished).read_text())["config"])
        return [e for e in range(3) if not (path / str(e)).exists()]

    dataset = Dataset(
        made_by="test",
        metadata=METADATA,
        packages=(),
        settings={"seed": 1},
        episodes=3,
        processes=2,
        missing=missing,
        opener=functools.partial(opener, path),
        words="drives of 5 s",
        holds=(50.0, "images"),
        per_second=10.0,
    )
    record(dataset, path, report=said.append)
    assert sorted(file.name for file in path.iterdir()) == ["0", "1", "2", METADATA.finished]
    seconds = 3 * 50 / (10 * min(2, os.cpu_count() or 1))
    assert said[0] == (
        f"recording 3 of 3 drives of 5 s, into {path} with 2 processes; about {seconds:.0f} s on a desktop machine"
    )
    assert said[-1].startswith("recorded 3 episodes, about ")
    assert said[-1].endswith(" images a second")
    record(dataset, path, report=said.append)
    assert (len(said), asked) == (2, [{"seed": 1}])
    (path / "1").unlink()
    (path / METADATA.finished).rename(path / METADATA.unfinished)
    record(dataset, path, report=said.append)
    assert said[2].startswith(f"recording 1 of 3 drives of 5 s, into {path} with 1 processes;")
    assert (path / METADATA.finished).exists()
    with pytest.raises(
        ConfigError, match=r"record\.seed is 2, there 1\. .*; a training takes it as it is with --record None"
    ):
        record(dataclasses.replace(dataset, settings={"seed": 2}), path, report=said.append)
    with locked(path, "mine"), pytest.raises(BusyError, match=f"another process is recording into {path}"):
        record(dataset, path, report=said.append)


def test_a_setting_that_a_dataset_of_before_had_not_is_compared_for_new_runs_alone(tmp_path: Path) -> None:
    claim = functools.partial(recorder.claim, tmp_path, METADATA, made_by="test", packages=())
    assert claim({"seed": 1})
    now = {"seed": 1, "noise": 0.1}
    with pytest.raises(
        ConfigError, match=r"record\.noise is 0\.1, there None\. Change them back, or choose another path$"
    ):
        claim(now, begun=True)  # its missing episodes would be recorded with it
    (tmp_path / METADATA.unfinished).rename(tmp_path / METADATA.finished)
    assert not claim(now, begun=True)
    with pytest.raises(ConfigError, match=r"record\.noise is 0\.1, there None"):
        claim(now)
    with pytest.raises(ConfigError, match=r"settings: record\.seed is 2, there 1\."):
        claim(now | {"seed": 2}, begun=True)


def made_of(path: Path) -> dict[str, Any] | None:
    return json.loads((path / "made").read_text()) if (path / "made").exists() else None


def test_a_dataset_that_appears_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, settings = tmp_path / "deep/set", {"seed": 1, "size": (2, 3)}

    def write(folder: Path) -> str:
        assert not path.exists()
        (folder / "made").write_text(json.dumps(settings))
        return "wrote it"

    record_whole(path, settings, write, made_of)
    assert capsys.readouterr().out == f"wrote it, in {path}\n"
    record_whole(path, settings, write, made_of)
    assert capsys.readouterr().out == ""
    for other, words in (
        ({"seed": 2, "size": (2, 3)}, "other settings: seed is 2, there 1. Change them back"),
        ({"seed": 1}, r"size is None, there \[2, 3\]"),
        ({**settings, "more": 1}, "more is 1, there None"),
    ):
        with pytest.raises(ConfigError, match=words):
            record_whole(path, other, write, made_of)
    (tmp_path / "own").mkdir()
    with pytest.raises(ConfigError, match="own is there and holds no recording; choose another path, or not"):
        record_whole(tmp_path / "own", settings, write, made_of, hint=", or not")


def test_a_dataset_that_another_process_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "set"

    def late(folder: Path, seed: int = 1) -> str:
        (folder / "made").write_text("{}")
        path.mkdir()
        (path / "made").write_text(json.dumps({"seed": seed}))
        return ""

    record_whole(path, {"seed": 1}, late, made_of)
    assert made_of(path) == {"seed": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["set"]
    (path / "made").unlink()
    path.rmdir()
    with pytest.raises(ConfigError, match="seed is 1, there 2"):
        record_whole(path, {"seed": 1}, functools.partial(late, seed=2), made_of)

    def full(folder: Path) -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        record_whole(tmp_path / "other", {}, full, made_of)
    assert [file.name for file in tmp_path.iterdir()] == ["set"]


def test_a_folder_is_locked_for_one_process(tmp_path: Path) -> None:
    with locked(tmp_path, "first"), pytest.raises(BusyError, match="second"), locked(tmp_path, "second"):
        pass
    with locked(tmp_path, "third"):
        pass


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep/out") as scratch:
        (scratch / "file").write_text("x")
        assert not (tmp_path / "deep/out").exists()
    assert (tmp_path / "deep/out/file").read_text() == "x"
    with pytest.raises(KeyError), new_folder(tmp_path / "failed"):
        raise KeyError("anything")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/other").touch()
    with pytest.raises(StorageError, match="taken could not be written"), new_folder(tmp_path / "taken"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "taken"]  # no scratch is left
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["out"]


def test_a_new_folder_holds_nothing_of_one_that_was_killed_and_is_made_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".out.part/deep").mkdir(parents=True)
    (tmp_path / ".out.part/deep/old").write_text("half")
    (tmp_path / ".out.part/old").write_text("half")
    calls = Calls(tmp_path, monkeypatch)
    with new_folder(tmp_path / "out") as scratch:
        (scratch / "file").write_text("new")
        with pytest.raises(BusyError, match="another process is making"), new_folder(tmp_path / "out"):
            pass
        (scratch / "more").write_text("of it")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["file", "more"]
    files = [f"fsync .out.part/{name} bytes" for name in ("file 3", "more 5")]
    assert sorted(calls.seen[-5:-3]) == files, calls.seen
    assert calls.seen[-3:-1] == ["fsync .out.part", "rename .out.part out"]


def test_lines_tell_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0, 12.0, 18.0, 30.0])
    monkeypatch.setattr("chunkwise.cli.progress.time.monotonic", lambda: next(clock, 30.0))
    lines: list[str] = []
    text = "recorded {count} of {total} episodes"
    items = follow(iter("abcd"), 4, "recording", text, rate=(30.0, "frames"), say=lines.append)
    assert list(items) == list("abcd")
    assert lines == [
        "recorded 2 of 4 episodes, 5 frames a second, 12 s left",
        "recorded 4 of 4 episodes, 4 frames a second, 0 s left",
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    episodes: int = 3


def test_a_recording_on_a_cluster_is_asked_for_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def record_it(wish: Wish, path: str, **more: Any) -> None:
        asked.append((wish.episodes, path, more))

    for words, code in (["--fleet", "local"], 0), ([], 0), (["--fleet", "lokal"], 64):
        monkeypatch.setattr("sys.argv", ["record", "--path", "x", "--episodes", "5", *words])
        assert recorder.command_line(Wish, record_it, "record", "Records.") == code
    assert asked == [(5, "x", {"fleet": FleetConfig(address="local")}), (5, "x", {})]
    assert "fleet.address is 'lokal'; expected auto, local" in capsys.readouterr().err


def test_a_recording_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def do_all(numbers: list[int], *_: Any, **more: Any) -> Iterator[tuple[int, None]]:
        seen.append((numbers, more))
        yield from ((number, None) for number in numbers)

    monkeypatch.setattr(recorder, "do_all", do_all)
    dataset = Dataset(
        made_by="test",
        metadata=METADATA,
        packages=(),
        settings={},
        episodes=4,
        processes=3,
        missing=lambda: [1, 2, 3],
        opener=functools.partial(opener, tmp_path),
        words="drives",
        holds=(1.0, "images"),
        per_second=10.0,
    )
    record(dataset, tmp_path / "set", report=lambda _: None, fleet=FleetConfig(address="auto"))
    assert seen == [([1, 2, 3], {"workers": 3, "fleet": FleetConfig(address="auto"), "name": "episode"})]
