"""A program of one's own as files, by hand."""

from pathlib import Path

import numpy as np

from chunkwise.data.norm_stats import Affine
from chunkwise.policies import runner
from chunkwise.policies.export import export
from chunkwise.policies.spec import Entry, Exportable, Spec

STATE = Entry(shape=(2,), dtype="float32", unit="m", meaning="where it is")
ACTIONS = Entry(shape=(1, 2), dtype="float32", unit="m", meaning="where to go")


def test_a_weight_without_dimensions_and_one_that_lies_by_columns_act_as_they_are(tmp_path: Path):
    matrix = np.asfortranarray(np.array([[1, 2], [3, 4]], np.float32))
    parts = Exportable(
        program=lambda params, inputs: params["gain"] * (inputs["state"] @ params["layer"]["kernel"])[:, None],
        params={"gain": np.array(0.5, np.float32), "layer": {"kernel": matrix}},
        inputs={"state": ((2,), "float32")},
        normalised={"state": Affine(offset=np.zeros(2), scale=np.array([10.0, 10.0]))},
        actions=Affine(offset=np.array([1.0, 0.0]), scale=np.ones(2)),
        seed=None,
        spec=Spec(observation={"state": STATE}, actions=ACTIONS),
    )
    export(parts, tmp_path / "out", platforms=["cpu"])
    # 0.5 * (1, 2) @ [[1, 2], [3, 4]] + (1, 0)
    found = runner.load(tmp_path / "out")({"state": np.array([10, 20], np.float32)}, seed=0)
    np.testing.assert_allclose(found, [[4.5, 5.0]], rtol=1e-6)
