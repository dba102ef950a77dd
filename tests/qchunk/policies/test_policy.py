"""A run's policy: what evaluation asked is what is loaded and served; by hand; what is refused."""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import qchunk.train
from chunkwise.checkpoint.reader import read_arrays
from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.data import norm_stats
from chunkwise.data.images import decode, decode_jpeg_into, encode_jpeg, resize_into
from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs.evaluate import Evaluation
from chunkwise.errors import ConfigError, DataError, MismatchError
from chunkwise.policies import export, runner
from chunkwise.policies.execution import NOTHING, Committed
from chunkwise.policies.load import load_policy
from chunkwise.policies.policy import Policy
from chunkwise.policies.recorded_images import shrunk_of, sizes_of
from qchunk import evaluate
from qchunk.agents.base import Agent
from qchunk.agents.make import make_agent
from qchunk.config import EncoderConfig, EvalConfig, GaussianConfig, QChunkConfig
from qchunk.data.dataset import Dims
from qchunk.envs.simulators import View
from qchunk.policies.policy import QChunkPolicy, dims_json, read_dims
from tests.chunkwise.policies.serving import ask, client, read, running
from tests.qchunk import image_recordings as recorded
from tests.qchunk import recordings

ACTION, STATE = recordings.ACTION, recordings.STATE
CAMERAS, SIZE = ("cam_left_wrist", "cam_high"), (9, 12)
SEEDS = np.array([5, 2**32 - 1, 5], np.uint32)
ENCODER = EncoderConfig(widths=(4,), blocks=1, feature_size=4)


def config_of(root: Path, run: Path, *, agent: dict[str, Any], images: bool) -> QChunkConfig:
    """Six updates; an evaluation at the end, of which the tests play none."""
    seen = {"cameras": CAMERAS, "image_size": SIZE} if images else {}
    base = recordings.config(
        root, observation="state", action_norm="quantile", observation_norm="mean_std", batch=4, horizon=3, **seen
    )
    small = {"hidden_sizes": (16,), "flow_steps": 2, "num_samples": 4, "encoder": ENCODER if images else None}
    return dataclasses.replace(
        base,
        run=dataclasses.replace(base.run, dir=str(run)),
        train=TrainConfig(steps=6, batch_size=4, ema_decay=0.5),
        agent=dataclasses.replace(base.agent, **(small | agent)),
        eval=EvalConfig(env="none", videos=0),
        checkpoint=CheckpointConfig(every=3),
    )


def shown(rows: int) -> dict[str, np.ndarray]:
    """What a simulator would show, in its own units."""
    rng = np.random.default_rng(5)
    return {
        "qpos": rng.normal(size=(rows, recordings.QPOS)).astype(np.float32),
        "state": rng.normal(size=(rows, STATE)).astype(np.float32),
        "images": rng.integers(0, 256, (rows, len(CAMERAS), *SIZE, 3)).astype(np.uint8),
    }


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, *, images: bool = False, **agent: Any) -> list[np.ndarray]:
    """Trains; returns what the run's evaluation was answered, for the policy and then for behaviour cloning."""
    root = folder / "data"
    for number in range(4):
        recorded.write_episode(root / f"episode_{number}.hdf5", 9, number, success=number % 2 == 0)
    answers: list[np.ndarray] = []

    def evaluate(policy: Any, *_: Any, **settings: Any) -> Any:
        answers.append(policy(shown(3), SEEDS))
        return types.SimpleNamespace(metrics=lambda name: {f"{name}/success": 0.0}, save=lambda file: None)

    monkeypatch.setattr(qchunk.train, "evaluate", evaluate)
    monkeypatch.setattr(qchunk.train, "require_fit", lambda *_: None)
    monkeypatch.setattr(qchunk.train.simulators, "require_images", lambda *_: None)
    monkeypatch.setattr(qchunk.train.run_summary, "draw", lambda *_: "none")
    qchunk.train.main(config_of(root, folder / "run", agent=agent, images=images), "test")
    return answers


def observation(rows: int | None = None, *, images: bool = True) -> dict[str, Any]:
    """The same as `shown`, as a robot sends it; without an axis of rows by default."""
    seen = shown(rows or 1)
    of = slice(None) if rows else 0
    by_name = {name: seen["images"][of, k] if rows else seen["images"][0, k] for k, name in enumerate(CAMERAS)}
    return {"state": seen["state"][of]} | ({"image": dict(reversed(by_name.items()))} if images else {})


AGENTS = {
    "QC-FQL with cameras": ({}, True),
    "QC": ({"policy": "best_of_n"}, False),
    "QAM": ({"policy": "adjoint_matching"}, False),
    "QC-RLPD": ({"policy": "gaussian", "gaussian": GaussianConfig(bc_weight=0.01)}, False),
}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    """The folder of a run with cameras, and what its policies answered in its evaluation."""
    folder = tmp_path_factory.mktemp("policy")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return folder, trained(folder, monkeypatch, images=True)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "QC-FQL with cameras" else pytest.mark.long) for name in AGENTS],
)
def test_what_evaluation_asked_is_what_is_loaded_and_served(
    name: str, seeing: tuple[Path, list[np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    agent, images = AGENTS[name]
    folder, answers = seeing if images else (tmp_path, trained(tmp_path, monkeypatch, images=False, **agent))
    policy = load_policy(folder / "run")
    assert (policy.step, policy.spec.actions.shape) == (6, (3, ACTION))
    units = policy.spec.observation["state"].unit, policy.spec.actions.unit
    assert units == ("as recorded in /observations/state", "as recorded in /action")
    acted = policy.infer(observation(3, images=images), seeds=SEEDS)
    np.testing.assert_array_equal(acted["actions"], answers[0])
    assert answers[0].std(axis=0).max() > 1e-3, "rows differ"
    assert (len(answers) == 2) == (name != "QC-RLPD"), "behaviour cloning too, where there is a flow"
    if len(answers) == 2:
        assert np.abs(answers[1] - answers[0]).max() > 1e-3

    with running(policy) as port, client(port) as connection:
        metadata = read(connection.recv())
        assert metadata["spec"] == policy.spec.plain()
        assert metadata["cameras"] == list(CAMERAS if images else ())
        one = observation(images=images)
        for count in range(2):
            answer = ask(connection, one)
            np.testing.assert_array_equal(answer["actions"], policy.infer(one, draw=(0, count))["actions"])
        assert ask(connection, one | {"state": np.full(STATE, np.nan)}).startswith("state: expected finite numbers")
        assert ask(connection, observation(2, images=images))["actions"].shape == (2, 3, ACTION)


@pytest.fixture(scope="module")
def run(seeing: tuple[Path, list[np.ndarray]]) -> Path:
    return seeing[0] / "run"


@pytest.fixture(scope="module")
def loaded(run: Path) -> QChunkPolicy:
    policy = load_policy(run)
    assert isinstance(policy, QChunkPolicy)
    return policy


def test_actions_by_hand(run: Path, loaded: QChunkPolicy):
    """The moving average of the weights on the normalised state and resized images, undone to the robot's units."""
    stats = json.loads((run / "norm_stats.json").read_text())["norm_stats"]
    big = np.random.default_rng(0).integers(0, 256, (2, 24, 32, 3)).astype(np.uint8)
    state = np.linspace(-1, 1, STATE).astype(np.float32)
    found = loaded.infer({"state": state, "image": dict(zip(CAMERAS, big, strict=True))}, draw=(4,))["actions"]

    normal = (state - np.array(stats["state"]["mean"])) / np.array(stats["state"]["std"])
    small = np.zeros((2, *SIZE, 3), np.uint8)
    for k in range(2):  # the recordings are JPEGs of 24 x 32
        decode_jpeg_into(encode_jpeg(big[k], quality=95), small[k], source="")
    seen = {"state": normal[None].astype(np.float32), "images": small[None]}
    latest = read_arrays(run / "checkpoints/6")
    ema: dict[str, Any] = {}
    for name, leaf in latest.items():
        if name.startswith("ema/"):
            _, *parents, last = name.split("/")
            functools.reduce(lambda inner, parent: inner.setdefault(parent, {}), parents, ema)[last] = leaf
    key = jax.random.key(seed_of(Purpose.SERVED_ACTION, 0, 1, 4, 0))
    chunk = np.asarray(jax.jit(loaded.agent.act)(ema, seen, key))[0]
    q01, q99 = np.array(stats["actions"]["q01"]), np.array(stats["actions"]["q99"])
    np.testing.assert_allclose(found, (chunk + 1) / 2 * (q99 - q01) + q01, atol=1e-5)
    kernel = next(name for name in latest if name.startswith("params/onestep") and name.endswith("kernel"))
    assert np.abs(latest[kernel] - latest[kernel.replace("params/", "ema/", 1)]).max() > 1e-5


def test_a_robots_images_are_shrunk_as_the_recorded_jpegs_were(seeing: tuple[Path, list[np.ndarray]], tmp_path: Path):
    """At 9 x 12 of 24 x 32, three eighths: libjpeg leaves out what the mean of an area has. Of a camera of raw images,
    and by a run of an earlier version, images are resized whole."""
    run = shutil.copytree(seeing[0] / "run", tmp_path / "run")
    sizes = {camera: [24, 32] for camera in CAMERAS}
    assert json.loads((run / "images.json").read_text()) == {"shrunk_jpegs": list(CAMERAS), "recorded_sizes": sizes}
    policy = load_policy(run)
    assert isinstance(policy, QChunkPolicy)
    assert "; recorded at 24 x 32, height x width" in policy.spec.observation["image/cam_high"].meaning
    assert policy.exportable().order == {"images": CAMERAS}, "that of data.cameras, which are not sorted"
    with pytest.warns(UserWarning, match="camera cam_high: images of 18 x 32 .* the recordings have 24 x 32"):
        policy.resized("cam_high", np.zeros((18, 32, 3), np.uint8))
    frames = recorded.scene(9, 5)
    jpegs = recorded.encode(frames)
    decoded = [decode(jpeg, source="") for jpeg in jpegs]
    for camera in CAMERAS:
        found, taught, whole = (np.zeros((len(frames), *SIZE, 3), np.uint8) for _ in range(3))
        for k, (jpeg, shown) in enumerate(zip(jpegs, decoded, strict=True)):
            found[k] = policy.resized(camera, shown)
            decode_jpeg_into(jpeg, taught[k], source="")
            resize_into(shown, whole[k])
        assert apart(found, taught) < 0.25 * apart(whole, taught)
        np.testing.assert_array_equal(policy.resized("cam_right_wrist", decoded[-1]), whole[-1])
    before = shutil.copytree(run, tmp_path / "before")
    (before / "images.json").unlink()
    assert shrunk_of(run, ()) == CAMERAS
    assert shrunk_of(before, CAMERAS) == (), "has saves, and nothing is known of its images"
    assert shrunk_of(tmp_path, CAMERAS[:1]) == CAMERAS[:1], "begins"
    assert sizes_of(before, {"cam_high": (24, 32)}) == {}
    assert sizes_of(tmp_path, {"cam_high": (24, 32)}) == {"cam_high": (24, 32)}
    with pytest.raises(MismatchError, match=r"images\.json is not the file that the checkpoint of step 6"):
        load_policy(before)
    (run / "images.json").write_text('{"shrunk_jpegs": "top"}')
    with pytest.raises(DataError, match=r"images\.json: expected shrunk_jpegs, a list of cameras, found 'top'"):
        load_policy(run)


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Mean distance of pixels."""
    return float(np.abs(one.astype(int) - other).mean())


def test_draws_are_by_call_seed_and_row(run: Path, loaded: QChunkPolicy):
    one, rows = observation(), observation(3)
    loaded.reset(seed=0)
    first, second = (loaded.infer(one)["actions"] for _ in range(2))
    assert np.abs(first - second).max() > 1e-4
    loaded.reset()
    np.testing.assert_array_equal(loaded.infer(one)["actions"], first)
    assert np.abs(load_policy(run, seed=1).infer(one)["actions"] - first).max() > 1e-4
    assert np.abs(load_policy(run, seed=2**32).infer(one)["actions"] - first).max() > 1e-4, "all bits count"
    for seed in (-1, 2**63, 1.5, True):
        with pytest.raises(ConfigError, match=r"expected a whole number, 0 to 2\^63 - 1"):
            loaded.reset(seed)  # pyright: ignore[reportArgumentType]
    listed = loaded.infer(rows, draw=[(9,), None, (9,)])["actions"]
    placed = loaded.infer(
        {**rows, "state": np.roll(rows["state"], 1, 0), "image": _rolled(rows)}, draw=[None, (9,), ()]
    )
    np.testing.assert_array_equal(listed[0], placed["actions"][1])
    with pytest.raises(DataError, match="draw: expected the numbers of 3 rows, found those of 1"):
        loaded.infer(rows, draw=[(9,)])
    with pytest.raises(ConfigError, match="guidance_scale: expected an option of this policy: seed, seeds, committed"):
        loaded.infer(one, guidance_scale=2.0)
    asked = [loaded.infer(one, seed=float(seed))["actions"] for seed in (7, 7, 8)]  # as the server hands it on
    np.testing.assert_array_equal(asked[0], asked[1])
    np.testing.assert_array_equal(asked[0], loaded.infer(one, seeds=np.array([7], np.uint32))["actions"])
    assert np.abs(asked[2] - asked[0]).max() > 1e-4
    for seed, many in ((-1, one), (2**32, one), (0.5, one), (7, rows)):
        with pytest.raises(DataError, match="seed: expected a whole number of 0 to 2"):
            loaded.infer(many, seed=seed)


def _rolled(rows: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.roll(stack, 1, 0) for name, stack in rows["image"].items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": np.zeros(STATE + 1)}, rf"state: expected {STATE} numbers, or a batch of them, found float64 \[10\]"),
        ({"state": np.full(STATE, np.inf)}, "state: expected finite numbers, found inf at entry 0"),
        ({"state": np.full(STATE, 1e30)}, r"state: expected at most 1e\+06 after normalising"),
        ({"state": np.array(["a"] * STATE)}, f"state: expected {STATE} numbers"),
        ({"image": {"cam_high": np.zeros((4, 4, 3), np.uint8)}}, r"image: expected a dict with \['cam_left_wrist'"),
        (
            {"image": dict.fromkeys(CAMERAS)},
            r"cam_left_wrist: expected one image \[h, w, 3\], found NoneType None",
        ),
        ({"image": dict.fromkeys(CAMERAS, np.zeros((4, 4, 3)))}, "image cam_left_wrist: expected uint8 in 0..255"),
        ({"image": dict.fromkeys(CAMERAS, np.zeros((4, 4), np.uint8))}, r"expected one image \[h, w, 3\]"),
    ],
)
def test_a_bad_observation_is_refused_by_name(loaded: QChunkPolicy, change: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        loaded.infer(observation() | change)


def test_each_row_draws_what_it_would_draw_alone(loaded: QChunkPolicy):
    """Of row and place nothing enters: the chunks of rows that are stacked are those of agent.act on each."""
    seen = shown(3)
    found = loaded.act([loaded.prepare(observation(3), seeds=SEEDS)])[0]
    normal = {"state": loaded._observation_norm.apply(seen["state"]), "images": seen["images"]}
    for row, seed in enumerate(SEEDS.tolist()):
        one = {name: value[row : row + 1] for name, value in normal.items()}
        alone = jax.jit(loaded.agent.act)(loaded._params, one, jax.random.key(seed))
        np.testing.assert_allclose(found[row], alone[0], atol=1e-5)
    with pytest.raises(DataError, match=r"seeds: expected 3 of uint32, found int64 \[3\]"):
        loaded.infer(observation(3), seeds=SEEDS.astype(np.int64))


@pytest.mark.parametrize(
    "way",
    [{"policy": "best_of_n", "num_samples": 4}, pytest.param({"policy": "adjoint_matching"}, marks=pytest.mark.long)],
)
def test_chunks_are_completed_from_what_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
):
    """In the robot's units; a row of which nothing is committed is what it is without; the same seeds, the same bits"""
    trained(tmp_path, monkeypatch, **way, flow_steps=5)
    policy = load_policy(tmp_path / "run")
    assert isinstance(policy, QChunkPolicy)
    rows = observation(3, images=False)
    free = policy.infer(rows, seeds=SEEDS)["actions"]
    wanted = policy.infer(rows, seeds=SEEDS + np.uint32(7))["actions"]
    weights = np.array([1, 0.5], np.float32)
    committed = [NOTHING, *(Committed(actions=wanted[row, :2], weights=weights) for row in (1, 2))]
    found = policy.infer(rows, seeds=SEEDS, committed=committed)["actions"]
    np.testing.assert_array_equal(policy.infer(rows, seeds=SEEDS, committed=committed)["actions"], found)
    np.testing.assert_array_equal(policy.chunks(shown(3), SEEDS, committed), found)  # as an evaluation asks
    scale = np.abs(free).max()
    np.testing.assert_allclose(found[0], free[0], atol=1e-5 * scale)
    away, left = (np.abs(chunks[1:, 0] - wanted[1:, 0]).mean() for chunks in (free, found))
    assert left < 0.25 * away
    one = {name: value[1] for name, value in rows.items()}
    single = policy.infer(one, seeds=SEEDS[1:2], committed=committed[1])["actions"]
    np.testing.assert_allclose(single, found[1], atol=1e-5 * scale)
    with pytest.raises(DataError, match="committed: expected what is committed in 3 rows, found 2"):
        policy.infer(rows, committed=committed[:2])
    with pytest.raises(ConfigError, match=f"committed: expected at most 3 actions of {ACTION} numbers"):
        policy.infer(
            one, committed=Committed(actions=np.zeros((4, ACTION), np.float32), weights=np.ones(4, np.float32))
        )


def test_a_policy_of_one_step_completes_nothing(loaded: QChunkPolicy):
    with pytest.raises(
        ConfigError, match=r"--how realtime: agent\.policy is distill, whose chunks cannot be completed here"
    ):
        loaded.infer(observation(), committed=NOTHING)
    cloning = QChunkPolicy(
        loaded.agent,
        loaded._params,
        observation_norm=loaded._observation_norm,
        action_norm=loaded._action_norm,
        way="behaviour_cloning",
    )
    assert cloning.infer(observation(), committed=NOTHING)["actions"].shape == (3, ACTION)


def test_missing_entries_are_named(loaded: QChunkPolicy):
    with pytest.raises(DataError, match=r"state: expected it in the observation, found \['image', 'qpos'\]"):
        loaded.infer({"qpos": np.zeros(6), "image": observation()["image"]})
    with pytest.raises(DataError, match=r"image: expected it in the observation, found \['state'\]"):
        loaded.infer({"state": np.zeros(STATE)})


def test_bounds_are_those_of_the_recorded_actions(run: Path):
    policy = load_policy(run)
    policy.bound("clip", margin=0.0)
    stats = norm_stats.load(run / "norm_stats.json")["actions"]
    actions = policy.infer(observation())["actions"]
    assert (actions >= stats.q01 - 1e-5).all()
    assert (actions <= stats.q99 + 1e-5).all()
    assert policy.metadata["bounds"]["mode"] == "clip"


def test_a_runs_folder_is_all_that_is_needed(run: Path, tmp_path: Path):
    moved = shutil.copytree(run, tmp_path / "moved")
    policy = load_policy(moved, checkpoint=3)
    assert isinstance(policy, Policy)
    assert policy.step == 3
    with pytest.raises(DataError, match="expected a checkpoint of step 4, found 6, 3"):
        load_policy(moved, checkpoint=4)
    with pytest.raises(ConfigError, match=r"expected checkpoint\.keep_best in its config"):
        load_policy(moved, checkpoint="best")
    with pytest.raises(ConfigError, match="a run with its own config"):
        load_policy(moved, config=recordings.config(tmp_path))
    whole = (moved / "norm_stats.json").read_text()
    (moved / "norm_stats.json").write_text(whole + "\n")
    with pytest.raises(MismatchError, match=r"norm_stats\.json is not the file that the checkpoint of step 6"):
        load_policy(moved)
    (moved / "norm_stats.json").write_text(whole)
    with pytest.raises(ConfigError, match="is no run of this project"):
        load_policy(tmp_path)


def test_a_run_is_evaluated_as_at_its_end(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The same seed, step, episodes, environments and view; what the command line says takes their place."""
    asked: list[dict[str, Any]] = []

    def play(policy: Any, env: str, **settings: Any) -> Evaluation:
        asked.append({"env": env, **settings, "chunk": policy(shown(3), SEEDS)})
        return Evaluation(step=6, weights="", outcomes=({"success": True, "reward": 1.0, "length": 5},))

    monkeypatch.setattr(evaluate, "evaluate", play)
    monkeypatch.setattr(evaluate.simulators, "require_widths", lambda *_, **__: None)
    assert evaluate.main([str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy/success"] == 1.0
    assert json.loads((run / "evaluations/step_00000006.json").read_text())["step"] == 6
    assert evaluate.main([str(run), "--episodes", "7", "--env", "other", "--seed", "3", "--checkpoint", "3"]) == 0
    first, second = asked
    view = View(cameras=CAMERAS, render_size=(480, 640), image_size=SIZE, shrunk=CAMERAS)
    wanted = {"env": "none", "seed": 0, "step": 6, "episodes": 50, "num_envs": 5, "rows": 5, "horizon": 3, "view": view}
    assert {name: first[name] for name in wanted} == wanted
    changed = {"env": "other", "seed": 3, "step": 3, "episodes": 7}
    assert {name: second[name] for name in changed} == changed
    acted = load_policy(run).infer(observation(3), seeds=SEEDS)["actions"]
    np.testing.assert_array_equal(first["chunk"], acted)
    assert evaluate.main([str(run), "--episodes", "0"]) == 64
    assert evaluate.main([str(run), "--checkpoint", "last"]) == 64
    assert evaluate.main([str(run.parent)]) == 64
    capsys.readouterr()
    own = json.loads((run / "config.json").read_text()) | {"eval.env": "theirs:make"}
    moved = shutil.copytree(run, run.parent / "own")
    (moved / "config.json").write_text(json.dumps(own))
    assert evaluate.main([str(moved)]) == 64
    assert "eval.env of the run is 'theirs:make'; expected it in --env" in capsys.readouterr().err


def test_an_agent_of_ones_own_is_imported_where_it_is_named_again(run: Path, loaded: QChunkPolicy, tmp_path: Path):
    flat = json.loads((run / "config.json").read_text()) | {"agent.factory": f"{__name__}:make_again"}
    moved = shutil.copytree(run, tmp_path / "moved")
    (moved / "config.json").write_text(json.dumps(flat))
    for other in (None, "elsewhere:make"):
        with pytest.raises(ConfigError, match=r"expected it in --allow-code \(allow_code\), where you trust it"):
            load_policy(moved, allow_code=other)
    again = load_policy(moved, allow_code=f"{__name__}:make_again")
    np.testing.assert_array_equal(
        again.infer(observation(), draw=(1,))["actions"], loaded.infer(observation(), draw=(1,))["actions"]
    )


def make_again(config: QChunkConfig, dims: Dims) -> Agent:
    """The project's own agent by a name of one's own."""
    return make_agent(dataclasses.replace(config, agent=dataclasses.replace(config.agent, factory=None)), dims)


def test_the_size_of_images_is_the_runs_own(tmp_path: Path):
    """As recorded, where the config names none; of an earlier version it has to be told."""
    config = recordings.config(tmp_path, cameras=CAMERAS)
    width = {"state": 9, "actions": 4}
    stats = {
        key: norm_stats.NormStats(mean=np.zeros(n), std=np.ones(n), q01=-np.ones(n), q99=np.ones(n))
        for key, n in width.items()
    }
    with pytest.raises(DataError, match=r"expected the size of the images in dims\.json or data\.image_size, found"):
        read_dims(tmp_path, config, stats)
    dims = Dims(observation=9, action=4, cameras=CAMERAS, image_size=(48, 64))
    (tmp_path / "dims.json").write_text(dims_json(dims))
    assert read_dims(tmp_path, config, stats) == dims
    for bad in ("[1, 0]", '"large"', "[true, 2]", "[1, 2, 3]"):
        (tmp_path / "dims.json").write_text(f'{{"image_size": {bad}}}')
        with pytest.raises(DataError, match="expected image_size of two whole numbers above 0"):
            read_dims(tmp_path, config, stats)
    with pytest.raises(DataError, match="expected statistics of actions, found"):
        read_dims(tmp_path, config, {"state": stats["state"]})


ALONE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from policy import load
seen = dict(np.load(sys.argv[2]))
np.save(sys.argv[3], load(sys.argv[1])(seen, seed=7))
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"chunkwise", "qchunk", "flax", "optax", "orbax"}, loaded
"""


def test_an_export_acts_alike_in_a_process_without_this_project(run: Path, loaded: QChunkPolicy, tmp_path: Path):
    assert export.main([str(run), str(tmp_path / "out"), "--rows", "2"]) == 0
    seen = shown(2)
    np.savez(tmp_path / "seen.npz", state=seen["state"], images=seen["images"])
    paths = [str(tmp_path / name) for name in ("out", "seen.npz", "actions.npy")]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", ALONE, *paths], check=True, cwd=tmp_path, env=plain)
    expected = loaded.infer(observation(2), seeds=np.array([7, 8], np.uint32))["actions"]
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), expected)
    assert export.main([str(run), str(tmp_path / "out")]) == 64, "nothing is overwritten"
    act = runner.load(tmp_path / "out")
    with pytest.raises(ValueError, match=r"images: expected it in the observation, found \['state'\]"):
        act({"state": seen["state"]})
    with pytest.raises(ValueError, match=r"images: expected uint8 \[2, "):
        act({"state": seen["state"], "images": seen["images"].astype(np.float32)})
    with pytest.raises(ValueError, match=r"state: expected float32 \[2, "):
        act({"state": seen["state"][:1], "images": seen["images"]})


def test_only_platforms_that_jax_compiles_for_are_taken(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert export.main([str(run), str(tmp_path / "out"), "--platforms", "abacus"]) == 64
    assert "expected some of cpu, cuda, tpu, found abacus" in capsys.readouterr().err
