"""PPO on the flow's own likelihood: its loss and gradient by hand, its batches by their law, and a round as a whole."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chunkwise.config.experiment import OptimConfig
from chunkwise.data.sampling import Purpose, words
from chunkwise.envs.rollout import Rollout, load, save
from chunkwise.errors import ConfigError, DataError
from chunkwise.state import TrainState
from chunkwise.train.clipped_ratio import clipped_loss
from chunkwise.train.update import run_updates
from openpi_ript.config import DataConfig, EvalConfig, OpenpiRiptConfig, PpoConfig, RobotConfig, RolloutConfig
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.model.flow_sde import chain_log_prob
from openpi_ript.model.pi0 import Pi0
from openpi_ript.policies.policy import sample_steps
from openpi_ript.ript.acting import ActingPolicy, ExploringPolicy
from openpi_ript.ript.passes import CHAIN, LOG_PROB, Passes, passes_over
from openpi_ript.ript.rollout_data import Group, training_data
from openpi_ript.ript.round import Ript
from openpi_ript.tasks import ript
from openpi_ript.tasks.ppo import Ppo, PpoUpdate, is_ppo
from openpi_ript.tasks.ript import RiptTask
from tests.evened import assert_same_update
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config, supervised
from tests.openpi_ript.toy_policy import compiled, random_params
from tests.openpi_ript.toy_rollouts import FakeCollector, jobs, make_rollout, point

SEED, STEPS, HORIZON, WIDTH = 5, 3, 8, 8
PPO = PpoConfig(noise=0.4, sample_steps=STEPS, epochs=2, learning_rate_scale=1.0)
ROLLOUT = RolloutConfig(start=2, updates=4, groups=1, max_groups=6, size=4, initial_states=6, objective="ppo", ppo=PPO)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ppo")
    with quick_compiling(folder / "cache"):
        yield make_dataset(folder)


def make_config(root: Path, folder: Path, **rollout: Any) -> OpenpiRiptConfig:
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=3)
    data = DataConfig(path=str(root), robot=robot, cameras={}, horizon=HORIZON, action_norm="mean_std")
    optim = OptimConfig(learning_rate=1e-4, clip_norm=1.0)
    config = supervised(small_config(root, folder), data=data, optim=optim, env=point(max_steps=10), eval=EvalConfig())
    train = dataclasses.replace(config.train, ema_decay=None, batch_size=8)
    return dataclasses.replace(config, train=train, rollout=dataclasses.replace(ROLLOUT, **rollout))


def noted(length: int, number: int, *, success: bool = True) -> Rollout:
    """A rollout of chunks of four with notes of no meaning, which are the same for the same number."""
    rng, chunks = np.random.default_rng(number), -(-length // 4)
    notes = {
        CHAIN: rng.normal(size=(chunks, STEPS + 1, HORIZON, WIDTH)).astype(np.float32),
        LOG_PROB: rng.normal(size=(chunks, STEPS, HORIZON)).astype(np.float32),
    }
    return dataclasses.replace(make_rollout(length, success=success, seed=number), notes=notes)


LENGTHS = [6, 9, 4, 1]
"""Chunks of 4 + 2, 4 + 4 + 1, 4, and 1 executed steps."""


def make_passes(root: Path, folder: Path, *, batch_size: int = 8, **rollout: Any) -> Passes:
    config = make_config(root, folder, **rollout)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, batch_size=batch_size))
    rollouts = [noted(length, n, success=n % 2 == 0) for n, length in enumerate(LENGTHS)]
    assert config.rollout is not None
    group = Group(state=0, files=["a", "b", "c", "d"], rollouts=rollouts)
    data = training_data(open_data(config.data), [group], point(), config.rollout)
    assert data is not None
    return passes_over(data, rollouts, config, 2)


def test_the_loss_by_hand():
    """Log-ratios log 1.1, log 1.5 and log 0.5 for a good, then for a bad rollout; the last row only fills."""
    change = np.log(np.array([[1.1, 1.5, 0.5]] * 2 + [[3.0, 3.0, 3.0]]))
    behaviour = np.random.default_rng(0).normal(size=(3, 3, 4)).astype(np.float32)
    log_prob = behaviour.copy()
    log_prob[..., 0] += 0.25 * change
    log_prob[..., 2] += 0.75 * change
    log_prob[..., 1] += 5.0  # was not executed
    log_prob[2, :, 3] = np.nan
    valid = np.array([[True, False, True, False]] * 2 + [[False] * 4])
    advantage = np.array([2.0, -1.0, 7.0], np.float32)
    log_prob, behaviour, advantage, valid = map(jnp.asarray, (log_prob, behaviour, advantage, valid))
    loss, metrics = clipped_loss(log_prob, behaviour, advantage, valid, 0.2)
    # 2 x (1.1, 1.2, 0.5) gained, and -1 x (1.1, 1.5, 0.8): what is clipped is what would be a gain.
    assert float(loss) == pytest.approx(-(2 * (1.1 + 1.2 + 0.5) - (1.1 + 1.5 + 0.8)) / 6, rel=1e-5)
    found = {name: float(mean.value()) for name, mean in metrics.items()}
    assert found["ppo_loss"] == float(loss)
    assert found["ratio"] == pytest.approx((1.1 + 1.5 + 0.5) / 3, rel=1e-5)
    assert found["clipped_share"] == pytest.approx(2 / 3)
    kl = np.mean([r - 1 - np.log(r) for r in (1.1, 1.5, 0.5)])
    assert found["approx_kl"] == pytest.approx(kl, rel=1e-4)
    assert {float(mean.count) for mean in metrics.values()} == {6}


@pytest.mark.parametrize(("advantage", "moved"), [(2.0, 0.0), (-1.5, 0.0), (2.0, 0.5), (-1.5, -0.5)])
def test_the_gradient_of_a_velocity_of_one_number_by_hand(advantage: float, moved: float):
    """v(x, t) = w. d mean / dw = -(1 + sigma^2 (1 - t) / (2 t)) / K, and of the log-density z / std times that."""
    steps, level = 2, 0.5
    points = np.random.default_rng(1).normal(size=(1, steps + 1, 2, 3)).astype(np.float32) * 0.1
    valid = jnp.asarray([[True, False]])

    def log_prob(w: Any) -> Any:
        return chain_log_prob(lambda x, t: jnp.full_like(x, w), jnp.asarray(points), level=level, dims=2)

    def loss(w: Any, behaviour: Any) -> Any:
        return clipped_loss(log_prob(w), behaviour, jnp.asarray([advantage], jnp.float32), valid, 0.2)[0]

    w, expected = 0.3, 0.0
    behaviour = log_prob(jnp.float32(w)).at[:, :, 0].add(-moved)  # the ratio is e^moved: 1.65, 0.61, or 1
    for k, (t, variance) in enumerate([(1.0, level**2), (0.5, level**2 / 2)]):
        x, after = points[0, k, 0, :2].astype(float), points[0, k + 1, 0, :2].astype(float)
        sigma2 = variance * steps
        mean = x - (w + sigma2 / (2 * t) * (x + (1 - t) * w)) / steps
        slope = -(1 + sigma2 * (1 - t) / (2 * t)) / steps
        expected += -advantage * ((after - mean) / variance * slope).sum() / steps
    gained = advantage * moved > 0  # far enough in the direction that the advantage wants
    found = float(jax.grad(loss)(jnp.float32(w), behaviour))
    assert found == pytest.approx(0.0 if gained else expected, rel=1e-4, abs=1e-6)
    assert gained or abs(expected) > 0.1


def test_a_ratio_that_moved_the_wrong_way_keeps_its_gradient():
    behaviour = jnp.zeros((1, 1, 1))
    for change, advantage in ((0.5, -1.0), (-0.5, 1.0)):
        args = (behaviour, jnp.asarray([advantage]), jnp.asarray([[True]]), 0.2)
        slope = jax.grad(lambda change, args=args: clipped_loss(change, *args)[0])(jnp.full((1, 1, 1), change))
        assert float(slope.squeeze()) == pytest.approx(-advantage * np.exp(change), rel=1e-5)


def test_each_chunk_is_taken_as_often_as_there_are_passes(root: Path, tmp_path: Path):
    """7 chunks, 2 passes, 4 updates: 14 places in parts of 3, 4, 3, 4, each pass in its own order."""
    passes = make_passes(root, tmp_path)
    orders = [np.random.default_rng([SEED, 2, number, 6]).permutation(7).tolist() for number in (0, 1)]
    places = orders[0] + orders[1]
    taken = [passes.chunks(step).tolist() for step in (2, 3, 4, 5)]
    assert taken == [places[:3], places[3:7], places[7:10], places[10:]]
    assert orders[0] != orders[1]
    assert passes.describe(6) == "7 chunks, 2 passes over them in 4 updates"
    assert passes.describe(5) == "7 chunks, 1.43 passes over them in 3 updates", "the run ends within the round"
    few = make_passes(root, tmp_path, batch_size=2)
    assert [few.chunks(step).tolist() for step in (2, 3, 4, 5)] == [places[i : i + 2] for i in (0, 2, 4, 6)]
    assert few.describe(100) == "7 chunks, 1.14 passes over them in 4 updates"


def test_a_batch_shows_the_frame_at_which_each_chunk_began(root: Path, tmp_path: Path):
    """Chunks by (rollout, first frame, executed steps), advantages by hand: 2/3 for successes, -2/3 for failures."""
    passes = make_passes(root, tmp_path)
    chunks = [(0, 0, 4), (0, 4, 2), (1, 0, 4), (1, 4, 4), (1, 8, 1), (2, 0, 4), (3, 0, 1)]
    rollouts = [noted(length, n) for n, length in enumerate(LENGTHS)]
    numbers = passes.chunks(3).tolist()
    batch = passes.batch(3, slice(0, 8))
    assert is_ppo(batch)
    assert len(numbers) == 4
    for row, (n, start, executed) in enumerate(chunks[number] for number in numbers):
        np.testing.assert_array_equal(batch["chain"][row], rollouts[n].notes[CHAIN][start // 4])
        np.testing.assert_array_equal(batch["log_prob"][row], rollouts[n].notes[LOG_PROB][start // 4])
        assert batch["valid"][row].tolist() == [True] * executed + [False] * (HORIZON - executed)
        raw = passes.data.raw(sum(LENGTHS[:n]) + start)
        np.testing.assert_array_equal(raw["state"], rollouts[n].observations["position"][start])
        np.testing.assert_array_equal(batch["state"][row], passes.data.to_openpi(raw)["state"])
        assert batch["advantages"][row] == pytest.approx(2 / 3 if n % 2 == 0 else -2 / 3)
    assert not batch["valid"][4:].any(), "what fills the batch has no part in the update"
    assert {len(values) for values in (batch["chain"], batch["state"], batch["prompt"])} == {8}
    for shard in (0, 1):
        part = passes.batch(3, slice(4 * shard, 4 * shard + 4))
        for name in (CHAIN, "valid", "state", "advantages"):
            np.testing.assert_array_equal(part[name], batch[name][4 * shard : 4 * shard + 4])


@pytest.mark.parametrize("fault", ["none", "log_prob", "chunks", "steps"])
def test_rollouts_without_the_notes_of_their_chunks_are_refused(root: Path, tmp_path: Path, fault: str):
    config, rollout = make_config(root, tmp_path), noted(6, 0)
    notes = dict(rollout.notes)
    bad = {
        "none": {},
        "log_prob": {CHAIN: notes[CHAIN]},
        "chunks": {name: value[:1] for name, value in notes.items()},
        "steps": {CHAIN: notes[CHAIN][:, 1:], LOG_PROB: notes[LOG_PROB]},
    }[fault]
    with pytest.raises(DataError, match=r"seed 0 at step 4: expected (chain|log_prob) of shape \(2, "):
        passes_over(open_data(config.data), [dataclasses.replace(rollout, notes=bad)], config, 2)


class Half:
    """A run's parts after two updates, with weights of no meaning."""

    def __init__(self, config: OpenpiRiptConfig, folder: Path) -> None:
        self.config = config
        self.data: TrainingData = open_data(config.data)
        self.task = RiptTask(config, self.data, folder)
        params = random_params(Pi0(config.model))
        self.state = self.task.init(jax.random.key(0)).replace(params=params, step=jnp.int32(2))
        self.folder = folder


@pytest.fixture(scope="module")
def half(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Half]:
    folder = tmp_path_factory.mktemp("half")
    made = Half(make_config(root, folder), folder)
    yield made
    made.task.finish()


def explored(half: Half, rows: int = 3) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, dict[str, Any]]:
    half.task.policy.use(half.state.params, 2)
    policy = ExploringPolicy(half.task.policy)
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((rows, *policy.chunk), np.float32)
    seen = {"state": rng.random((rows, 2)).astype(np.float32), "image": {}, "prompt": ["move to the red disc"] * rows}
    return *policy.noted(seen, noise), noise, seen


def test_a_resumed_round_goes_on_with_the_same_chunks(root: Path, tmp_path: Path):
    """The rollouts of a group lie on disk; two runs find them, and one of them begins in the middle of the round."""
    config = make_config(root, tmp_path, updates=5)
    data = open_data(config.data)
    folder, names = "step_00000007-abab", [f"state_00005-{n:02d}.npz" for n in range(len(LENGTHS))]
    for n, (name, length) in enumerate(zip(names, LENGTHS, strict=True)):
        own = {"draw": tuple(words(Purpose.ROLLOUT_ACTION, config.run.seed, 7, 5, n)), "weights": "abab"}
        save(tmp_path / "rollouts" / folder / name, dataclasses.replace(noted(length, n, success=n % 2 == 0), **own))
    position = {"rounds": [{"step": 7, "folder": folder, "groups": [names]}], "resting": []}

    def batches(start: int) -> Iterator[Any]:
        ript = Ript(config, data, tmp_path, FakeCollector(lambda *_: True), ActingPolicy(config, data.stats))
        ript.rewind(position)
        return ript.batches(lambda _: iter(()), start)

    orders = np.concatenate([np.random.default_rng([SEED, 7, number, 6]).permutation(7) for number in (0, 1)])
    chains = np.concatenate([noted(length, n).notes[CHAIN] for n, length in enumerate(LENGTHS)])
    whole = [batch for _, batch in zip(range(5), batches(7), strict=False)]
    for past, batch in enumerate(whole):
        chunks = orders[14 * past // 5 : 14 * (past + 1) // 5]
        np.testing.assert_array_equal(batch["chain"][: len(chunks)], chains[chunks])
        assert batch["valid"].any(axis=1).sum() == len(chunks)
    for batch, again in zip(whole[3:], batches(10), strict=False):
        for name in (CHAIN, LOG_PROB, "valid", "state", "advantages"):
            np.testing.assert_array_equal(batch[name], again[name])


def test_an_exploring_policy_acts_as_its_chain_ends(half: Half):
    chunks, notes, noise, seen = explored(half)
    assert noise.shape == (3, STEPS + 1, HORIZON, WIDTH)
    np.testing.assert_array_equal(notes[CHAIN][:, 0], noise[:, 0])
    own = half.data.to_openpi.observed_action(notes[CHAIN][:, -1, :, :3], seen["state"])
    np.testing.assert_array_equal(chunks, own)
    greedy = half.task.policy(seen, noise[:, 0])
    assert np.abs(greedy - chunks).max() > 0.01
    np.testing.assert_array_equal(ExploringPolicy(half.task.policy)(seen, noise), chunks)
    with pytest.raises(ConfigError, match=r"rollout\.ppo\.evaluate is 'sde', whose chunks cannot be completed"):
        ExploringPolicy(half.task.policy)(seen, noise, [])


def test_a_row_does_not_depend_on_the_others(half: Half):
    chunks, notes, noise, seen = explored(half)
    policy = ExploringPolicy(half.task.policy)
    swapped = [2, 1, 0]
    turned = {"state": seen["state"][swapped], "image": {}, "prompt": seen["prompt"]}
    again, noted_again = policy.noted(turned, noise[swapped])
    np.testing.assert_array_equal(again[swapped], chunks)
    for name, value in notes.items():
        np.testing.assert_array_equal(noted_again[name][swapped], value)


def batch_of(half: Half, rollouts: list[Rollout]) -> Any:
    group = Group(state=0, files=[str(n) for n in range(len(rollouts))], rollouts=rollouts)
    assert half.config.rollout is not None
    data = training_data(half.data, [group], point(), half.config.rollout)
    assert data is not None
    return passes_over(data, rollouts, half.config, 2)


def played(half: Half, count: int = 4) -> list[Rollout]:
    """Rollouts of the state's weights, the first of which are said to have succeeded."""
    half.task.policy.use(half.state.params, 2)
    todo = [dataclasses.replace(job, seed=3) for job in jobs(count, half.folder)]
    found: dict[int, Rollout] = {}
    collector = half.task.collector
    actor = ExploringPolicy(half.task.policy)
    assert collector.collect(todo, actor, lambda job, rollout: found.update({job.number: rollout}))
    return [dataclasses.replace(found[n], success=n % 2 == 0) for n in range(count)]


def test_rollouts_keep_how_their_chunks_were_sampled(half: Half):
    for n, rollout in enumerate(played(half)):
        chain = rollout.notes[CHAIN]
        assert len(chain) == -(-rollout.length // 4)
        assert chain.dtype == rollout.notes[LOG_PROB].dtype == np.float32
        for chunk, points in enumerate(chain):
            drawn = np.random.default_rng((0, n, chunk)).standard_normal((STEPS + 1, HORIZON, WIDTH), np.float32)
            np.testing.assert_array_equal(points[0], drawn[0])
            start = 4 * chunk
            sent = half.data.to_openpi.observed_action(
                points[-1, :, :3], rollout.observations["position"][start].astype(np.float32)
            )
            executed = rollout.actions[start : start + 4]
            inside = np.abs(executed - sent[: len(executed)]) < 1e-6
            assert inside.mean() > 0.2, "but for what the environment clips, it was executed"


def test_the_first_update_finds_the_policy_as_it_acted_and_the_second_does_not(half: Half):
    rollouts = played(half)
    passes = batch_of(half, rollouts)
    inputs = [half.task._inputs_of(passes.batch(step, slice(0, 8))) for step in (2, 3)]
    step = jax.jit(half.task.step)
    state, metrics = step(half.state, inputs[0])
    found = {name: float(mean.value()) for name, mean in metrics.items()}
    assert found["ratio"] == pytest.approx(1, abs=1e-5)
    assert found["approx_kl"] == pytest.approx(0, abs=1e-7)
    assert found["clipped_share"] == 0
    advantage = inputs[0]["advantages"][inputs[0]["valid"].any(axis=1)]
    assert found["ppo_loss"] == pytest.approx(-advantage.mean(), abs=1e-5)
    assert found["gradient_norm"] > 1e-3
    _, metrics = step(state, inputs[0])
    again = {name: float(mean.value()) for name, mean in metrics.items()}
    assert again["approx_kl"] > 100 * abs(found["approx_kl"])
    assert again["ppo_loss"] < found["ppo_loss"], "what was good became likelier"


def test_what_is_seen_in_an_update_is_what_was_seen_in_the_rollout(root: Path, tmp_path: Path):
    """With a camera, and actions relative to the state: the likelihood is the one that was noted."""
    config = make_config(root, tmp_path)
    robot = dataclasses.replace(config.data.robot, relative_dims=(0, 1))
    cameras = {"base_0_rgb": "observation.images.base"}
    data = dataclasses.replace(config.data, robot=robot, cameras=cameras, image_size=(28, 28))
    env = point(max_steps=6, cameras={"base_0_rgb": "agentview_image"})
    half = Half(dataclasses.replace(config, data=data, env=env), tmp_path)
    try:
        rollouts = played(half, 2)
        group = Group(state=0, files=["a", "b"], rollouts=rollouts)
        assert half.config.rollout is not None
        data = training_data(half.data, [group], env, half.config.rollout)
        assert data is not None
        passes = passes_over(data, rollouts, half.config, 2)
        inputs: Any = half.task._inputs_of(passes.batch(3, slice(0, 8)))
        assert inputs["observation"]["images"].std() > 1
        _, metrics = compiled(half.task.step)(half.state, inputs)
        assert float(metrics["ratio"].value()) == pytest.approx(1, abs=1e-5)
        inputs["observation"]["images"] = 255 - inputs["observation"]["images"]
        _, metrics = compiled(half.task.step)(half.state, inputs)
        assert abs(float(metrics["ratio"].value()) - 1) > 1e-2
    finally:
        half.task.finish()


@pytest.mark.long
def test_the_learning_rate_is_scaled_and_frozen_weights_stay(half: Half):
    inputs = half.task._inputs_of(batch_of(half, played(half)).batch(2, slice(0, 8)))
    trains = half.task._trains

    def moved(scale: float) -> Any:
        rollout = half.config.rollout
        assert rollout is not None
        ppo = dataclasses.replace(rollout.ppo, learning_rate_scale=scale)
        config = dataclasses.replace(half.config, rollout=dataclasses.replace(rollout, ppo=ppo))
        optimiser = half.task._optimiser
        state, _ = jax.jit(Ppo(config, half.task.model, trains, optimiser).step)(half.state, inputs)
        assert jax.tree.structure(state.opt_state) == jax.tree.structure(half.state.opt_state)
        return jax.tree.map(lambda new, old: new - old, state.params, half.state.params)

    whole, tenth = moved(1.0), moved(0.1)
    assert float(optax.tree.norm(whole)) > 1e-3
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(tenth), strict=True):
        np.testing.assert_allclose(b, 0.1 * a, atol=3e-7)  # of weights around 1 the rounding
    frozen = [not one for one in jax.tree.leaves(trains)]
    assert any(frozen)
    for stays, change in zip(frozen, jax.tree.leaves(whole), strict=True):
        assert not stays or not np.asarray(change).any()


def test_the_update_for_batches_from_anywhere_is_that_of_a_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    taken: list[Any] = []
    monkeypatch.setattr(Ppo, "step", lambda self, *given: taken.append((self, *given)) or (given[0], {}))
    update = PpoUpdate(make_config(root, tmp_path))
    state = TrainState(step=0, params={}, opt_state={}, target={})
    assert update.step(state, "batch") == (state, {})
    ((ppo, *given),) = taken
    assert given == [state, "batch"]
    assert (ppo._model, ppo._trains) == (update.model, update._trains)


@pytest.mark.long
def test_parts_of_a_batch_make_the_update_of_the_whole(half: Half):
    """Rows 0 to 3 count, of 8: parts of alternate rows have two each, and the mean divides by all four."""
    inputs = half.task._inputs_of(batch_of(half, played(half)).batch(2, slice(0, 8)))
    train = dataclasses.replace(half.config.train, grad_accum_steps=2)
    parted = dataclasses.replace(half.config, train=train)
    assert inputs["valid"].any(axis=1).sum() not in (0, 8)
    task = half.task
    assert task._ppo is not None
    assert_same_update(task._ppo, Ppo(parted, task.model, task._trains, task._optimiser), half.state, inputs, compiled)


def test_updates_without_signal_change_the_step_alone(half: Half):
    batch = half.task._inputs_of({"no_signal": np.ones(8, bool)})
    stacked = jax.tree.map(lambda x: np.stack([x, x]), batch)
    state, metrics = run_updates(half.task.step, half.state, stacked, jnp.int32(2))
    assert metrics == {}
    assert int(state.step) == int(half.state.step) + 2
    before = half.state.replace(step=state.step)
    assert jax.tree.structure(state) == jax.tree.structure(before)
    jax.tree.map(np.testing.assert_array_equal, state, before)


def test_a_round_is_played_with_noise_and_a_batch_before_it_imitates(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    task = RiptTask(config, open_data(config.data), tmp_path)
    assert task.ript is not None
    assert not task.ript.averaged
    try:
        params = random_params(Pi0(config.model))
        assert not is_ppo(next(task.batches(0)))
        acted: list[Any] = []
        collect = task.collector.collect
        task.collector.collect = lambda jobs, actor, done, stopping: (  # pyright: ignore[reportAttributeAccessIssue]
            acted.append(type(actor)) or collect(jobs, actor, done, stopping)
        )
        state = TrainState(step=2, params=params, opt_state={}, target={})
        with pytest.raises(ConfigError, match="every group of the first round ended alike"):
            task.ript.interact(state, 2, lambda: False)  # weights of no meaning never reach the disc
        assert set(acted) == {ExploringPolicy}
        files = sorted((tmp_path / "rollouts").rglob("*.npz"))
        assert {tuple(sorted(load(file).notes)) for file in files} == {(CHAIN, LOG_PROB)}
    finally:
        task.finish()


@pytest.mark.parametrize(("how", "expected"), [("ode", ActingPolicy), ("sde", ExploringPolicy)])
def test_evaluation_is_without_noise_unless_it_is_asked_for(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, expected: type
):
    config = make_config(root, tmp_path, ppo=dataclasses.replace(PPO, evaluate=how))
    task = RiptTask(config, open_data(config.data), tmp_path)
    acted: list[type] = []

    def play(collector: Any, actor: Any, *_: Any, **__: Any) -> Any:
        acted.append(type(actor))
        assert actor.step == 2
        return SimpleNamespace(save=lambda path: None, metrics=dict)

    monkeypatch.setattr(ript, "evaluate", play)
    monkeypatch.setattr(ript, "manifest_of", lambda *_, **__: None)
    task.evaluate(TrainState(step=2, params={"w": np.zeros(2)}, opt_state={}, target={}), final=False)
    task.finish()
    assert acted == [expected]


def test_a_policy_of_such_a_run_takes_as_many_steps_as_its_rollouts(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    assert int(sample_steps(config)) == STEPS
    assert int(sample_steps(dataclasses.replace(config, rollout=None))) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "rejection"}, "rollout.ppo is set and rollout.objective 'rejection', which has no use for it"),
        ({"replay_rounds": 2}, "rollout.replay_rounds is 2 and rollout.objective 'ppo'"),
        ({"dataset_share": 0.5}, "rollout.dataset_share is 0.5 and rollout.objective 'ppo'"),
        (
            {"advantage": dataclasses.replace(ROLLOUT.advantage, clip_value=2.0)},
            "rollout.advantage is .* and rollout.objective 'ppo', which takes advantages as they are",
        ),
    ],
)
def test_settings_without_effect_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ROLLOUT, **change)


@pytest.mark.parametrize("name", ["noise", "sample_steps", "clip", "epochs", "learning_rate_scale"])
def test_ppo_needs_noise_and_steps(name: str):
    zero = type(getattr(PpoConfig(), name))(0)
    with pytest.raises(ValueError, match=rf"PpoConfig\.{name} is {zero}; expected a number above 0"):
        PpoConfig(**{name: zero})


def test_what_would_change_the_likelihood_is_refused(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    guided = small_config(root, tmp_path)
    with pytest.raises(ValueError, match=r"guidance is .* and rollout.objective 'ppo': .* expected None"):
        dataclasses.replace(config, guidance=guided.guidance, model=guided.model)
    with pytest.raises(ValueError, match=r"optim\.method is schedule_free and rollout\.objective 'ppo'"):
        dataclasses.replace(config, optim=OptimConfig(method="schedule_free"))
