"""A program of one's own as files, by hand."""

import dataclasses
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data.norm_stats import Affine
from chunkwise.errors import ConfigError
from chunkwise.policies import runner
from chunkwise.policies.export import export
from chunkwise.policies.spec import Entry, Exportable, Spec

STATE = Entry(shape=(2,), dtype="float32", unit="m", meaning="where it is")
ACTIONS = Entry(shape=(1, 2), dtype="float32", unit="m", meaning="where to go")


ROOT = Path(__file__).parents[3]


def by_hand(matrix: np.ndarray) -> Exportable:
    """0.5 (state / 10) @ matrix + (1, 0)."""
    return Exportable(
        program=lambda params, inputs: params["gain"] * (inputs["state"] @ params["layer"]["kernel"])[:, None],
        params={"gain": np.array(0.5, np.float32), "layer": {"kernel": matrix}},
        inputs={"state": ((2,), "float32")},
        normalised={"state": Affine(offset=np.zeros(2), scale=np.array([10.0, 10.0]))},
        actions=Affine(offset=np.array([1.0, 0.0]), scale=np.ones(2)),
        seed=None,
        spec=Spec(observation={"state": STATE}, actions=ACTIONS),
    )


def test_a_weight_without_dimensions_and_one_that_lies_by_columns_act_as_they_are(tmp_path: Path):
    export(by_hand(np.asfortranarray(np.array([[1, 2], [3, 4]], np.float32))), tmp_path / "out", platforms=["cpu"])
    # 0.5 * (1, 2) @ [[1, 2], [3, 4]] + (1, 0)
    act = runner.load(tmp_path / "out")
    found = act({"state": np.array([10, 20], np.float32)}, seed=0)
    np.testing.assert_allclose(found, [[4.5, 5.0]], rtol=1e-6)
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1, "whoever reads one, reads all"
    with pytest.raises(ValueError, match=r"^state: expected float32 \[1, 2\], found no array: "):
        act({"state": [[1, 2], [3]]})
    with pytest.raises(ValueError, match="expected a dict of entries, found NoneType"):
        act(None)


@pytest.mark.parametrize("ids", [{1: 2}, [True, False], [[1, True]]])
def test_token_ids_are_numbers_in_a_list(ids: Any):
    with pytest.raises(ValueError, match="tokens: expected a list of ids, found"):
        runner._filled("tokens", ids, 1, 4)


def test_token_ids_of_one_row_where_there_are_more_are_told_apart():
    with pytest.raises(ValueError, match=r"tokens: expected 2 lists of ids, found \[3, 4\]"):
        runner._filled("tokens", [3, 4], 2, 4)
    filled, mask = runner._filled("tokens", [[3, 4], [5]], 2, 3)
    np.testing.assert_array_equal(filled, [[3, 4, 0], [5, 0, 0]])
    np.testing.assert_array_equal(mask, [[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    "params",
    [
        {"layer": {"kernel": np.eye(2, dtype=np.float32)}, "gain": [np.ones((), np.float32)] * 2},
        {"layer": {"kernel": np.eye(2, dtype=np.float32), "empty": {}}, "gain": np.ones((), np.float32)},
        {"layer": {"kernel": np.eye(2, dtype=np.float32)}, "gain": np.ones((), np.float32), "a/b": np.ones(2)},
        {"layer": {"kernel": np.eye(2, dtype=np.float32)}, "gain": None},
    ],
)
def test_weights_that_the_robot_could_not_read_are_refused(params: Any, tmp_path: Path):
    """Kills: an export that is said to be one, and cannot act."""
    parts = dataclasses.replace(by_hand(np.eye(2, dtype=np.float32)), params=params)
    with pytest.raises(ConfigError, match="weights: expected nested dicts of arrays"):
        export(parts, tmp_path / "out", platforms=["cpu"])
    assert not list(tmp_path.iterdir())


def test_actions_that_are_not_finite_are_no_answer(tmp_path: Path):
    export(by_hand(np.array([[3e38, 0], [3e38, 0]], np.float32)), tmp_path / "out", rows=2, platforms=["cpu"])
    act = runner.load(tmp_path / "out")
    assert act({"state": np.zeros((2, 2))}, seed=2**32 - 2).tolist() == [[[1, 0]], [[1, 0]]]
    with pytest.raises(ValueError, match="actions: expected finite numbers, found inf"):
        act({"state": np.full((2, 2), 10.0)})
    with pytest.raises(ValueError, match="seed: expected a whole number of 0 to 4294967294, found 4294967295"):
        act({"state": np.zeros((2, 2))}, seed=2**32 - 1)


def test_the_lines_of_the_page_load_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export(by_hand(np.eye(2, dtype=np.float32)), tmp_path / "exported", platforms=["cpu"])
    section = (ROOT / "docs/serving.md").read_text().split("## Export")[1]
    lines = next(part for part in section.split("\n\n") if 'load("exported")' in part)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "policy", raising=False)
    names = {"state": np.array([10, 20])}
    exec(textwrap.dedent(lines), names)
    sys.modules.pop("policy")
    np.testing.assert_allclose(names["actions"], [[1.5, 1.0]], rtol=1e-6)
