import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.saved import flatten
from chunkwise.data.images import resize_with_pad
from chunkwise.data.norm_stats import NormStats
from chunkwise.errors import ConfigError, DataError, MismatchError, NonFiniteError
from chunkwise.policies.bounds import Bounds, OutOfBoundsError
from chunkwise.policies.execution import NOTHING, Committed
from chunkwise.policies.policy import Asked
from openpi_ript.config.model import Optimality
from openpi_ript.data import norm
from openpi_ript.data.dataset import open_data
from openpi_ript.data.point import render
from openpi_ript.model.guidance import guided_sample
from openpi_ript.model.pi0 import Observation, Pi0, encode, velocity
from openpi_ript.policies import policy, saved
from openpi_ript.policies.policy import Policy
from openpi_ript.train import main
from openpi_ript.weights import by_path, save_openpi
from tests.chunkwise.toy import toy_config
from tests.openpi_ript.compilations import compilations
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config, supervised
from tests.openpi_ript.toy_policy import random_params


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("policy")
    with quick_compiling(folder / "cache"):
        yield make_dataset(folder)


@pytest.fixture(scope="module")
def acting(root: Path) -> Policy:
    """A policy with weights that no term of the model is missing from."""
    config = small_config(root, root)
    stats = open_data(config.data).stats
    return Policy(config, random_params(Pi0(config.model)), stats, step=3)


def observation(seed: int = 0) -> dict[str, Any]:
    state = np.random.default_rng(seed).uniform(0.2, 0.8, 2)
    cameras = {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}
    image = {name: render(state, key) for name, key in cameras.items()}
    return {"image": image, "state": state.astype(np.float32), "prompt": "move to the red disc"}


def stacked(*rows: dict[str, Any]) -> dict[str, Any]:
    image = {name: np.stack([row["image"][name] for row in rows]) for name in rows[0]["image"]}
    return {
        "image": image,
        "state": np.stack([row["state"] for row in rows]),
        "prompt": [row["prompt"] for row in rows],
    }


def noise(rows: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 8, 8)).astype(np.float32)


def test_actions_are_absolute_and_in_the_datasets_units(acting: Policy):
    """By hand: the model's chunk times std plus mean, plus the state on the dimensions that are relative."""
    seen = observation()
    got = acting.infer(seen, guidance_scale=2.0, noise=noise()[0])["actions"]
    assert (got.shape, got.dtype) == ((8, 3), np.dtype(np.float32))

    config, model = acting.config, Pi0(acting.config.model)
    stats = open_data(config.data).stats
    state = np.zeros((1, 4), np.float32)
    state[0, :2] = (seen["state"] - stats["state"].mean) / (stats["state"].std + 1e-6)
    images = {name: image[None] for name, image in seen["image"].items()}
    inputs: Any = acting._inputs.observation(images, state, [seen["prompt"]])

    @jax.jit
    def sample(params: Any, observed: Observation) -> jax.Array:
        context = encode(model, params, observed)
        return guided_sample(model, params, context, jnp.asarray(noise()), scale=2.0, steps=4)

    chunk = np.asarray(sample(acting._params, Observation(**inputs)))[0, :, :3]
    expected = chunk * (stats["actions"].std + 1e-6) + stats["actions"].mean
    expected[:, :2] += seen["state"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_chunk_is_completed_from_what_is_committed(acting: Policy):
    """The sampler step by step, in openpi's time: what is committed is made relative and normalised by hand."""
    seen, model, data = observation(), Pi0(acting.config.model), open_data(acting.config.data)
    state, stats = seen["state"], data.stats
    wanted = acting.infer(seen, noise=noise()[0] + 1)["actions"][:3]
    weights = np.array([1, 1, 0.5], np.float32)
    got = acting.infer(seen, noise=noise(), committed=Committed(actions=wanted, weights=weights))["actions"]

    relative = wanted.copy()
    relative[:, :2] -= state
    width = acting.config.model.action_dim
    goal, weight = np.zeros((1, 8, width), np.float32), np.zeros((1, 8, width), np.float32)
    goal[0, :3, :3] = (relative - stats["actions"].mean) / (stats["actions"].std + 1e-6)
    weight[0, :3, :3] = weights[:, None]
    prepared = acting.prepare(seen, noise=noise())
    inputs = jax.tree.map(jnp.asarray, prepared.inputs["observation"])
    context = jax.jit(encode, static_argnums=0)(model, acting._params, Observation(**inputs))

    @jax.jit
    def step(x: jax.Array, time: Any) -> jax.Array:
        def under(x: jax.Array) -> jax.Array:
            v = [
                velocity(model, acting._params, context, x, time[None], jnp.array([c]))
                for c in (Optimality.NONE, Optimality.POSITIVE)
            ]
            return -2.0 * v[0] + 3.0 * v[1]  # guidance.scale is 3

        end, pull_back = jax.vjp(lambda x: x - time * under(x), x)
        (correction,) = pull_back(weight * (goal - end))
        scale = jnp.where(time == 1, 5.0, jnp.minimum(5.0, (time**2 + (1 - time) ** 2) / (time * (1 - time) + 1e-12)))
        return x - (under(x) - scale * correction) / 4

    x = jnp.asarray(noise())
    for i in range(4):
        x = step(x, jnp.float32(1 - i / 4))
    expected = np.asarray(x)[0, :, :3] * (stats["actions"].std + 1e-6) + stats["actions"].mean
    expected[:, :2] += state
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    free = acting.infer(seen, noise=noise())["actions"]
    assert np.abs(got[:2] - wanted[:2]).mean() < 0.5 * np.abs(free[:2] - wanted[:2]).mean()
    np.testing.assert_allclose(acting.infer(seen, noise=noise(), committed=NOTHING)["actions"], free, atol=1e-4)
    with pytest.raises(DataError, match="committed: expected what is committed in 2 rows, found 1"):
        acting.infer(stacked(seen, seen), committed=[NOTHING])


def test_a_batch_gives_what_its_rows_give(acting: Policy):
    rows = [observation(seed) for seed in range(2)]
    rows[1]["prompt"] = "move to the blue disc"
    start = noise(2)
    together = acting.infer(stacked(*rows), noise=start)["actions"]
    assert together.shape == (2, 8, 3)
    for row, alone in enumerate(rows):
        np.testing.assert_allclose(together[row], acting.infer(alone, noise=start[row])["actions"], atol=1e-4)
    shared = acting.infer({**stacked(*rows), "prompt": rows[0]["prompt"]}, noise=start)["actions"]
    np.testing.assert_allclose(shared[0], together[0], atol=1e-6)
    assert np.abs(shared[1] - together[1]).max() > 1e-4, "the prompt matters"


def test_the_scale_is_the_configs_unless_one_is_given(acting: Policy):
    seen, start = observation(), noise()[0]
    default = acting.infer(seen, noise=start)["actions"]
    np.testing.assert_array_equal(default, acting.infer(seen, noise=start, guidance_scale=3.0)["actions"])
    assert np.abs(default - acting.infer(seen, noise=start, guidance_scale=0.0)["actions"]).max() > 1e-4
    for scale in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="expected a number of 0 or above"):
            acting.infer(seen, guidance_scale=scale)
    for entry in ("guidance_scale", "seed"):  # which a server takes from a message
        with pytest.raises(DataError, match=rf"found {entry}, .*; expected infer\(observation, {entry}=\.\.\.\)"):
            acting.infer(seen | {entry: 1.0})


def test_it_compiles_once_for_each_number_of_rows(root: Path, monkeypatch: pytest.MonkeyPatch):
    config = small_config(root, root)
    fresh = Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats)
    traced = []

    def counted(*arguments: Any) -> Any:
        traced.append(arguments)
        return encode(*arguments)

    monkeypatch.setattr(policy, "encode", counted)
    for scale in (0.0, 1.0, 3.0):
        fresh.infer(observation(), guidance_scale=scale)
    assert len(traced) == 1


def test_after_compile_nothing_compiles_and_a_row_depends_on_no_other(root: Path):
    """Rows are filled up to the next size, or answered in parts; what stands beside a row, and where it stands, changes
    no bit of it. Between programs of different sizes float32 rounds differently."""
    config = small_config(root, root)
    ready = Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats)
    ready.compile([4, 2])
    rows = [ready.prepare(observation(seed), guidance_scale=float(seed), draw=(seed,)) for seed in range(7)]
    with compilations() as counted:
        alone = [ready.act([row] * 3)[0] for row in rows]
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [6, 0, 5], [4, 4, 6, 0]):
            for row, chunk in zip(order, ready.act([rows[i] for i in order]), strict=True):
                np.testing.assert_array_equal(chunk, alone[row])
        pair = ready.act([rows[1]])[0]
        np.testing.assert_array_equal(ready.act([rows[5], rows[1]])[1], pair)
        np.testing.assert_allclose(pair, alone[1], rtol=0, atol=1e-4)
        # Seven rows at once: four, and three more.
        for row, chunk in enumerate(ready.act(rows)):
            np.testing.assert_array_equal(chunk, alone[row])
        batch = ready.prepare(stacked(*(observation(seed) for seed in range(3))), noise=noise(3))
        together = ready.finish(batch, ready.act([rows[6], batch])[1])["actions"]
        ready.infer(observation())
    assert counted == []
    for row in range(3):
        single = ready.prepare(observation(row), noise=noise(3)[row])
        np.testing.assert_array_equal(together[row], ready.finish(single, ready.act([single] * 4)[0])["actions"])


def test_real_time_chunking_is_compiled_ahead_where_it_is_asked_for(root: Path):
    config = small_config(root, root)
    ready = Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats)
    ready.compile([1], realtime=True)
    known = Committed(actions=np.zeros((2, 3), np.float32), weights=np.ones(2, np.float32))
    with compilations() as counted:
        for committed in (NOTHING, known):
            ready.infer(observation(), committed=committed)
    assert counted == []


def test_compilations_are_counted():
    with compilations() as counted:
        jax.jit(lambda x: x * 3.5)(np.ones(17, np.float32))
    assert any("backend_compile" in event for event in counted)


def test_actions_that_are_not_finite_are_no_answer(acting: Policy):
    prepared = acting.prepare(stacked(observation(0), observation(1)))
    chunk = np.zeros((2, 8, 8), np.float32)
    assert acting.finish(prepared, chunk)["actions"].shape == (2, 8, 3)
    for value in (np.nan, np.inf, -np.inf):
        chunk[1, 5, 2] = value
        message = f"actions: expected finite numbers, found {value} at step 5, dimension 2 of row 1; no action is sent"
        with pytest.raises(NonFiniteError, match=message):
            acting.finish(prepared, chunk)
    chunk[1, 5, 2] = 0
    far = dataclasses.replace(acting.prepare(observation(0)), raw_state=np.array([[3.4e38, 0]], np.float32))
    chunk[0, 4, 0] = 3e38  # finite, until the state is added
    with pytest.raises(NonFiniteError, match="found inf at step 4, dimension 0; no action is sent"):
        acting.finish(far, chunk[:1])
    chunk[0, 4, 0] = 0
    chunk[0, 0, 3] = np.nan  # beyond the robot's three dimensions
    assert np.isfinite(acting.finish(prepared, chunk)["actions"]).all()


def test_bounds_by_hand():
    stats = NormStats(mean=np.zeros(3), std=np.ones(3), q01=np.array([-1.0, 0.0, 2.0]), q99=np.array([1.0, 4.0, 2.0]))
    bounds = Bounds.of(stats, "clip", margin=0.5, width=3)
    # Ranges 2, 4, and the floor of 0.001 for what never moved.
    assert bounds.low.tolist() == [-2.0, -2.0, 1.9995]
    assert bounds.high.tolist() == [2.0, 6.0, 2.0005]
    inside = np.array([[[-2.0, 6.0, 2.0]], [[2.0, -2.0, 2.0]]], np.float32)
    actions, clipped = bounds.apply(inside)
    np.testing.assert_array_equal(actions, inside)
    assert clipped.tolist() == [0, 0]
    outside = inside + np.array([[[0.0, 0.25, 0.0]], [[0.5, -1.0, 0.0]]], np.float32)
    actions, clipped = bounds.apply(outside)
    np.testing.assert_array_equal(actions, inside)
    assert clipped.tolist() == [1, 2]
    refusing = Bounds.of(stats, "refuse", margin=0.5, width=3)
    np.testing.assert_array_equal(refusing.apply(inside)[0], inside)
    with pytest.raises(OutOfBoundsError, match=r"expected -2 to 6 in dimension 1.*found 6.25 at step 0 of row 0"):
        refusing.apply(outside)
    unknown = dataclasses.replace(stats, q01=np.full(3, np.nan))
    for bad in (None, unknown):
        with pytest.raises(ConfigError, match="expected q01 and q99 of 3 action dimensions"):
            Bounds.of(bad, "clip", margin=0.5, width=3)
    for margin in (-0.1, np.nan):
        with pytest.raises(ConfigError, match="--bounds-margin"):
            Bounds.of(stats, "clip", margin=margin, width=3)


def test_bounds_hold_relative_actions_before_they_become_absolute(root: Path):
    config = small_config(root, root)
    stats = open_data(config.data).stats
    bounded = Policy(config, {}, stats)
    assert bounded.metadata["bounds"] is None
    bounded.bound("clip", margin=0.0)
    low, high = stats["actions"].q01, stats["actions"].q99
    metadata = {"mode": "clip", "low": low.tolist(), "high": high.tolist(), "relative_dims": [0, 1]}
    assert bounded.metadata["bounds"] == metadata
    prepared = bounded.prepare(observation())
    chunk = np.full((1, 8, 8), 1e4, np.float32)
    chunk[0, 0] = -1e4
    answer = bounded.finish(prepared, chunk)
    state = np.append(observation()["state"], 0.0)
    np.testing.assert_allclose(answer["actions"][0], low + state, rtol=1e-6)
    np.testing.assert_allclose(answer["actions"][1], high + state, rtol=1e-6)
    assert answer["clipped"] == 24
    for value in (np.inf, np.nan):  # no bound makes an action of it
        chunk[0, 3, 1] = value
        with pytest.raises(NonFiniteError, match="step 3, dimension 1"):
            bounded.finish(prepared, chunk)
    chunk[0, 3, 1] = 0
    bounded.bound("refuse", margin=0.0)
    with pytest.raises(OutOfBoundsError, match="no action is sent"):
        bounded.finish(prepared, chunk)


def test_noise_differs_between_calls_and_follows_the_seed(acting: Policy):
    config, stats = acting.config, open_data(acting.config.data).stats
    one, same, other = (Policy(config, acting._params, stats, seed=seed) for seed in (1, 1, 2))
    for each in (one, same, other):
        each._sample = acting._sample  # compiled already
    first, second = (one.infer(observation())["actions"] for _ in range(2))
    assert np.abs(first - second).max() > 1e-4
    np.testing.assert_array_equal(same.infer(observation())["actions"], first)
    assert np.abs(other.infer(observation())["actions"] - first).max() > 1e-4


def test_every_row_of_a_request_has_noise_of_its_own_numbers(acting: Policy):
    """By seed, draw and row; where no draw is given, by the number of the call."""
    ready = Policy(acting.config, {}, open_data(acting.config.data).stats, seed=9)
    rows = stacked(*(observation(seed) for seed in range(3)))

    def expected(*draw: int, high: tuple[int, ...] = ()) -> list[np.ndarray]:
        rngs = [np.random.default_rng([9, len(draw), *draw, row, *high]) for row in range(3)]
        return [rng.standard_normal((8, 8), np.float32) for rng in rngs]

    asked = [((1, 2), (1, 2)), ((2, 1), (2, 1)), ((1,), (1,)), (None, (1,)), (None, (2,)), ((), ())]
    drawn = []
    for given, used in asked:
        found = ready.prepare(rows, draw=given).inputs["noise"]
        np.testing.assert_array_equal(found, expected(*used))
        drawn += list(found) if given is not None else []
    assert len({row.tobytes() for row in drawn}) == 3 * 4
    np.testing.assert_array_equal(ready.prepare(observation(), draw=(1, 2)).inputs["noise"], expected(1, 2)[:1])
    again = Policy(acting.config, {}, open_data(acting.config.data).stats, seed=3)
    begun = again.prepare(rows).inputs["noise"]
    again.reset()
    np.testing.assert_array_equal(again.prepare(rows).inputs["noise"], begun, "its seed stays")
    again.reset(seed=9)
    np.testing.assert_array_equal(again.prepare(rows, draw=(1, 2)).inputs["noise"], expected(1, 2), "and is replaced")
    again.reset(seed=2**33 + 9)
    found = again.prepare(rows, draw=(1, 2)).inputs["noise"]
    np.testing.assert_array_equal(found, expected(1, 2, high=(2,)), "all bits of it count")
    wrong: Any = 3
    with pytest.raises(ConfigError, match=r"^draw is 3; expected a tuple of numbers"):
        ready.prepare(rows, draw=wrong)
    with pytest.raises(DataError, match=r"^observation: expected a dict of entries, found int$"):
        ready.prepare(wrong)


def test_images_of_any_size_and_either_layout(acting: Policy):
    seen, start = observation(), noise()[0]
    wide = np.random.default_rng(3).integers(0, 256, (30, 60, 3)).astype(np.uint8)
    seen["image"]["base_0_rgb"] = resize_with_pad(wide, 28, 28)
    expected = acting.infer(seen, noise=start)["actions"]
    for image in (wide, wide.transpose(2, 0, 1)):
        seen["image"]["base_0_rgb"] = image
        np.testing.assert_array_equal(acting.infer(seen, noise=start)["actions"], expected)
    seen["image"]["base_0_rgb"] = None
    off = acting.infer(seen, noise=start)["actions"]
    assert np.abs(off - expected).max() > 1e-5
    seen["image"]["left_wrist_0_rgb"] = None
    assert np.isfinite(acting.infer(seen, noise=start)["actions"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": np.zeros(3, np.float32)}, r"state: expected 2 numbers, or a batch of them, found float32 \[3\]"),
        ({"state": np.array([0.1, np.nan])}, "state: expected finite numbers, found nan at entry 1"),
        (
            {"state": np.array([3e38, 0.5], np.float32)},
            r"state: expected at most 1e\+06 after normalising, found 3e\+38 at entry 0, which is inf normalised",
        ),
        ({"prompt": "go " * 4000}, "prompt: expected at most 10000 characters, found 12000"),
        ({"state": np.array(["a", "b"])}, "state: expected 2 numbers"),
        ({"prompt": ""}, "prompt: expected the task in words"),
        ({"prompt": ["a", "b"]}, "prompt: expected text, found list"),
        ({"prompt": None}, "prompt: expected text, found NoneType"),
        ({"prompt": 5}, "prompt: expected text, found int '5'"),
        ({"prompt": b"go"}, "prompt: expected text, found bytes"),
        ({"prompt": " "}, "prompt: expected the task in words"),
        ({"state": [[0.1], [0.1, 0.2]]}, "state: expected an array"),
        ({"state": [1e300, 0.0]}, r"state: expected finite numbers, found 1e\+300 at entry 0"),
        ({"image": {1: 2, "a": 3}}, r"image: expected a dict with .* found \['1', 'a'\]"),
        ({"image": {}}, r"image: expected a dict with \['base_0_rgb', 'left_wrist_0_rgb'\]"),
        ({"image": np.zeros((28, 28, 3), np.uint8)}, "found ndarray"),
    ],
)
def test_a_bad_observation_is_refused(acting: Policy, change: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        acting.infer(observation() | change)


def test_bad_images_noise_and_missing_entries_are_refused(acting: Policy):
    floats = observation()
    floats["image"]["base_0_rgb"] = floats["image"]["base_0_rgb"] / 255
    with pytest.raises(DataError, match=r"image base_0_rgb: expected uint8 in 0\.\.255, found float64 in 0\."):
        acting.infer(floats)
    flat = observation()
    flat["image"]["base_0_rgb"] = np.zeros((28, 28), np.uint8)
    with pytest.raises(DataError, match=r"expected one image \[h, w, 3\], found uint8 \[28, 28\]"):
        acting.infer(flat)
    flat["image"]["base_0_rgb"] = np.zeros((0, 28, 3), np.uint8)
    with pytest.raises(DataError, match=r"expected \[height, width, 3\], found shape \(0, 28, 3\)"):
        acting.infer(flat)
    flat["image"]["base_0_rgb"] = [[1], [1, 2]]
    with pytest.raises(DataError, match="image base_0_rgb: expected an array"):
        acting.infer(flat)
    with pytest.raises(DataError, match="found nan at entry 0 of row 1"):
        acting.infer(stacked(observation(), observation() | {"state": np.array([np.nan, 0.5], np.float32)}))
    with pytest.raises(DataError, match=r"noise: expected shape \[1, 8, 8\], found \[8, 3\]"):
        acting.infer(observation(), noise=np.zeros((8, 3), np.float32))
    with pytest.raises(DataError, match=r"state: expected it in the observation, found \['image'\]"):
        acting.infer({"image": observation()["image"]})


def test_a_policy_without_guidance_takes_no_scale(root: Path):
    config = supervised(small_config(root, root))
    plain = Policy(config, random_params(Pi0(config.model)), open_data(config.data).stats)
    assert plain.infer(plain.example())["actions"].shape == (8, 3)
    assert plain.metadata["guidance_scale"] is None
    with pytest.raises(ConfigError, match="trained without guidance"):
        plain.infer(plain.example(), guidance_scale=3.0)


def test_a_runs_folder_holds_the_whole_policy(root: Path, tmp_path: Path):
    """The newest whole checkpoint, its moving average, statistics and config; nothing in the folder changes."""
    config = small_config(root, tmp_path / "run")
    main(config, "test")
    run = tmp_path / "run"
    before = sorted(str(path) for path in run.rglob("*"))
    loaded = Policy.from_checkpoint(run)
    assert dataclasses.replace(loaded.config, tokenizer=config.tokenizer) == config
    assert loaded.metadata["step"] == 6
    assert sorted(str(path) for path in run.rglob("*")) == before
    assert np.isfinite(loaded.infer(loaded.example())["actions"]).all()

    step, params = saved.read_run_weights(run, config)
    plain = dataclasses.replace(config, train=dataclasses.replace(config.train, ema_decay=None))
    latest = by_path(saved.read_run_weights(run, plain)[1])
    average = by_path(params)
    assert step == 6
    frozen = [name for name in latest if name.startswith("PaliGemma/llm/embedder")]
    assert frozen
    for name in frozen:
        np.testing.assert_array_equal(average[name], latest[name])
    assert np.abs(np.asarray(average["action_out_proj/kernel"] - latest["action_out_proj/kernel"])).max() > 1e-4

    # Moved to a machine that has neither dataset nor tokenizer, it acts as before.
    actions = loaded.infer(loaded.example(), noise=noise()[0])["actions"]
    lost = dataclasses.replace(config, tokenizer="nowhere/tokenizer.model")
    (run / "config.json").write_text(json.dumps(flatten(lost)))
    moved = Policy.from_checkpoint(run.rename(tmp_path / "moved"))
    np.testing.assert_array_equal(moved.infer(moved.example(), noise=noise()[0])["actions"], actions)
    run = tmp_path / "moved"

    for name in (saved.NORM_STATS, saved.TOKENIZER):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole + b"\n")
        with pytest.raises(MismatchError, match=rf"{name} is not the file that the checkpoint of step 6 was made with"):
            Policy.from_checkpoint(run)
        (run / name).write_bytes(whole)

    shutil.rmtree(run / "checkpoints/6/state")
    assert Policy.from_checkpoint(run).step == 4
    assert (run / "checkpoints/6").exists(), "a reader moves nothing"
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(DataError, match="expected a checkpoint of a run, found none"):
        Policy.from_checkpoint(run)
    with pytest.raises(ConfigError, match="is a run and has its own config"):
        Policy.from_checkpoint(run, config=config)
    (run / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"train is missing"):
        Policy.from_checkpoint(run)
    older = {name: value for name, value in flatten(config).items() if name not in ("data.init_key", "train.ema_decay")}
    (run / "config.json").write_text(json.dumps(older))  # of a run from before these fields existed
    assert saved.read_config(run).data.init_key is None
    assert saved.read_config(run).model == config.model


def test_an_openpi_checkpoint_needs_a_config(root: Path, tmp_path: Path):
    config = supervised(small_config(root, root))
    params = random_params(Pi0(config.model))
    folder = tmp_path / "checkpoint"
    save_openpi(params, folder / "params", as_training_run=True)
    with pytest.raises(ConfigError, match="need a config"):
        Policy.from_checkpoint(folder)
    with pytest.raises(DataError, match="below its assets, found none"):
        Policy.from_checkpoint(folder, config=config)
    data = open_data(config.data)
    norm.save_stats(folder / "assets/own/robot/norm_stats.json", data.stats, data.stats_source)
    expected = Policy(config, params, data.stats).infer(observation(), noise=noise()[0])["actions"]
    for place in (folder, folder / "params"):
        loaded = Policy.from_checkpoint(place, config=config)
        np.testing.assert_allclose(loaded.infer(observation(), noise=noise()[0])["actions"], expected, atol=1e-5)
    norm.save_stats(folder / "assets/two/norm_stats.json", data.stats, data.stats_source)
    with pytest.raises(ConfigError, match="set it to one of them"):
        Policy.from_checkpoint(folder, config=config)


def test_a_config_of_another_package_is_refused_before_a_file_is_read(tmp_path: Path):
    config = toy_config(tmp_path / "run")
    asked = Asked(folder=tmp_path / "none", config=config, checkpoint="newest", seed=0, allow_code=None, dtype=None)
    with pytest.raises(ConfigError, match=r"^config: expected one of openpi_ript, found ToyConfig$"):
        policy.load(asked)
