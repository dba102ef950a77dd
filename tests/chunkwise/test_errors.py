"""chunkwise/errors.py: what a mismatch lists, and how a process ended."""

import pytest

from chunkwise.errors import MismatchError, exit_reason, require_equal


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exit code 0"),
        (70, "exit code 70"),
        (-9, "killed by SIGKILL"),
        (-40, "killed by signal 40"),
        (None, "its connection ended"),
    ],
)
def test_how_a_process_ended_is_said(code: int | None, said: str):
    assert exit_reason(code) == said


@pytest.mark.parametrize(
    ("saved", "current", "line"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "  b: saved 2, now 3"),
        ({"a": 1, "b": 2}, {"a": 1}, "  b: saved 2, now None"),
        ({"a": 1}, {"a": 1, "b": 3}, "  b: saved None, now 3"),
    ],
    ids=["changed", "taken away", "added"],
)
def test_a_setting_that_was_changed_added_or_taken_away_is_listed(saved: dict, current: dict, line: str):
    with pytest.raises(MismatchError) as refused:
        require_equal(saved, current, "the run's config")
    assert str(refused.value).split("\n") == [
        "the run's config:",
        line,
        "Undo these, or start anew in another folder",
    ]
    require_equal(saved, dict(reversed(saved.items())), "the same")


@pytest.mark.parametrize("key", ["train.steps", "config.train.steps"])
def test_when_a_run_may_be_lengthened_is_said(key: str):
    with pytest.raises(MismatchError, match=r"train.steps may change where optim.schedule is constant"):
        require_equal({key: 300}, {key: 400}, "much")


def test_twenty_of_many_are_listed_and_the_rest_counted():
    with pytest.raises(MismatchError) as refused:
        require_equal({}, {f"key_{i:02}": i for i in range(23)}, "much")
    lines = str(refused.value).split("\n")
    assert lines[1] == "  key_00: saved None, now 0"
    assert lines[20] == "  key_19: saved None, now 19"
    assert lines[21] == "  and 3 more"
