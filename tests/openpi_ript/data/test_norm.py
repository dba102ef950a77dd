"""openpi_ript/data/norm.py: openpi's statistics, formulas and JSON, against a plain writing of its procedure."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.data.norm_stats import NormStats
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.data import norm


def config(horizon: int = 4, relative: tuple[int, ...] = (0, 1)) -> DataConfig:
    robot = RobotConfig(state_dim=3, target_state_dim=5, action_dim=3, relative_dims=relative)
    return DataConfig(path="unused", robot=robot, horizon=horizon)


def table(lengths: list[int], seed: int = 0) -> FrameTable:
    rng = np.random.default_rng(seed)
    frames = sum(lengths)
    state = rng.normal(size=(frames, 3)).cumsum(0).astype(np.float32)
    state[:, 2] = 0.25  # a dimension that never moves
    action = np.concatenate([state[:, :2] + 0.1, rng.integers(0, 2, (frames, 1))], axis=1).astype(np.float32)
    columns = {"observation.state": state, "action": action, "task_index": np.zeros(frames, np.int64)}
    sizes = np.array(lengths, np.int64)
    return FrameTable(fps=10.0, lengths=sizes, episodes=np.arange(len(lengths)), columns=columns, tasks={0: "go"})


def windows(frames: FrameTable, horizon: int, relative: tuple[int, ...]) -> np.ndarray:
    """Every frame's window of actions, one loop a frame: [frames, horizon, a]."""
    state, action = frames.columns["observation.state"], frames.columns["action"]
    rows = []
    for start, length in zip(frames.starts, frames.lengths, strict=True):
        for t in range(length):
            chunk = np.stack([action[start + min(t + k, length - 1)] for k in range(horizon)])
            for d in relative:
                chunk[:, d] -= state[start + t, d]
            rows.append(chunk)
    return np.stack(rows)


class PlainStats:
    """The procedure of openpi's running statistics, one batch and one np.histogram at a time."""

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []
        self.counts: list[np.ndarray] = []
        self.edges: list[np.ndarray] = []

    def update(self, batch: np.ndarray) -> None:
        batch = batch.reshape(-1, batch.shape[-1]).astype(np.float64)
        before = np.concatenate(self.values) if self.values else None
        self.values.append(batch)
        if before is None:
            low, high = batch.min(0) - 1e-10, batch.max(0) + 1e-10
            self.edges = [np.linspace(a, b, 5001) for a, b in zip(low, high, strict=True)]
            self.counts = [np.zeros(5000) for _ in low]
        elif (batch.max(0) > before.max(0)).any() or (batch.min(0) < before.min(0)).any():
            seen = np.concatenate(self.values)
            for d in range(seen.shape[1]):
                edges = np.linspace(seen[:, d].min(), seen[:, d].max(), 5001)
                self.counts[d] = np.histogram(self.edges[d][:-1], bins=edges, weights=self.counts[d])[0]
                self.edges[d] = edges
        for d in range(batch.shape[1]):
            self.counts[d] = self.counts[d] + np.histogram(batch[:, d], bins=self.edges[d])[0]

    def quantile(self, q: float) -> list[float]:
        total = sum(map(len, self.values))
        places = [np.searchsorted(np.cumsum(counts), q * total) for counts in self.counts]
        return [edges[i] for edges, i in zip(self.edges, places, strict=True)]


@pytest.mark.parametrize("lengths", [[40, 3, 60, 25], [5], [32, 32], [700, 1, 900]])
@pytest.mark.parametrize("relative", [(), (0, 1)])
def test_statistics_equal_openpis_procedure(lengths: list[int], relative: tuple[int, ...]) -> None:
    frames = table(lengths)
    found = norm.dataset_stats(frames, config(relative=relative))
    inputs = {"state": frames.columns["observation.state"], "actions": windows(frames, 4, relative)}
    for name, values in inputs.items():
        plain = PlainStats()
        for start in range(0, len(values), 32):
            plain.update(values[start : start + 32])
        flat = values.reshape(-1, 3).astype(np.float64)
        np.testing.assert_allclose(found[name].mean, flat.mean(0), atol=1e-9)
        np.testing.assert_allclose(found[name].std, flat.std(0), atol=1e-9)
        np.testing.assert_allclose(found[name].q01, plain.quantile(0.01), atol=1e-9)
        np.testing.assert_allclose(found[name].q99, plain.quantile(0.99), atol=1e-9)


@pytest.mark.parametrize("drop_tail", [pytest.param(False, marks=pytest.mark.long), True])
def test_statistics_by_several_processes_are_those_of_one_to_the_bit(drop_tail: bool) -> None:
    frames = table([9000, 1, 8016])  # three jobs, the last of two pieces and a tail; the state drifts to the end
    one = norm.dataset_stats(frames, config(), drop_tail=drop_tail)
    two = norm.dataset_stats(frames, config(), drop_tail=drop_tail, hands=Hands(workers=2))
    assert two.keys() == one.keys() == {"state", "actions"}
    for name in one:
        for field in ("mean", "std", "q01", "q99"):
            assert getattr(two[name], field).tobytes() == getattr(one[name], field).tobytes(), (name, field)
    state = frames.columns["observation.state"][: 17_017 // 32 * 32 if drop_tail else None].astype(np.float64)
    plain = PlainStats()
    for start in range(0, len(state), 32):
        plain.update(state[start : start + 32])
    np.testing.assert_allclose(two["state"].mean, state.mean(0), rtol=1e-12)
    np.testing.assert_allclose(two["state"].std, state.std(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(two["state"].q01, plain.quantile(0.01), atol=1e-9)
    np.testing.assert_allclose(two["state"].q99, plain.quantile(0.99), atol=1e-9)


def test_the_tail_is_dropped_as_openpis_script_does_if_asked() -> None:
    frames = table([40, 30])
    found = norm.dataset_stats(frames, config(), drop_tail=True)
    expected = frames.columns["observation.state"][:64].astype(np.float64)
    np.testing.assert_allclose(found["state"].mean, expected.mean(0), atol=1e-12)
    np.testing.assert_allclose(found["actions"].mean, windows(frames, 4, (0, 1))[:64].mean((0, 1)), atol=1e-6)


def test_quantiles_lie_near_the_true_ones() -> None:
    frames = table([3000])
    found = norm.dataset_stats(frames, config())["state"]
    values = frames.columns["observation.state"][:, :2].astype(np.float64)
    width = np.ptp(values, axis=0)
    for q, bound in ((0.01, found.q01), (0.99, found.q99)):
        assert (
            np.abs(bound[:2] - np.quantile(values, q, axis=0)) < 0.005 * width
        ).all()  # a walk that drifts is re-binned often


def test_formulas_are_openpis() -> None:
    stats = NormStats(
        mean=np.array([1.0, 2.0, 0.5, 9.0]),
        std=np.array([2.0, 1e-3, 0.0, 9.0]),
        q01=np.array([-1.0, 0.0, 0.5, 9.0]),
        q99=np.array([3.0, 1.0, 0.5, 9.0]),
    )
    x = np.array([[0.3, 2.01, 0.5], [-4.0, 1.7, 0.6]], np.float32)
    standard, notes = norm.affine(stats, "mean_std", width=3, name="state")
    expected = (x.astype(np.float64) - stats.mean[:3]) / (stats.std[:3] + 1e-6)
    np.testing.assert_allclose(standard.apply(x), expected, rtol=1e-6)
    assert notes == ("state, dimension 2: it never moves (spread 0)",)
    quantile, notes = norm.affine(stats, "quantile", width=3, name="state")
    low, high = stats.q01[:3], stats.q99[:3]
    expected = (x.astype(np.float64) - low) / (high - low + 1e-6) * 2 - 1
    np.testing.assert_allclose(quantile.apply(x), expected, rtol=1e-6)
    assert quantile.apply(x)[0, 2] == -1  # never moved: at its low quantile, in the first of pi0.5's bins
    np.testing.assert_allclose(quantile.invert(quantile.apply(x)), x, rtol=1e-5)
    assert notes == ("state, dimension 2: it never moves (spread 0)",)
    same, _ = norm.affine(None, "none", width=3, name="state")
    np.testing.assert_array_equal(same.apply(x), x)


@pytest.mark.parametrize(("mode", "still"), [("mean_std", [0, 100]), ("quantile", [-0.0005, 99.9995])])
def test_dimensions_that_never_moved_keep_their_floor_in_runs_of_earlier_versions(
    mode: Literal["mean_std", "quantile"], still: list[float]
) -> None:
    stats = NormStats(mean=np.full(2, 0.5), std=np.array([2.0, 0.0]), q01=np.array([-1, 0.5]), q99=np.array([3.0, 0.5]))
    x = np.array([[0.3, 0.5], [-4.0, 0.6]], np.float32)
    floored, _ = norm.affine(stats, mode, width=2, name="state", constant_dims="floored")
    openpi, _ = norm.affine(stats, mode, width=2, name="state")
    np.testing.assert_array_equal(floored.apply(x)[:, 0], openpi.apply(x)[:, 0])
    np.testing.assert_allclose(floored.apply(x)[:, 1], still, rtol=1e-5)
    named = dataclasses.replace(config(), state_norm=mode, constant_dims="floored", robot=RobotConfig(state_dim=2))
    np.testing.assert_array_equal(norm.affines(named, {"state": stats})[0][0].scale, floored.scale)


def test_statistics_that_do_not_fit_are_refused() -> None:
    stats = NormStats(mean=np.zeros(2), std=np.ones(2), q01=np.full(2, np.nan), q99=np.full(2, np.nan))
    with pytest.raises(DataError, match="actions: expected at least 3 dimensions, found 2"):
        norm.affine(stats, "mean_std", width=3, name="actions")
    with pytest.raises(DataError, match="q01 and q99"):
        norm.affine(stats, "quantile", width=2, name="actions")
    with pytest.raises(DataError, match="at least 2 frames"):
        norm.RunningStats().result()


def test_the_file_is_openpis_and_another_datasets_is_refused(tmp_path: Path) -> None:
    frames, other = table([40, 30]), table([40, 30], seed=1)
    stats, source = norm.dataset_stats(frames, config()), norm.stats_source(frames, config())
    path = tmp_path / "assets/norm_stats.json"
    norm.save_stats(path, stats, source)
    tree = json.loads(path.read_text())
    assert set(tree["norm_stats"]) == {"state", "actions"}
    assert set(tree["norm_stats"]["state"]) == {"mean", "std", "q01", "q99"}
    for found in (norm.load_stats(path, source), norm.load_stats(path.parent, source)):
        np.testing.assert_array_equal(found["actions"].q99, stats["actions"].q99)
    with pytest.raises(DataError, match=r"another dataset or setting; fingerprint: expected .*, found"):
        norm.load_stats(path, norm.stats_source(other, config()))
    with pytest.raises(DataError, match=r"relative_dims: expected \[\], found \[0, 1\]"):
        norm.load_stats(path, norm.stats_source(frames, config(relative=())))
    with pytest.raises(DataError, match="horizon: expected 8, found 4"):
        norm.load_stats(path, norm.stats_source(frames, config(horizon=8)))
    path.write_text(json.dumps({"norm_stats": tree["norm_stats"]}))  # openpi's own files say nothing
    np.testing.assert_array_equal(norm.load_stats(path, source)["state"].mean, stats["state"].mean)


def test_files_without_quantiles_serve_mean_and_deviation(tmp_path: Path) -> None:
    path = tmp_path / "norm_stats.json"
    entry = {"mean": [1.0], "std": [2.0], "q01": None, "q99": None}
    path.write_text(json.dumps({"norm_stats": {"state": entry, "actions": {"mean": [1.0], "std": [2.0]}}}))
    stats = norm.load_stats(path, {})
    for name in ("state", "actions"):
        affine, _ = norm.affine(stats[name], "mean_std", width=1, name=name)
        np.testing.assert_allclose(affine.apply(np.array([[5.0]], np.float32)), [[2.0]], rtol=1e-6)
        with pytest.raises(DataError, match="q01 and q99"):
            norm.affine(stats[name], "quantile", width=1, name=name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"norm_stats": {"state": {"mean": [NaN], "std": [1.0]}}}', "NaN"),
        ('{"norm_stats": {"state": {"mean": [1.0, 2.0], "std": [1.0]}}}', "expected"),
        ('{"norm_stats": {"state": {"mean": [1.0], "std": [-1.0]}}}', "std of at least 0, found -1 in dimension 0"),
        (
            '{"norm_stats": {"state": {"mean": [0], "std": [1], "q01": [2], "q99": [1]}}}',
            "q01 of at most q99, found 2 > 1",
        ),
        ('{"norm_stats": {"state": {"mean": [0], "std": [true]}}}', "std as a list of numbers"),
        ('{"norm_stats": {"state": {"mean": [1' + "0" * 400 + '], "std": [1.0]}}}', "of float32's range"),
        ('{"stats": {}}', "expected"),
        ("[]", "expected"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "norm_stats.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"norm_stats\.json") as error:
        norm.load_stats(path, {})
    assert words in str(error.value)


def test_two_rows_are_enough() -> None:
    running = norm.RunningStats()
    running.update(np.array([[[1.0], [3.0]]], np.float32))
    found = running.result()
    assert (found.mean[0], found.std[0]) == (2.0, 1.0)
