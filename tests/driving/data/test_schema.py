"""driving/data/schema.py: the quick verdict is the schema's own."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from chunkwise.errors import DataError
from driving.data import schema as schemas
from driving.data.episodes import load_episode, write_episode
from driving.data.schema import NARROW, schema, schema_problems
from tests.driving.drives import write_drive


def tree(number: Any) -> dict[str, Any]:
    frame = {"t": 0.0, "observations": {"state": {"speed_mps": number}}, "expert": {"waypoints": [[1.0, number]]}}
    return {"episode_id": "a", "domain": "driving", "waypoint_spec": {"dt": 0.1}, "frames": [frame]}


LIMITS = (NARROW, float(NARROW), 1e30, 10**30)
BESIDE = [
    sign * number
    for limit in LIMITS
    for number in (limit, math.nextafter(limit, 0), math.nextafter(limit, math.inf), limit + 1, limit * 10)
    for sign in (1, -1)
]


@pytest.mark.parametrize("number", [0, 0.0, -0.0, 5e-324, 2**63, -(2**63), 2**64, 10**400, *BESIDE], ids=repr)
def test_numbers_beside_a_limit_are_judged_by_the_schema(number: float) -> None:
    good = jsonschema.Draft202012Validator(schema()).is_valid(tree(number))
    assert good == (abs(number) <= 1e30)
    assert (not schema_problems(tree(number), source="f")) == good


def test_numbers_of_a_recording_are_not_compared_digit_by_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, exact = schemas._quick()
    monkeypatch.setattr(schemas, "_quick", lambda: [quick])
    assert not schema_problems(tree(-12.5), source="f")
    assert not quick.is_valid(tree(2e18))
    assert exact.is_valid(tree(2e18))


def test_what_json_has_not_is_told_by_its_place_when_an_episode_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        write_episode(tmp_path / "a.json", tree(math.nan))
    for key in ("frames[0].observations.state.speed_mps", "frames[0].expert.waypoints[0][1]"):
        assert f"a.json: {key}: expected a finite number, or null where it is unknown, found nan" in str(refused.value)
    with pytest.raises(DataError, match=r"a\.json: note: expected a finite number, .* found -inf"):
        write_episode(tmp_path / "a.json", tree(1.0) | {"note": -math.inf})
    assert not list(tmp_path.iterdir())


def test_only_limits_that_are_too_large_are_narrowed() -> None:
    narrowed = json.dumps(schemas._narrowed(schema()))
    assert narrowed == json.dumps(schema()).replace("1e+30", str(NARROW))


def test_a_frame_that_says_null_of_its_cameras_and_state_has_none(tmp_path: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["frames"][2]["observations"] |= {"cameras": None, "state": None}

    episode = load_episode(write_drive(tmp_path, "a", frames=4, change=change, images=False))
    assert [any(paths) for paths in episode.image_paths] == [True, True, False, True]
    assert np.isnan(episode.speed_mps).tolist() == [False, False, True, False]
