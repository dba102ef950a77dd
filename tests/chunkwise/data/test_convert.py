import argparse
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from chunkwise.data import convert as driver
from chunkwise.data.convert import ConvertSettings, Formats, Pairs
from chunkwise.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ConvertSettings):
    loud: bool = False


class Lines:
    """A text file of which each line becomes a file; "bad" is refused."""

    closed = 0

    def __init__(self, kind: str, source: Path, settings: Settings) -> None:
        self._lines, self._loud = source.read_text().split(), settings.loud

    @property
    def units(self) -> Sequence[object]:
        return self._lines

    def write(self, folder: Path) -> Iterator[None]:
        for number, line in enumerate(self._lines):
            if line == "bad":
                raise DataError("a bad line")
            (folder / f"{number}.txt").write_text(line.upper() if self._loud else line)
            yield

    def about(self) -> Mapping[str, Any]:
        return {"lines": len(self._lines)}

    def summary(self, out: Path) -> str:
        return f"wrote {len(self._lines)} lines into {out}"

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
    assert [path.read_text() for path in sorted(out.glob("*.txt"))] == ["X", "Y"]
    assert json.loads((out / "about.json").read_text()) == {
        "made_by": "tests.lines",
        "format": "capital",
        "source": "a.up",
        "settings": {"cameras": {"a": "4", "b": "2=3"}, "quality": 95, "loud": True},
        "lines": 2,
    }
    assert Lines.closed == closed + 1


def test_a_bad_source_leaves_nothing_and_is_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a").write_text("x bad")
    closed = Lines.closed
    assert run(tmp_path / "a", tmp_path / "out") == 65
    assert capsys.readouterr().err == "a bad line\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert Lines.closed == closed + 1


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


def test_a_folder_that_is_there_is_kept(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    with pytest.raises(ConfigError, match="exists; convert into a folder that does not exist yet"):
        driver.convert(FORMATS, tmp_path / "a", tmp_path, format=None, settings=None, report=print)
