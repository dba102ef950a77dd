import argparse
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from chunkwise.data import convert as driver
from chunkwise.data.convert import ConvertSettings, Formats, Joined, Pairs
from chunkwise.data.parts import Part, PartFolder
from chunkwise.data.problems import Problem
from chunkwise.errors import ConfigError, DataError, StorageError
from tests.chunkwise.calls import Calls


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ConvertSettings):
    loud: bool = False


class Lines:
    """A text file of which each word becomes a file; "bad" is refused, "odd" when it is looked at, "torn" when joined.

    Where a file "stop" lies beside it, the word "last" ends the process as a power cut would.
    """

    closed = written = 0

    def __init__(self, kind: str, source: Path, settings: Settings) -> None:
        self._source, self._words, self._loud = source, source.read_text().split(), settings.loud

    @property
    def units(self) -> Sequence[str]:
        return self._words

    def files(self, unit: int) -> Sequence[Path]:
        return [self._source.with_suffix(f".{unit}")]

    def look(self, unit: int) -> Part:
        if self._words[unit] == "odd":
            raise DataError("an odd word")
        return Part(said={"length": len(self._words[unit])})

    def settle(self, looks: Mapping[int, Part]) -> tuple[Any, Mapping[int, Sequence[Problem]]]:
        wide = {
            n: [Problem(file="a", row=n, expected="9 letters", found="more")]
            for n, x in looks.items()
            if x.said["length"] > 9
        }
        return sum(look.said["length"] for n, look in looks.items() if n not in wide), wide

    def write(self, unit: int, folder: Path, known: Any) -> Part:
        word = self._words[unit]
        if word == "bad":
            (folder / "half").touch()
            raise DataError("a bad word")
        if word == "last" and self._source.with_name("stop").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "many":
            return Part(read=100, bad=1, problems=(Problem(file="a", row=7, expected="good", found="not"),))
        Lines.written += 1
        (folder / f"{unit}.txt").write_text(word.upper() if self._loud else f"{word} of {known}")
        return Part(said={"word": word})

    def join(self, parts: Mapping[int, Part], folder: Path) -> Joined:
        (folder / "all.txt").write_text(" ".join(part.said.get("word", "-") for part in parts.values()))
        torn = [n for n, part in parts.items() if part.said.get("word") == "torn"]
        problems = [Problem(file="a", row=n, expected="a whole word", found="torn") for n in torn]
        return Joined(
            problems=problems,
            bad=len(torn),
            left_out={n: {f"{n}.txt"} for n in torn},
            about={"lines": len(parts)},
            summary=f"wrote {len(parts)} lines into {{out}}",
        )

    def close(self) -> None:
        Lines.closed += 1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--camera", dest="cameras", action=Pairs, metavar="A=B", example="left=right")
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--quality", type=int, default=95)


FORMATS = Formats(
    program="tests.lines",
    names=("plain", "capital"),
    detect=lambda source: "capital" if source.suffix == ".up" else "plain",
    open=Lines,
    settings=Settings,
    concerns={"loud": ("capital",), "cameras": ("plain", "capital")},
    description="about.json",
    done="converted {count} of {total} lines",
    add_options=add_options,
)


def run(*words: object) -> int:
    convert = functools.partial(driver.convert, FORMATS, report=print)
    return driver.command_line(FORMATS, convert, [str(word) for word in words], about="Lines.", source="a text file")


def test_a_dataset_and_what_it_was_made_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.up").write_text("x y")
    out, closed = tmp_path / "new" / "out", Lines.closed
    words = ("--loud", "--camera", "a=1", "--camera", "b=2=3", "--camera", "a=4", "--allow-links-to", tmp_path)
    assert run(tmp_path / "a.up", out, *words) == 0
    assert f"wrote 2 lines into {out}" in capsys.readouterr().out
    assert {path.name: path.read_text() for path in out.glob("*.txt")} == {"0.txt": "X", "1.txt": "Y", "all.txt": "x y"}
    assert json.loads((out / "about.json").read_text()) == {
        "made_by": "tests.lines",
        "format": "capital",
        "source": "a.up",
        "settings": {"cameras": {"a": "4", "b": "2=3"}, "quality": 95, "loud": True},
        "lines": 2,
    }
    assert Lines.closed == closed + 1


def test_a_bad_source_leaves_what_is_good_for_the_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Repaired, it is converted as if it had never been bad, and nothing that was good is written again."""
    (tmp_path / "a").write_text("x bad y bad")
    closed = Lines.closed
    assert run(tmp_path / "a", tmp_path / "out") == 65
    found = capsys.readouterr().err
    assert "2 problem(s):\n  bad: expected data that can be read, found a bad word; the same in bad" in found
    assert "--on-bad skip" in found
    assert "nothing was written" in found
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.part", "a"]
    assert Lines.closed == closed + 1
    (tmp_path / "a").write_text("x one y two")
    written = Lines.written
    assert run(tmp_path / "a", tmp_path / "out") == 0
    assert Lines.written == written + 2, "the sum of all lengths is what it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]
    (tmp_path / "b").write_text("bad")
    assert run(tmp_path / "b", tmp_path / "none") == 65
    assert not list(tmp_path.glob(".*")), "of a source without anything good nothing is left"


def test_what_is_bad_is_left_out_up_to_a_hundredth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One that is bad in itself, one when it is looked at, one beside the others, one when all are there."""
    (tmp_path / "a").write_text("one bad odd toolongaword two torn")
    monkeypatch.setattr(driver, "MAX_SKIPPED", 4 / 6)
    assert run(tmp_path / "a", tmp_path / "out", "--on-bad", "skip") == 0
    said = capsys.readouterr().out
    assert "skipped a: row 5: expected a whole word, found torn" in said
    assert "skipped bad: expected data that can be read, found a bad word" in said
    about = json.loads((tmp_path / "out/about.json").read_text())
    assert (about["skipped"]["bad"], about["skipped"]["of"], len(about["skipped"]["problems"])) == (4, 6, 4)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"0.txt", "4.txt", "all.txt", "about.json"}
    assert (tmp_path / "out/0.txt").read_text() == "one of 13"
    monkeypatch.undo()
    (tmp_path / "a").write_text("many x")  # 99 records and a bad one, and a good one
    assert run(tmp_path / "a", tmp_path / "most", "--on-bad", "skip") == 0
    assert json.loads((tmp_path / "most/about.json").read_text())["skipped"]["of"] == 101
    for words in ("many bad", "many torn", "many odd", "many toolongaword"):
        (tmp_path / "a").write_text(words)
        assert run(tmp_path / "a", tmp_path / "more", "--on-bad", "skip") == 65
        assert "; --on-bad skip leaves out at most 1%" in capsys.readouterr().err
    assert not (tmp_path / "more").exists()


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path):
    (tmp_path / "a").write_text("one two three four five")
    for workers in ("1", "2"):
        assert run(tmp_path / "a", tmp_path / f"out{workers}", "--workers", workers) == 0
    files = sorted(path.name for path in (tmp_path / "out1").iterdir())
    assert len(files) == 7
    for name in files:
        assert (tmp_path / "out1" / name).read_bytes() == (tmp_path / "out2" / name).read_bytes()
    assert run(tmp_path / "a", tmp_path / "none", "--workers", "0") == 64


def test_killed_in_the_middle_it_goes_on_with_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a").write_text("one two last four")
    (tmp_path / "stop").touch()
    line = f"from {__name__} import run; run({str(tmp_path / 'a')!r}, {str(tmp_path / 'out')!r})"
    died = subprocess.run([sys.executable, "-c", line], cwd=Path(__file__).parents[3], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (tmp_path / "stop").unlink()
    parts = tmp_path / ".out.part/.jobs/parts"
    (parts / "000000.half").mkdir()
    (parts / "000001/part.json").write_text('{"key": "da')
    written = Lines.written
    assert run(tmp_path / "a", tmp_path / "out") == 0
    assert "1 of 4 are there already" in capsys.readouterr().out
    assert Lines.written == written + 3
    assert run(tmp_path / "a", tmp_path / "whole") == 0
    assert len(list((tmp_path / "out").iterdir())) == 6
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_all_is_on_the_device_once_before_the_dataset_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: files of parts forced out again; what is joined, the description or a folder's names not forced out."""
    (tmp_path / "a").write_text("one two")
    calls = Calls(tmp_path, monkeypatch)
    assert run(tmp_path / "a", tmp_path / "out") == 0
    named = calls.seen.index("rename .out.part out")
    before, parts_go = calls.seen[:named], next(i for i, call in enumerate(calls.seen) if ".jobs out." in call)
    forced = [call.rsplit("/")[-1].split(" ")[0] for call in before if call.startswith("fsync")]
    assert [forced.count(file) for file in ("0.txt", "1.txt", "all.txt", "about.json")] == [1, 1, 1, 1]
    moved = max(i for i, call in enumerate(before) if call.startswith("replace") and call.endswith(".out.part/all.txt"))
    assert "fsync .out.part" in before[moved:parts_go]
    assert "fsync .out.part" in before[parts_go:]
    assert calls.seen[named + 1] == "fsync ."


@pytest.mark.parametrize("at", ["0.txt", "all.txt", "about.json"])
def test_killed_while_a_file_is_forced_out_it_leaves_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
):
    """Kills: the description under a scratch name in the dataset's folder, where it stays."""
    (tmp_path / "a").write_text("one two")
    assert run(tmp_path / "a", tmp_path / "whole") == 0
    fsync = os.fsync

    def killed(descriptor: int) -> None:
        if at in Path(os.readlink(f"/proc/self/fd/{descriptor}")).name:
            raise KeyboardInterrupt
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "a", tmp_path / "out")
    assert run(tmp_path / "a", tmp_path / "out") == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole


@pytest.mark.parametrize("change", ["settings", "file", "nothing"])
def test_killed_while_files_are_moved_it_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    (tmp_path / "a.up").write_text("one two three")
    taken = PartFolder.take

    def take(self: PartFolder, number: int, names: Any, out: Path) -> None:
        taken(self, number, names, out)
        if number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PartFolder, "take", take)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "a.up", tmp_path / "out")
    assert (tmp_path / ".out.part/1.txt").exists()
    words = ["--loud"] if change == "settings" else []
    if change == "file":
        (tmp_path / "a.2").touch()
        assert run(tmp_path / "a.up", tmp_path / "out") == 74
    assert run(tmp_path / "a.up", tmp_path / "out", *words) == 0
    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob("?.txt")}
    whole = {"0.txt": "one of 11", "1.txt": "two of 11", "2.txt": "three of 11"}
    assert texts == ({"0.txt": "ONE", "1.txt": "TWO", "2.txt": "THREE"} if words else whole)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--loud"], "--loud means nothing for plain; it is for capital"),
        (["--quality", "0"], "--quality is 0; expected 1 to 100"),
        (["--quality", "101"], "--quality is 101; expected 1 to 100"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str):
    (tmp_path / "a").write_text("x")
    assert run(tmp_path / "a", tmp_path / "out", *words) == 64
    assert text in capsys.readouterr().err
    assert run(tmp_path / "a", tmp_path / "out", "--camera", "a=b", "--format", "plain") == 0


def test_a_pair_without_a_value_says_what_is_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a").write_text("x")
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "a", tmp_path / "out", "--camera", "left")
    assert stop.value.code == 64
    assert "--camera left: expected A=B, for example left=right" in capsys.readouterr().err


def test_a_name_that_is_taken_meanwhile_costs_nothing_that_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Somebody makes the folder, with a file in it, while it is converted; without it the next start ends at once."""
    (tmp_path / "a.txt").write_text("x y z")
    out = tmp_path / "out"
    merge = driver._merge

    def meanwhile(*arguments: Any) -> None:
        merge(*arguments)
        out.mkdir()
        (out / "theirs").write_text("mine")

    monkeypatch.setattr(driver, "_merge", meanwhile)
    assert run(tmp_path / "a.txt", out) == StorageError.exit_code
    assert [path.name for path in out.iterdir()] == ["theirs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.part", "a.txt", "out"]
    monkeypatch.undo()
    shutil.rmtree(out)
    written = Lines.written
    assert run(tmp_path / "a.txt", out) == 0
    assert Lines.written == written
    assert (out / "all.txt").read_text() == "x y z"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out"]


def test_a_link_to_nowhere_is_there(tmp_path: Path):
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="exists; convert into a folder that does not exist yet"):
        driver.convert(FORMATS, tmp_path / "a", tmp_path / "a", format=None, settings=None, report=print)


@pytest.mark.parametrize("within", ["", "behind a link"])
def test_an_output_in_the_source_is_refused(tmp_path: Path, within: str):
    """Later the source's own files could not be told from it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    out = tmp_path / ("link" if within else "a") / "deeper" / "out"
    with pytest.raises(ConfigError, match="expected a folder outside of the dataset, found one in"):
        driver.convert(FORMATS, tmp_path / "a", out, format=None, settings=None, report=print)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.txt"]


def test_a_folder_that_is_there_is_kept(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    with pytest.raises(ConfigError, match="exists; convert into a folder that does not exist yet"):
        driver.convert(FORMATS, tmp_path / "a", tmp_path, format=None, settings=None, report=print)
