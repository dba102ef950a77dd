"""The short form of `python -m tests.hostile`: the attacks that need no trained run, and a test of the watch itself."""

from pathlib import Path

import pytest

from tests.hostile.__main__ import attack, make_good
from tests.hostile.cases import ATTACKS, LEROBOT, Attack

BASES = ("aloha", "lerobot", "lerobot_images", "episodes")
QUICK = [one for one in ATTACKS if one.base in BASES]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    make_good(folder, QUICK)
    return folder


@pytest.mark.parametrize("one", QUICK, ids=lambda one: one.name)
def test_nothing_runs_and_nothing_outside_is_opened(one: Attack, good: Path, tmp_path: Path):
    assert attack(one, good, tmp_path)[1] == []


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("print(len(open('{folder}/../outside/secret.bin').read()))", ["read outside/secret.bin"]),
        ("import os; os.listdir('{folder}/../outside')", ["opened folder outside"]),
        ("open('{folder}/../outside/new', 'w').close()", ["made outside/new"]),
        ("print(open('{folder}/../outside/secret.bin').read())", ["the secret was printed"]),
        ("open('{folder}/../ran', 'w').close()", ["code ran"]),
        ("1 / 0", ["exit code 1", "a traceback: ZeroDivisionError"]),
        ("import os; os.stat('{folder}/../outside/secret.bin')", []),
    ],
)
def test_what_must_not_be_is_noticed(code: str, seen: list[str], tmp_path: Path):
    (tmp_path / "good/nothing").mkdir(parents=True)
    control = Attack("control", "nothing", lambda place: None, ("-c", code), codes=(0,))
    wrong = attack(control, tmp_path / "good", tmp_path / "scratch")[1]
    for words in seen:
        assert any(one.startswith(words) for one in wrong), wrong
    assert seen or not wrong, wrong


def test_a_good_dataset_passes_as_the_attacks_are_run(good: Path, tmp_path: Path):
    untouched = Attack("control", "lerobot", lambda place: None, LEROBOT, codes=(0,))
    assert attack(untouched, good, tmp_path)[1] == []
