"""Every command of README and docs: known to its program, and executed or listed with the reason why not."""

import argparse
import importlib
import re
import runpy
import signal
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chunkwise.cli import command as command_line
from chunkwise.errors import RunError
from tests.page_commands import (
    HOW,
    PAGES,
    PROGRAMS,
    ROOT,
    Command,
    clone,
    commands,
    end,
    listed,
    put_in_place,
    start,
    with_places,
)

COMMANDS = commands()
LISTED = listed()
OURS = ("chunkwise", "python", ".venv/bin/python")


class Read(BaseException):
    """Ends a program once it has read its command line. Not an Exception, so that no program takes it for an error."""


def end_programs_once_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets argparse, and what reads the fields of a config, do their own work and then end the program."""
    loading = importlib.import_module("chunkwise.config.load")
    recorder = importlib.import_module("chunkwise.envs.recorder")
    whole = argparse.ArgumentParser.parse_args

    def then_end(act: Any) -> Any:
        def acted(*arguments: Any, **settings: Any) -> NoReturn:
            act(*arguments, **settings)
            raise Read

        return acted

    known = command_line.Parser.parse_known_args
    within: list[bool] = []

    def parse_args(parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        within.append(True)
        try:
            whole(parser, *arguments)
        finally:
            within.pop()
        raise Read

    def parse_known_args(parser: command_line.Parser, *arguments: Any) -> Any:
        found, rest = known(parser, *arguments)
        if not within and getattr(found, "config", None) is None:  # with a config its fields are still to be read
            raise Read
        return found, rest

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(command_line.Parser, "parse_known_args", parse_known_args)
    monkeypatch.setattr(loading, "_override", then_end(loading._override))
    monkeypatch.setattr(recorder, "parsed", then_end(recorder.parsed))
    monkeypatch.setattr(command_line, "run", lambda main, unsaved="": sys.exit(main()))


def written_there(one: Command) -> bool:
    """Whether a command takes a file that its page writes first: a cell does, or a paragraph names it."""
    words = [word for part in one.parts for word in part if re.fullmatch(r"(?!launch)\w+\.py", word)]
    return any(f"%%writefile {word}\n" in PAGES[one.page] or f"`{word}`" in PAGES[one.page] for word in words)


def unread(words: list[str]) -> str:
    """Returns why a program of this project does not take a command line; empty where it does."""
    program, *rest = words
    if program == "chunkwise":
        name, argv = "chunkwise", rest
    elif rest[0] == "-m":
        name, argv = rest[1], rest[2:]
    else:
        name, argv = rest[0], rest[1:]
    sys.argv = [name, *argv]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of runpy, about a module that is imported already
            if name.endswith(".py"):
                runpy.run_path(str(ROOT / name), run_name="__main__")
            else:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
    except Read:
        return ""
    except SystemExit as stop:
        return f"ended with {stop.code}"
    except RunError as error:
        return str(error)
    return "ended, and never read its command line"


@pytest.mark.parametrize("page", LISTED)
def test_our_programs_take_what_a_page_gives_them(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    there = LISTED[page].get("there", {}) | LISTED[page].get("made", {})
    put_in_place(there, clone(tmp_path), trained=False)
    end_programs_once_they_read(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    wrong = []
    for one in COMMANDS:
        for words in one.parts if one.page == page and not written_there(one) else []:
            if words[0] in OURS and "-c" not in words and words[1:3] != ["-m", "venv"]:
                why = unread(words)
                wrong += [f"{one.line}: {why}: {capsys.readouterr().err.strip()}"] if why else []
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("chunkwise trian qchunk/debug", "ended with 64"),
        ("chunkwise train qchunk/debug --train.stepz 3", "stepz"),
        ("chunkwise train qchunk/debug --train.steps -3", "TrainConfig.steps is -3"),
        ("chunkwise train qchunk/debgu", "debgu"),
        ("chunkwise doctor --jsn", "ended with 64"),
        ("python -m qchunk.inspect . --config qchunk/own_data --data.horizon 3", "ended with 64"),
        ("chunkwise compile qchunk/debug --topology h100:8 --train.stepz 3", "stepz"),
        ("python -m qchunk.record --path x --episode 3", "ended with 64"),
        ("python -m benchmarks.accelerator --smal 3", "ended with 2"),
        ("python -m chunkwise.errors", "never read its command line"),
    ],
)
def test_a_wrong_command_is_found(line: str, why: str, monkeypatch: pytest.MonkeyPatch):
    end_programs_once_they_read(monkeypatch)
    monkeypatch.setattr(sys, "argv", [])
    assert why in unread(line.split())


def test_targets_extras_and_scripts_exist():
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for one in COMMANDS:
        for program, *words in one.parts:
            if program == "make":
                assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), one
            if program.endswith("pip"):
                named = re.findall(r"\[([\w,]+)\]", one.line)
                assert all(extra in extras for many in named for extra in many.split(",")), one
            if program == "sbatch":
                assert (ROOT / words[-1]).exists(), one


def test_every_command_is_executed_or_listed_and_nothing_else_is():
    given = {(one.page, one.line) for one in COMMANDS if not one.cell}
    known = {(page, line) for page, found in LISTED.items() for line in found["commands"]}
    assert sorted(given - known) == [], "say in tests/page_commands.toml how these are known to work"
    assert sorted(known - given) == [], "no page gives these any more"


def test_every_line_of_a_block_of_commands_starts_a_program():
    assert [one for one in COMMANDS if one.parts[0][0] not in PROGRAMS and not one.cell] == []


@pytest.mark.parametrize("page", LISTED)
def test_what_is_said_to_run_a_command_exists(page: str):
    scripts = (ROOT / ".ci/run").read_text() + (ROOT / ".ci/full").read_text()
    for line, how in LISTED[page]["commands"].items():
        (way,) = [way for way in HOW if how.startswith(way)]
        what = how.removeprefix(way).strip()
        if way == "shown by":
            file, _, name = what.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{line}: {what}"
        elif way == "in .ci":
            assert what in scripts, f"{line}: {what}"
        elif way == "not run":
            assert len(what) > 10, line


def runs(page: str) -> bool:
    return any(how.startswith(("runs", "starts")) for how in LISTED[page]["commands"].values())


def why_it_failed(line: str, way: str, more: list[str], folder: Path) -> str:
    """Runs a command, or starts and stops what serves; returns what was said where it did not end well."""
    if way == "runs":
        process = start(line, *more, folder=folder)
        said = end(process)
        return "" if process.returncode == 0 else said
    process, said = start(f"exec {line}", *more, folder=folder), ""
    assert process.stdout is not None
    while not re.search(r"(?:http|ws)://", said):
        shown = process.stdout.readline()
        if not shown:
            return f"{line} never said its address: {said}"
        said += shown
    process.send_signal(signal.SIGINT)
    end(process)
    return "" if process.returncode == 0 else f"ended with {process.returncode} when it was stopped: {said}"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [page for page in LISTED if runs(page)])
def test_a_page_s_commands_do_what_they_say(page: str, tmp_path: Path):
    """In the page's order, each as it stands with the words of the list added."""
    there = LISTED[page].get("there", {})
    put_in_place(there, clone(tmp_path), trained=True)
    wrong = []
    for line, how in LISTED[page]["commands"].items():
        way, *more = how.split()
        if way in ("runs", "starts") and (
            why := why_it_failed(with_places(line, there, tmp_path), way, more, tmp_path)
        ):
            wrong.append(f"{line}: {why}")
    assert wrong == []
