"""A round that two processes play together, against the one that one process plays: files, outcomes, who did what."""

import errno
import json
from pathlib import Path

import pytest

from chunkwise.envs import divided
from chunkwise.envs.divided import MANIFEST
from chunkwise.errors import DataError, StorageError
from openpi_ript.ript.playing import Plan, Player
from tests.chunkwise.distributed.test_processes import run_two
from tests.openpi_ript.small_run import make_dataset
from tests.openpi_ript.toy_rollouts import FakeCollector, FakePolicy

PLAY = """
import json
from tests.openpi_ript.ript import test_playing
root, folder = (Path(argument) for argument in sys.argv[1:3])
for run in ("whole", "cut"):
    player, collector = test_playing.make_player(root, folder / run)
    groups = player.play(test_playing.PLAN, lambda: False)
    (folder / f"{run}.{me}.json").write_text(json.dumps([collector.played, test_playing.told(groups)]))
player, collector = test_playing.make_player(root, folder / "stopped")
collector.stop_after = 2 if me else 100
assert player.play(test_playing.PLAN, lambda: False) is None
player, collector = test_playing.make_player(root, folder / f"not shared {me}")
try:
    player.play(test_playing.PLAN, lambda: False)
except DataError as error:
    print(f"refused {me}: {error}", file=sys.stderr)
processes.leave(0, together=True)
"""
PLAN = Plan(step=2, folder="step_00000002-aaaaaaaaaaaa", resting=(), shares={})


def make_player(root: Path, folder: Path) -> tuple[Player, FakeCollector]:
    """One that holds weights: the first state tried is solved by all, so that a second wave is needed."""
    from tests.openpi_ript.ript.test_ript_round import make_config, order_of

    first = order_of(2)[0]
    collector, policy = FakeCollector(lambda state, k: state == first or k < 2), FakePolicy()
    policy.use("a", 2)
    return Player(make_config(root, folder), folder, collector, policy), collector


def told(groups: list | None) -> list[list]:
    """States, files and successes."""
    assert groups is not None
    return [[group.state, group.files, [one.success for one in group.rollouts]] for group in groups]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / PLAN.folder).iterdir()}


def test_two_processes_play_what_one_plays(tmp_path: Path):
    root = make_dataset(tmp_path / "data")
    player, collector = make_player(root, tmp_path / "one")
    groups = player.play(PLAN, lambda: False)
    alone, played = files(tmp_path / "one"), collector.played
    assert len(played) == 12, "two groups, and a third for the first, which ended alike"
    cut = tmp_path / "cut" / PLAN.folder  # as after a kill in the middle
    cut.mkdir(parents=True)
    kept = [*played[:3], *played[9:11]]
    for name in kept:
        (cut / name).write_bytes(alone[name])
    ended = run_two(PLAY, str(root), str(tmp_path))
    said = "\n".join(output for _, output in ended)
    for me, (code, output) in enumerate(ended):
        found = [json.loads((tmp_path / f"{run}.{me}.json").read_text()) for run in ("whole", "cut")]
        assert found[0] == [played[me::2], told(groups)], said
        assert found[1] == [[name for name in played[me::2] if name not in kept], told(groups)], said
        assert (f"refused {me}" in output) == (me == 1), "the first sees the manifest, which it wrote"
        assert code in (0, 76, 134, -6), said
    assert files(tmp_path / "whole") == files(tmp_path / "cut") == alone
    manifest = json.loads(alone[MANIFEST])
    assert [one["state"] for one in manifest["groups"]] == [state for state, _, _ in told(groups)]
    assert manifest["weights"] == "a" * 64
    assert MANIFEST not in files(tmp_path / "stopped"), "a round that was broken off has none"
    assert played[1::2][:2] == sorted(set(files(tmp_path / "stopped")) - set(played[::2]))


def test_a_file_that_is_no_rollout_is_refused(tmp_path: Path):
    root = make_dataset(tmp_path / "data")
    player, collector = make_player(root, tmp_path / "one")
    assert player.play(PLAN, lambda: False) is not None
    victim = tmp_path / "one" / PLAN.folder / collector.played[4]
    victim.write_bytes(victim.read_bytes()[:-30])
    with pytest.raises(DataError, match=victim.name):
        make_player(root, tmp_path / "one")[0].play(PLAN, lambda: False)


@pytest.mark.parametrize("name", ["save", "write_json"])
def test_a_full_disk_is_said_of_the_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: a traceback and exit code 1, of which the other processes hear nothing."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    player, _ = make_player(make_dataset(tmp_path / "data"), tmp_path / "run/rollouts")
    monkeypatch.setattr(divided, name, full)
    with pytest.raises(StorageError, match=r"cannot write .*No space left.*Last durable step: None"):
        player.play(PLAN, lambda: False)
