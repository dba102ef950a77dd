"""Rounds of drives in closed loop: which are played, what they teach, and what a resumed run takes from disk."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.arrays import PyTree
from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.envs.collect import Job
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import ConfigError, DataError, NonFiniteError
from chunkwise.train import rngs
from driving import train
from driving.config import DataConfig, DrivingConfig, RolloutConfig, WaypointConfig
from driving.eval.closed_loop import Result
from driving.online.acting import MODE, DrawingPolicy, drawn
from driving.online.decisions import decisions_of, worth_of
from driving.online.round import Rounds
from driving.policies.policy import WaypointPolicy
from driving.policies.town import named
from driving.tasks import waypoints
from driving.tasks.waypoints import WaypointTask, decision_loss

SETTINGS = WaypointConfig(use_cameras=False, hidden_sizes=(8,), modes=3)
ROLLOUT = RolloutConfig(start=2, updates=3, routes=6, groups=2, size=3, seconds=3.0)


def config(**more: Any) -> DrivingConfig:
    base = DrivingConfig(
        run=RunConfig(seed=5),
        train=TrainConfig(steps=9, batch_size=4),
        data=DataConfig(path="x", cameras=("front",), image_size=(8, 8)),
        waypoints=SETTINGS,
        rollout=ROLLOUT,
    )
    return dataclasses.replace(base, **more)


def params_of(settings: DrivingConfig, seed: int = 0) -> PyTree:
    params = jax.jit(lambda key: waypoints.init_params(settings, key))(rngs.key(seed, "init"))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(x + 0.3 * rng.normal(size=x.shape), jnp.float32), params)


def seen(decision: int) -> dict[str, np.ndarray]:
    numbers = {"speed_mps": 5.0 + decision, "yaw_rate_radps": 0.1, "route_command": decision % 4}
    past = {"past_speed_mps": np.full(3, 5.0), "past_yaw_rate_radps": np.zeros(3)}
    return {name: np.asarray(value, np.float32) for name, value in (numbers | past).items()}


def rollout_of(
    observed: dict[str, np.ndarray],
    notes: dict[str, np.ndarray],
    *,
    seed: int = 0,
    draw: tuple[int, ...] = (0,),
    step: int = 0,
    weights: str = "",
) -> Rollout:
    length = len(observed["speed_mps"]) - 1
    return Rollout(
        observations=observed,
        actions=np.zeros((length, 40), np.float32),
        rewards=np.zeros(length, np.float32),
        success=True,
        seed=seed,
        draw=draw,
        init_hash="",
        prompt="",
        step=step,
        weights=weights,
        notes=notes,
    )


class FakeCollector:
    """Drives of two decisions and more, worth what `worth` says of seed and number in the group."""

    def __init__(self, worth: Callable[[Job], dict[str, float]], stop_after: int = 99) -> None:
        self.worth, self.stop_after = worth, stop_after
        self.played: list[Job] = []

    def play(
        self, jobs: Sequence[Job], actor: Any, done: Callable[[Job, Rollout], None], stopping: Callable[[], bool]
    ) -> bool:
        for job in jobs:
            if len(self.played) >= self.stop_after:
                return False
            self.played.append(job)
            length = 2 + job.number % 2
            frames = [seen(i) for i in range(length + 1)]
            notes: list[dict[str, Any]] = []
            if isinstance(actor, DrawingPolicy):
                notes = [
                    dict(actor.noted({k: v[None] for k, v in one.items()}, [(*job.draw, i)], [""])[1])
                    for i, one in enumerate(frames[:-1])
                ]
            fields = dict.fromkeys((field.name for field in dataclasses.fields(Result)), 1.0)
            last = np.array([*(fields | {"metres": 100.0} | self.worth(job)).values()], np.float32)
            results = np.concatenate([np.zeros((length, 7), np.float32), last[None]])
            observed = {name: np.stack([one[name] for one in frames]) for name in frames[0]} | {"result": results}
            noted = {name: np.concatenate([one[name] for one in notes]) for name in notes[0]} if notes else {}
            made = {"seed": job.seed, "draw": job.draw, "step": actor.step, "weights": actor.weights}
            done(job, rollout_of(observed, noted, **made))
        return True


def rounds_of(
    folder: Path, settings: DrivingConfig, policy: FakeCollector, expert: FakeCollector | None = None
) -> Rounds:
    rounds = Rounds(settings, folder)
    collectors: Any = {"policy": policy, "expert": expert or FakeCollector(lambda job: {})}
    rounds._collectors = collectors
    return rounds


def state_of(settings: DrivingConfig) -> Any:
    class State:
        params = params_of(settings)

    return State


def by_place(job: Job) -> dict[str, float]:
    """Of a route: the whole way, half of it, and a collision; but of routes with an even seed all the same."""
    place = job.number % 3
    if job.seed % 2 == 0:
        return {}
    return [{}, {"metres": 50.0}, {"no_fault_collision": 0.0}][place]


def imitated(start: int) -> Any:
    step = start
    while True:
        yield {"step": np.full(4, step)}
        step += 1


def first(rounds: Rounds, start: int, count: int, **shard: int) -> list[Any]:
    batches = rounds.batches(imitated, start, **shard)
    return [next(batches) for _ in range(count)]


def test_a_round_compares_drives_from_one_start(tmp_path: Path):
    settings, collector = config(rollout=dataclasses.replace(ROLLOUT, groups=6)), FakeCollector(by_place)
    rounds = rounds_of(tmp_path, settings, collector)
    metrics = rounds.interact(state_of(settings), 2, lambda: False)
    assert metrics is not None
    assert len(collector.played) == 18
    seeds = [job.seed for job in collector.played]
    assert [len(set(seeds[3 * i : 3 * i + 3])) for i in range(6)] == [1] * 6
    assert len(set(seeds)) == 6
    assert len({job.draw for job in collector.played}) == 18
    odd = np.array([seed % 2 == 1 for seed in seeds])
    assert 0 < odd.sum() < 18
    # 5 + 5 + 2 twelfths, 5 + 2.5 + 2, none: each less the mean of the other two
    scores = np.array([1.0, 9.5 / 12, 0.0])
    expected = scores - (scores.sum() - scores) / 2
    np.testing.assert_allclose(metrics["drives/score"], np.where(odd, np.tile(scores, 6), 1.0), atol=1e-6)
    assert sum(metrics["drives/mixed_groups"]) == odd.sum() / 3
    decisions = rounds._decisions
    assert decisions is not None
    lengths = [2 + job.number % 2 for job in collector.played]
    advantage = np.tile(expected, 6)
    rows = np.concatenate([np.full(n, a) for n, a, on in zip(lengths, advantage, odd, strict=True) if on])
    np.testing.assert_allclose(decisions.advantage, rows, atol=1e-6)
    drives = [load(job.path) for job, on in zip(collector.played, odd, strict=True) if on]
    np.testing.assert_array_equal(decisions.mode, np.concatenate([drive.notes["mode"] for drive in drives]))
    np.testing.assert_allclose(decisions.inputs["motion"][:2], [[5.0, 0.1], [6.0, 0.1]], atol=1e-6)
    # What the policy that acted thinks of its draws now is what it noted then.
    params = params_of(settings)
    loss = decision_loss(WaypointTask(settings, None).model, params, to_device(decisions.batch(2, slice(0, 4), 4)), 0.2)  # pyright: ignore[reportArgumentType]
    assert float(loss["ratio"].value()) == pytest.approx(1, abs=1e-5)
    assert float(loss["approx_kl"].value()) == pytest.approx(0, abs=1e-6)


def drive_of(length: int, results: list[list[float]]) -> Rollout:
    """A drive whose steps were followed by these results, of three that there can be."""
    frames = [seen(i) for i in range(length + 1)]
    observed = {name: np.stack([one[name] for one in frames]) for name in frames[0]}
    rows = np.zeros((length + 1, 3, 7), np.float32)
    rows[-1, :length] = results
    notes = {"mode": np.arange(length, dtype=np.int32), "log_prob": -np.ones(length, np.float32)}
    return rollout_of(observed | {"results": rows}, notes)


def test_within_a_horizon_a_decision_is_judged_by_what_followed_it():
    best, stands, red = [1.0] * 6 + [20.0], [1.0] * 6 + [0.0], [1, 1, 1, 0, 1, 1, 20.0]
    rough, half = [1, 1, 1, 1, 0, 0, 20.0], [1.0] * 6 + [10.0]
    drives = [drive_of(3, [best, stands, best]), drive_of(3, [best, red, half]), drive_of(2, [rough, best])]
    # In a mean horizon of 4 of 15 s the expert came 20 m of 75.
    worth = worth_of(drives, [75.0] * 3, seconds=15.0, horizon_s=4.0)
    twelfth = 1 / 12
    stood = 7 * twelfth + 5 * twelfth * 0.1 / 20
    expected = [[1.0, stood, 1.0], [1.0, 0.0, 9.5 * twelfth], [5 * twelfth, 1.0, np.nan]]
    np.testing.assert_allclose(worth, expected, atol=1e-6)
    decisions = decisions_of(WaypointPolicy(config(), {}), drives, worth, np.zeros(3, np.int64), seed=0)
    assert decisions is not None
    first, second = 7 * twelfth / 2, [stood - 0.5, -(stood + 1) / 2, 1 - stood / 2]
    third = 2.5 * twelfth  # the third drive had ended
    advantage = [first, second[0], third, first, second[1], -third, -2 * first, second[2]]
    np.testing.assert_allclose(decisions.advantage, advantage, atol=1e-6)
    assert decisions.mode.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    speeds = [5, 6, 7, 5, 6, 7, 5, 6]
    np.testing.assert_allclose(decisions.inputs["motion"][:, 0], speeds, atol=1e-6)
    # Where all were worth the same at some time, nothing is learnt of it.
    alike = decisions_of(WaypointPolicy(config(), {}), drives[:2], worth[:2], np.zeros(2, np.int64), seed=0)
    assert alike is not None
    assert alike.mode.tolist() == [1, 2, 1, 2]


def to_device(batch: Any) -> Any:
    return jax.tree.map(jnp.asarray, batch)


def test_batches_are_imitation_and_beside_it_decisions_of_the_last_round(tmp_path: Path):
    rounds = rounds_of(tmp_path, config(), FakeCollector(lambda job: {"metres": 10.0 * (job.number % 3) + 50.0}))
    assert [set(batch) for batch in first(rounds, 0, 2)] == [{"step"}] * 2
    rounds.interact(state_of(config()), 2, lambda: False)
    whole = first(rounds, 2, 3)
    assert [batch["step"][0] for batch in whole] == [2, 3, 4]
    assert whole[0]["decisions"]["mode"].shape == (4,)
    assert not np.array_equal(whole[0]["decisions"]["advantage"], whole[1]["decisions"]["advantage"])
    parts = [first(rounds, 2, 3, shard=shard, num_shards=2) for shard in range(2)]
    for one, *halves in zip(whole, *parts, strict=True):
        for name, value in one["decisions"].items():
            np.testing.assert_array_equal(value, np.concatenate([half["decisions"][name] for half in halves]))
    again = rounds_of(tmp_path, config(), FakeCollector(by_place))
    again.rewind(rounds.position())
    assert not again._collectors["policy"].played  # pyright: ignore[reportAttributeAccessIssue]
    for one, other in zip(whole, first(again, 2, 3), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    fresh = rounds_of(tmp_path, config(), FakeCollector(by_place))
    fresh.rewind(None)
    assert [set(batch) for batch in first(fresh, 2, 1)] == [{"step"}]


def test_a_round_that_was_cut_off_plays_what_is_missing_alone(tmp_path: Path):
    settings, whole = config(), FakeCollector(by_place)
    rounds_of(tmp_path / "whole", settings, whole).interact(state_of(settings), 2, lambda: False)
    cut = FakeCollector(by_place, stop_after=2)
    rounds = rounds_of(tmp_path / "cut", settings, cut)
    assert rounds.interact(state_of(settings), 2, lambda: False) is None
    assert rounds.position() == {"round": None}
    again = FakeCollector(by_place)
    resumed = rounds_of(tmp_path / "cut", settings, again)
    assert resumed.interact(state_of(settings), 2, lambda: False) is not None
    assert [job.number for job in again.played] == [job.number for job in whole.played[2:]]
    file = next((tmp_path / "cut/rollouts").glob("step_*/*-00.npz"))
    others = next(
        path for path in (tmp_path / "cut/rollouts").glob("step_*/*-01.npz") if path.name[:11] == file.name[:11]
    )
    own = others.read_bytes()
    others.write_bytes(own[:900])
    with pytest.raises(DataError, match=rf"{others.name}: expected a whole .npz file, .*; delete the file, "):
        rounds_of(tmp_path / "cut", settings, FakeCollector(by_place)).interact(state_of(settings), 2, lambda: False)
    others.write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="delete the folder"):
        rounds_of(tmp_path / "cut", settings, FakeCollector(by_place)).interact(state_of(settings), 2, lambda: False)


def test_routes_are_drawn_for_each_round_and_modes_for_each_drive(tmp_path: Path):
    played = []
    for step in (2, 5):
        collector = FakeCollector(by_place)
        rounds_of(tmp_path, config(), collector).interact(state_of(config()), step, lambda: False)
        played.append(collector.played)
    assert {job.seed for job in played[0]} != {job.seed for job in played[1]}
    assert not {job.draw for job in played[0]} & {job.draw for job in played[1]}


def test_a_mode_is_drawn_by_its_probability():
    logits = np.log(np.array([0.2, 0.5, 0.3])) + 7.0
    found = [drawn(logits, (1, draw)) for draw in range(4000)]
    shares = np.bincount([mode for mode, _ in found]) / 4000
    np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.03)
    assert {round(log_prob, 6) for _, log_prob in found} == {round(float(np.log(p)), 6) for p in (0.2, 0.5, 0.3)}
    assert drawn(logits, (1, 2)) == drawn(logits, (1, 2))
    sure = [drawn(np.array([-800.0, 0.0, -800.0]), (draw,)) for draw in range(50)]
    assert set(sure) == {(1, 0.0)}


def test_the_ratio_of_a_drawn_mode_by_hand():
    settings = config()
    model, params = WaypointTask(settings, None).model, params_of(settings)  # pyright: ignore[reportArgumentType]
    given = {
        "images": np.zeros((2, 1, 8, 8, 3), np.uint8),
        "image_valid": np.zeros((2, 1), bool),
        "motion": np.array([[5.0, 0.1], [2.0, -0.1]], np.float32),
        "past_motion": np.zeros((2, 6), np.float32),
        "route_command": np.array([1, 2], np.int32),
        "known_motion": np.ones((2, 8), bool),
    }
    logits = np.asarray(waypoints.predict_modes(model, params, to_device(given)).logits, np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    mode, advantage = np.array([2, 0], np.int32), np.array([0.5, -0.25], np.float32)
    before = np.array([log_p[0, 2] - np.log(1.5), log_p[1, 0] - np.log(0.9)], np.float32)
    batch = to_device({**given, "mode": mode, "log_prob": before, "advantage": advantage})
    found = decision_loss(model, params, batch, 0.2)
    # 1.5 is cut to 1.2 where more is better; 0.9 of what is worse counts as it is
    assert float(found["ppo_loss"].value()) == pytest.approx(-(1.2 * 0.5 - 0.9 * 0.25) / 2, rel=1e-4)
    assert float(found["clipped_share"].value()) == 0.5
    entropy = -(np.exp(log_p) * log_p).sum(axis=1).mean()
    assert float(found["entropy"].value()) == pytest.approx(entropy, rel=1e-4)
    slope = jax.grad(lambda bias: decision_loss(model, with_bias(params, bias), batch, 0.2)["ppo_loss"].value())(
        params["logits"]["bias"]
    )
    assert float(slope[0]) > 0  # worse than its group: its probability falls
    assert float(slope.sum()) == pytest.approx(0, abs=1e-6)


def with_bias(params: Any, bias: Any) -> Any:
    return {**params, "logits": {**params["logits"], "bias": bias}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"waypoints": dataclasses.replace(SETTINGS, modes=1)}, "expected waypoints with waypoints.modes above 1"),
        ({"rollout": dataclasses.replace(ROLLOUT, start=9)}, "nothing would be driven"),
        (
            {
                "waypoints": dataclasses.replace(SETTINGS, use_cameras=True),
                "data": DataConfig(path="x", cameras=("rear",)),
            },
            "data.cameras is .*; expected some of the town's",
        ),
        *(
            (
                {
                    "waypoints": dataclasses.replace(SETTINGS, use_cameras=True, use_moments=True),
                    "data": DataConfig(path="x", cameras=("front",), offsets_s=offsets),
                },
                r"data\.offsets_s is .*; expected moments that it shows, whole tenths of a second from -1 to 0",
            )
            for offsets in ((-1.4, 0.0), (-0.25, 0.0))
        ),
    ],
)
def test_what_cannot_be_driven_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        config(**change)
    seen = dataclasses.replace(SETTINGS, use_cameras=True, use_moments=True)
    config(waypoints=seen, data=DataConfig(path="x", cameras=("front",), offsets_s=(-1.0, -0.3, 0.0)))
    with pytest.raises(ValueError, match="a drive is compared with the others"):
        RolloutConfig(size=1)
    with pytest.raises(ValueError, match="expected at most all"):
        RolloutConfig(groups=9, routes=8)
    with pytest.raises(ValueError, match=r"rollout\.horizon_s is 16\.0; expected 0\.5 .rollout\.hold. to 15 s"):
        RolloutConfig(horizon_s=16.0)
    with pytest.raises(ValueError, match=r"rollout\.horizon_s is 0\.3; expected"):
        RolloutConfig(horizon_s=0.3)


def test_a_plan_is_not_followed_beyond_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Not by a new run; one of before goes on."""
    data = DataConfig(path=str(tmp_path), waypoint_steps=3, waypoint_dt_s=0.3)
    assert data.longest_hold == 9
    assert dataclasses.replace(data, waypoint_steps=1, waypoint_dt_s=0.05).longest_hold == 1
    monkeypatch.setattr("driving.train.RunFolder", lambda *_: pytest.fail("a run was begun"))
    held = dataclasses.replace(ROLLOUT, hold=10)
    with pytest.raises(ConfigError, match=r"rollout\.hold is 10 tenths of a second; expected at most 9, where a plan"):
        train.main(config(data=data, rollout=held), "x")
    for one, resume in ((held, True), (dataclasses.replace(ROLLOUT, hold=9), False)):
        with pytest.raises(pytest.fail.Exception, match="a run was begun"):
            train.main(config(data=data, rollout=one, run=RunConfig(resume=resume, dir="x")), "x")


def test_a_run_goes_on_with_all_weights_of_one_that_learnt_waypoints(monkeypatch: pytest.MonkeyPatch):
    theirs = config(rollout=None, train=TrainConfig(steps=3, batch_size=4))
    learnt = params_of(theirs, seed=3)
    monkeypatch.setattr(waypoints, "read_config", lambda run, kind: theirs)
    monkeypatch.setattr(waypoints, "read_weights", lambda run, config, init: (3, learnt))
    mine = config(waypoints=dataclasses.replace(SETTINGS, weights="theirs"))
    task = WaypointTask(mine, None)  # pyright: ignore[reportArgumentType]
    state = task.load(jax.jit(task.init)(rngs.key(0, "init")))
    jax.tree.map(np.testing.assert_array_equal, state.params, learnt)
    for change, name in (
        ({"waypoints": dataclasses.replace(SETTINGS, weights="theirs", modes=4)}, "waypoints"),
        ({"waypoints": mine.waypoints, "data": dataclasses.replace(mine.data, waypoint_steps=10)}, "waypoint_steps"),
    ):
        other = WaypointTask(config(**change), None)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match=f"its [a-z.]*{name} is"):
            other.load(state)


def test_a_policy_whose_modes_are_nan_is_not_drawn_from():
    settings = config()
    actor = DrawingPolicy(settings)
    actor.use(with_bias(params_of(settings), jnp.full(3, jnp.nan)), 4)
    with pytest.raises(NonFiniteError, match="step 4: the probabilities"):
        actor({name: value[None] for name, value in seen(0).items()}, [(1, 0)], [""])


def test_one_random_number_draws_as_many_decisions_as_are_kept():
    settings = config(rollout=dataclasses.replace(ROLLOUT, keep=2))
    actor = DrawingPolicy(settings)
    logits = np.array([0.3, 0.0, 0.1])
    actor.use(with_bias(params_of(settings), jnp.asarray(logits)), 4)
    one = {name: value[None] for name, value in seen(0).items()}
    policy = WaypointPolicy(settings, with_bias(params_of(settings), jnp.asarray(logits)))
    found = policy.modes(policy.prepare(named(policy, one)).inputs)[1][0].astype(np.float64)

    def mode(rollout: int, number: int) -> int:
        return int(actor.noted(one, [(rollout, number)], [""])[1][MODE][0])

    for rollout in range(40):
        expected = [drawn(found, (rollout, kept))[0] for kept in (0, 0, 1, 1, 2)]
        assert [mode(rollout, number) for number in range(5)] == expected
    assert len({mode(rollout, 0) for rollout in range(40)}) > 1  # drawn, not the most probable one
