"""Evaluations: outcomes in the order of the episodes, what is counted, and files of earlier versions."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs import compare
from chunkwise.envs import evaluate as evaluation
from chunkwise.envs.collect import Collector
from chunkwise.envs.evaluate import Evaluation, compare_evaluations, file_of
from chunkwise.envs.suites.metaworld import HARD
from chunkwise.errors import DataError
from chunkwise.reports.intervals import wilson
from tests.chunkwise.envs.countdown import Drawn, actions_of, jobs, threads


def test_outcomes_come_in_the_order_of_the_episodes_and_are_counted() -> None:
    collector = Collector(threads(3))
    result = evaluation.evaluate(collector, Drawn(), jobs([1, 0, 2, 11]), guidance_scale=1.5)
    assert [outcome["seed"] for outcome in result.outcomes] == [1, 0, 2, 11]
    assert [outcome["length"] for outcome in result.outcomes] == [9, 1, 3, 5]
    assert [outcome["success"] for outcome in result.outcomes] == [False, True, True, False]
    returns = [float((actions_of(n, length)[:, 0] - 1).sum()) for n, length in enumerate((9, 1, 3, 5))]
    np.testing.assert_allclose([outcome["reward"] for outcome in result.outcomes], returns, rtol=1e-6)
    low, high = wilson(2, 4)
    found = result.metrics("policy")
    assert found.pop("policy/return") == pytest.approx(sum(returns) / 4)
    assert found == {
        "policy/success": 0.5,
        "policy/success_low": low,
        "policy/success_high": high,
        "policy/episodes": 4.0,
        "policy/length": 4.5,
    }
    assert str(result).startswith("2 of 4 episodes succeeded, 50.0% (95 % interval 15.0% to 85.0%), return -")
    assert (result.step, result.weights, result.guidance_scale, result.successes) == (7, "f" * 64, 1.5, 2)


def test_evaluations_of_several_tasks_are_paired_task_by_task() -> None:
    def evaluated(**successes: bool) -> Evaluation:
        outcomes = tuple(
            {"seed": 1, "init_hash": "ab", "success": success, "length": 1, "reward": 0.0, "task": task}
            for task, success in successes.items()
        )
        return Evaluation(step=1, weights="", outcomes=outcomes)

    found = compare_evaluations(evaluated(a=True, b=True, c=False), evaluated(c=False, a=False))
    assert (found.episodes, found.only_a, found.neither) == (2, 1, 1)
    assert evaluated(a=True).tasks == (), "of one task nothing is told apart"
    three = evaluated(a=True, b=True, c=False)
    assert three.tasks == ("a", "b", "c")
    assert [three.of_task(task).successes for task in three.tasks] == [1, 1, 0]
    assert [len(three.of_task(task).outcomes) for task in three.tasks] == [1, 1, 1]
    found = three.metrics()
    assert [found[f"policy/success/{task}"] for task in three.tasks] == [1, 1, 0]


def test_episodes_that_begin_alike_are_paired_by_their_seeds() -> None:
    def evaluated(*successes: int, init_hash: str = "ab", first: int = 0) -> Evaluation:
        outcomes = tuple(
            {"seed": first + n, "init_hash": init_hash, "success": bool(success), "length": 1, "reward": 0.0}
            for n, success in enumerate(successes)
        )
        return Evaluation(step=1, weights="", outcomes=outcomes)

    found = compare_evaluations(evaluated(1, 1, 1, 0, 0, 0), evaluated(1, 0, 0, 1, 0))
    assert (found.both, found.only_a, found.only_b, found.neither) == (1, 2, 1, 1)
    with pytest.raises(DataError, match="no initial state in common"):
        compare_evaluations(evaluated(1, 1), evaluated(1, 1, first=2))
    once = compare_evaluations(evaluated(1), evaluated(0, first=7))
    assert (once.episodes, once.only_a) == (1, 1), "a state that both have once is the same whatever its seed"


def test_the_name_of_a_file_says_what_differed_and_long_texts_by_their_digest(tmp_path: Path) -> None:
    def name(**settings: Any) -> str:
        found = file_of(tmp_path, 7, settings)
        assert found.parent == tmp_path / "evaluations"
        return found.name

    assert name() == "step_00000007.json"
    assert name(env="metaworld/push-v3", delay=2) == "step_00000007-env_metaworld-push-v3-delay_2.json"
    digest = hashlib.sha256(b"push it").hexdigest()[:12]
    assert name(prompt="push it") == f"step_00000007-prompt_{digest}.json"
    assert name(prompt="push it") != name(prompt="push-it")
    assert len(name(prompt="x" * 500)) < 100


def test_sets_of_tasks_that_were_played_whole_have_a_line_of_their_own(tmp_path: Path) -> None:
    """Meta-World's hard ones are all here, its MT10 and its easy ones are not; all that was played is no set of it."""

    def evaluated(*won: str, tasks: tuple[str, ...]) -> Evaluation:
        outcomes = tuple(
            {"seed": seed, "init_hash": "ab", "success": task in won, "length": 1, "reward": 0.0, "task": task}
            for task in tasks
            for seed in (1, 2)
        )
        return Evaluation(step=1, weights="", outcomes=outcomes).with_sets_of("metaworld")

    found = evaluated("push-v3", "reach-v3", tasks=(*HARD, "reach-v3"))
    assert str(found).splitlines()[1:] == [
        *(f"  {task}: {2 * (task == 'push-v3')} of 2" for task in HARD),
        "  reach-v3: 2 of 2",
        "  hard, 6 tasks: 2 of 12, 16.7% (4.7% to 44.8%)",  # Wilson's of 2 in 12
    ]
    found.save(tmp_path / "a.json")
    assert Evaluation.load(tmp_path / "a.json") == found
    assert evaluated(tasks=HARD).task_sets == {}
    assert evaluated(tasks=("reach-v3",)).task_sets == {}


def test_an_initial_state_that_is_another_is_refused() -> None:
    collector = Collector(threads(2))
    right = [outcome["init_hash"] for outcome in evaluation.evaluate(collector, Drawn(), jobs([1, 2])).outcomes]
    assert evaluation.evaluate(collector, Drawn(), jobs([1, 2]), init_hashes=right).successes == 1
    with pytest.raises(DataError, match=rf"episode 1: expected the initial state {right[0]} .*, found {right[1]}"):
        evaluation.evaluate(collector, Drawn(), jobs([1, 2]), init_hashes=[right[0]] * 2)


def test_videos_of_other_episodes_go_when_an_evaluation_is_written_over(tmp_path: Path) -> None:
    """A page shows the videos beside an evaluation's file as those of the episodes that it lists."""
    file = tmp_path / "step_00000004.json"
    outcome = {"seed": 3, "init_hash": "ab", "success": True, "length": 6, "reward": 1.0}
    films = [file.with_suffix(".mp4"), file.with_suffix("") / "episode_0000.mp4"]
    kept = [tmp_path / "other.mp4", file.with_suffix("") / "episode_0000.npz", file.with_suffix("") / "mine.mp4"]
    file.with_suffix("").mkdir()
    for path in (*films, *kept):
        path.write_bytes(b"film")
    Evaluation(step=4, outcomes=(outcome,)).save(file)
    assert all(path.exists() for path in films), "where there was none, they are nobody's"
    Evaluation(step=4, outcomes=(outcome,)).save(file)
    assert all(path.exists() for path in films), "the same policy and episodes"
    for change in ({"step": 5}, {"settings": {"execute": 1}}, {"outcomes": (outcome | {"length": 7},)}):
        dataclasses.replace(Evaluation(step=4, outcomes=(outcome,)), **change).save(file)
        assert not any(path.exists() for path in films), change
        assert all(path.exists() for path in kept)
        Evaluation(step=4, outcomes=(outcome,)).save(file)
        for path in films:
            path.write_bytes(b"film")


def test_a_failed_write_takes_no_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, tree: Any) -> None:
        raise OSError(28, "No space left on device")

    outcome = {"seed": 3, "init_hash": "ab", "success": True, "length": 6, "reward": 1.0}
    Evaluation(step=4, outcomes=(outcome,)).save(tmp_path / "a.json")
    (tmp_path / "a.mp4").write_bytes(b"film")
    monkeypatch.setattr(evaluation, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        Evaluation(step=5, outcomes=(outcome,)).save(tmp_path / "a.json")
    assert (tmp_path / "a.mp4").exists()


def test_evaluations_of_earlier_versions_are_read(tmp_path: Path) -> None:
    file = tmp_path / "step_00000004.json"
    file.write_text(
        '{"step": 4, "weights": "ab", "guidance_scale": 1.5, "outcomes": [{"seed": 3, "init_hash": "0123456789abcdef", '
        '"success": true, "length": 6, "reward": 1.0}]}'
    )
    found = Evaluation.load(file)
    assert (found.successes, found.guidance_scale, found.mean("length")) == (1, 1.5, 6)
    found.save(tmp_path / "again.json")
    assert Evaluation.load(tmp_path / "again.json") == found


def test_drives_in_closed_loop_are_compared_as_other_evaluations_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reports of driving have more keys and no digest of weights; one of them names its settings as older ones do."""
    usual = {"kind": "closed_loop", "routes": 3, "seconds": 15.0, "lead_s": 0.0, "file": "a", "drives": {}, "step": 20}
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, won, more in zip(files, ([1, 1, 0], [0, 0, 0]), ({"hold": 1, "settings": {}}, {"hold": 5}), strict=True):
        outcomes = [{"seed": k, "init_hash": f"h{k}", "success": bool(ok), "score": 0.5} for k, ok in enumerate(won)]
        file.write_text(json.dumps({**usual, **more, "outcomes": outcomes}))
    assert compare.main([str(file) for file in files]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [f"A: {files[0]}, step 20", f"B: {files[1]}, step 20, {{'hold': 5}}"]
    found = compare_evaluations(*(Evaluation.load(file) for file in files))
    assert (found.episodes, found.only_a, found.only_b) == (3, 2, 0)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"step": 1, "outcomes": 3}', '{"step": 1, "outcomes": [], "settings": 3}']
)
def test_a_file_that_is_no_evaluation_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json: expected an evaluation, found"):
        Evaluation.load(tmp_path / "a.json")


def test_states_that_only_one_has_are_told_and_repeats_are_not_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where one of the files is of a single task, and says none."""

    def file(name: str, outcomes: list[dict[str, Any]]) -> str:
        path = tmp_path / name
        Evaluation(step=1, weights="w", guidance_scale=None, outcomes=tuple(outcomes)).save(path)
        return str(path)

    def each(wins: list[bool], **more: Any) -> list[dict[str, Any]]:
        usual = {"length": 3, "reward": 0.0, **more}
        return [{"seed": k, "init_hash": f"h{k}", "success": won, **usual} for k, won in enumerate(wins)]

    a, b = file("a.json", each([True] * 30 + [False] * 10)), file("b.json", each([False] * 5, task="lift"))
    assert compare.main([a, b]) == 0
    said = capsys.readouterr().out
    assert "A: 30 of 40 in all, 75.0%; compared are the 5 from initial states that both have" in said
    assert "A: 5 of 5" in said
    assert "B: 0 of 5 in all" not in said
    same = [{**one, "seed": 0, "init_hash": "h"} for one in each([True, False, True])]
    assert compare.main([file("c.json", same), file("d.json", same)]) == 0
    assert "both 2, only A 0, only B 0, neither 1" in capsys.readouterr().out
    for wrong in ([3], [{"success": True}], [{"init_hash": "h"}]):
        (tmp_path / "e.json").write_text(json.dumps({"step": 1, "outcomes": wrong, "settings": {}}))
        assert compare.main([a, str(tmp_path / "e.json")]) == 65
        assert "e.json: outcomes[0]: expected an init_hash, which is text, and success" in capsys.readouterr().err
