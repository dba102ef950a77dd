"""A run's agent as a policy: what evaluation asks, what a robot is driven by, and what is served are this one object.

policy = chunkwise.load_policy("runs/qchunk-cube_single-...")
actions = policy.infer({"state": state, "image": {"top": image}})["actions"]
"""

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float32, Shaped, UInt8, UInt32

from chunkwise.arrays import PyTree
from chunkwise.checkpoint.reader import list_saves
from chunkwise.checkpoint.weights import read_weights
from chunkwise.config.saved import read_config
from chunkwise.data import norm_stats
from chunkwise.data.images import Size, resize_into, shrink_into
from chunkwise.data.norm_stats import Affine, NormStats
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import trust
from chunkwise.files.aloha_hdf5 import DEPTH_DTYPES
from chunkwise.files.strict_json import read_json
from chunkwise.policies import observations, policy
from chunkwise.policies.execution import Committed, padded
from chunkwise.policies.policy import Asked, Draws, Prepared
from chunkwise.policies.recorded_images import RecordedSizes, read_shrunk, read_sizes
from chunkwise.policies.spec import Entry, Exportable, Spec, image_entry
from qchunk.agents.base import Agent
from qchunk.agents.make import make_agent
from qchunk.agents.qc import QCAgent
from qchunk.config import QChunkConfig
from qchunk.data.dataset import Dims, affine
from qchunk.data.frames import fit
from qchunk.data.selection import name_in_file

NORM_STATS, DIMS = "norm_stats.json", "dims.json"
"""Files of a run's folder beside its checkpoints: statistics of its data, and the widths of its networks."""

Way = Literal["policy", "behaviour_cloning"]
"""policy: as agent.policy says. behaviour_cloning: the flow alone, which imitates the data."""


class QChunkPolicy(policy.Policy[Prepared]):
    """The chunk that the run's way of choosing gives: best of N, one-step policy, Gaussian, or the flow alone.

    Options of a call:
      seed: 0 to 2^32 - 1, of what a single observation draws; a client may send it. What an evaluation sent is
        qchunk.evaluate.action_seed.
      seeds: uint32, one a row, in this process alone; by default they are functions of `draw`.
      committed: in this process alone, what the chunk is completed from, for real-time chunking (`Committed`); for a
        batch, of each row.
    """

    options = ("seed",)
    local_options = ("seeds", "committed")

    def __init__(
        self,
        agent: Agent,
        params: PyTree,
        *,
        observation_norm: Affine,
        action_norm: Affine,
        stats: Mapping[str, NormStats] | None = None,
        recorded: Mapping[str, Size] | None = None,
        way: Way = "policy",
        step: int = 0,
        seed: int = 0,
    ) -> None:
        """Compiles nothing yet.

        Args:
          agent: Of the run.
          params: Its weights, of the moving average where one is kept.
          observation_norm: Of the array that data.observation names, as in training.
          action_norm: Of the actions.
          stats: Of "state" and "actions", for bounds; None: there are none.
          recorded: Height and width at which cameras were recorded, as far as they are known.
          way: How a chunk is chosen.
          step: Updates that made the weights.
          seed: Of what is drawn.

        Raises:
          ConfigError: If the flow is asked for, and the agent has none.
        """
        super().__init__(step=step, seed=seed)
        if way == "behaviour_cloning" and not isinstance(agent, QCAgent):
            raise ConfigError(f"agent.policy is {agent.config.agent.policy}, which learns no flow of the data alone")
        self.agent = agent
        self.config = agent.config
        self.cameras = agent.dims.cameras if agent.encoder is not None else ()
        """Whose images the networks see."""
        self._depth = agent.dims.depth_cameras if agent.acts_by_depth else ()
        self._params, self._stats, self._recorded = params, stats, RecordedSizes(recorded or {})
        self._observation_norm, self._action_norm = observation_norm, action_norm
        choose, cloning = agent.act, way == "behaviour_cloning"
        self._completing: Callable[..., jax.Array] | None = None
        """The program that completes chunks; None where the policy makes one in a single step."""
        if isinstance(agent, QCAgent):
            choose = agent.act_flow if cloning else agent.act
            samples = agent.config.agent.policy in ("best_of_n", "adjoint_matching")
            if cloning or (samples and not _chooses_otherwise(agent)):
                self._completing = by_row(functools.partial(agent.complete, behaviour_cloning=cloning))
        self._program, self._value = by_row(choose), jax.jit(agent.critic_value)

    def with_weights(self, params: PyTree, step: int) -> "QChunkPolicy":
        """Returns the same policy with other weights, and the programs that are compiled already."""
        other = copy.copy(self)
        other._params, other.step = params, step
        return other

    @property
    def spec(self) -> Spec:
        """Cameras and state as in the recordings; actions in their units."""
        data, dims = self.config.data, self.agent.dims
        size = dims.image_size or (0, 0)
        action, state = (f"as recorded in {name_in_file(name, data)}" for name in (data.action, data.observation))
        if data.base_action:
            action += f", then {name_in_file('base_action', data)}"
        return Spec(
            observation={
                **{
                    f"image/{name}": image_entry(
                        name, size, may_be_none=False, shrunk=name in dims.shrunk, recorded=self._recorded[name]
                    )
                    for name in self.cameras
                },
                **{
                    f"depth/{name}": Entry(
                        shape=dims.depth_size or (0, 0),
                        dtype=dims.depth_dtype or "float32",
                        unit="as recorded",
                        meaning=f"depth map of camera {name}",
                        any_size=True,
                    )
                    for name in self._depth
                },
                "state": Entry(
                    shape=(dims.observation,),
                    dtype="float32",
                    unit=state,
                    meaning="not normalised",
                ),
            },
            actions=Entry(
                shape=(self.agent.action_horizon, dims.action),
                dtype="float32",
                unit=action,
                meaning="one action an environment step",
            ),
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client should know, as plain values."""
        return super().metadata | {
            "model": self.config.agent.policy,
            "cameras": list(self.cameras),
            "state_dim": self.agent.dims.observation,
        }

    def chunks(
        self,
        seen: Mapping[str, np.ndarray],
        seeds: UInt32[np.ndarray, " b"],
        committed: Sequence[Committed] | None = None,
    ) -> Float32[np.ndarray, "b t a"]:
        """Returns what `infer` does for what a simulator shows. They may hold NaN: whoever plays looks.

        Args:
          seen: Rows of `qpos`, `state`, `images` (b, k, h, w, 3) in the order of data.cameras, and, for an agent that
            acts by depth, `depth_images` (b, k, h, w) in that of data.depth_cameras.
          seeds: Of what each row draws.
          committed: What each row's chunk is completed from; None: chunks are not completed.
        """
        observation: dict[str, Any] = {"state": seen[self.config.data.observation]}
        if self.cameras:
            observation["image"] = {name: seen["images"][:, k] for k, name in enumerate(self.cameras)}
        if self._depth:
            observation["depth"] = {name: seen["depth_images"][:, k] for k, name in enumerate(self._depth)}
        return self._denormalised(self.act([self.prepare(observation, seeds=seeds, committed=committed)])[0])

    def values(self, seen: Mapping[str, np.ndarray], chunks: Float32[np.ndarray, "b t a"]) -> Float32[np.ndarray, " b"]:
        """Returns the critic's value of each chunk.

        Args:
          seen: As of `chunks`.
          chunks: In recorded units, of the policy's length.
        """
        name = self.config.data.observation
        inputs = {name: self._observation_norm.apply(seen[name])}
        if self.cameras:
            inputs["images"] = seen["images"]
        if "depth_images" in seen:  # which a critic may see that the policy does not act by
            inputs["depth_images"] = seen["depth_images"]
        return np.asarray(self._value(self._params, inputs, self._action_norm.apply(chunks)))

    def _prepare(
        self, observation: Mapping[str, Any], draw: Draws, max_rows: int | None, options: Mapping[str, Any]
    ) -> Prepared:
        dims = self.agent.dims
        raw, single = observations.numbers(observation, "state", dims.observation)
        rows = len(raw)
        observations.require_rows("state", rows, max_rows)
        name = self.config.data.observation
        sent: dict[str, Any] = {name: observations.normalised(self._observation_norm, raw, "state")}
        if self.cameras:
            images = observations.images(
                observation, self.cameras, self.resized, rows=rows, single=single, may_be_off=False
            )
            sent["images"] = np.stack([image for image in images.values() if image is not None], axis=1)
        if self._depth:
            of_depth = {"dtype": dims.depth_dtype, "rows": rows, "single": single}
            maps = observations.depth_maps(observation, self._depth, self._resized_depth, **of_depth)
            sent["depth_images"] = np.stack(list(maps.values()), axis=1)
        seeds = options.get("seeds", self._row_seeds(draw, rows))
        if "seed" in options:
            seeds = observations.one_seed(options["seed"], rows)
        if seeds.shape != (rows,) or seeds.dtype != np.uint32:
            raise DataError(f"seeds: expected {rows} of uint32, found {seeds.dtype} {list(seeds.shape)}")
        inputs: tuple[Any, ...] = (sent, seeds)
        if (committed := options.get("committed")) is not None:
            inputs += self._known([committed] if single else committed, rows)
        return Prepared(inputs=inputs, rows=rows, single=single)

    def require_completing(self) -> None:
        """Raises ConfigError if chunks cannot be completed from actions: the policy makes one in a single step."""
        if self._completing is not None:
            return
        other = "Choose open_loop, every or ensemble"
        if isinstance(self.agent, QCAgent) and _chooses_otherwise(self.agent):
            raise ConfigError(
                f"--how realtime: {type(self.agent).__name__} chooses chunks by a `policy` or `act` of its own, and "
                f"completes none by it; expected a `complete` beside it, as QCAgent's. {other}"
            )
        raise ConfigError(
            f"--how realtime: agent.policy is {self.config.agent.policy}, whose chunks cannot be completed here; "
            f"expected one that samples by the steps of a flow (best_of_n, adjoint_matching). {other}"
        )

    def _known(self, committed: Sequence[Committed], rows: int) -> tuple[Float32[np.ndarray, "b t a"], Any]:
        """What is committed in the units of the networks, and its weights."""
        self.require_completing()
        if len(committed) != rows:
            raise DataError(f"committed: expected what is committed in {rows} rows, found {len(committed)}")
        actions, weights = padded(committed, self.agent.action_horizon, self.agent.dims.action)
        return self._action_norm.apply(actions), weights

    def resized(self, camera: str, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
        """Resizes an image of a camera as training resized that camera's."""
        dims = self.agent.dims
        if dims.image_size is None or image.shape[:2] == dims.image_size:
            return image
        self._recorded.compare(camera, image.shape[:2], dims.image_size)
        out = np.empty((*dims.image_size, 3), np.uint8)
        (shrink_into if camera in dims.shrunk else resize_into)(image, out)
        return out

    def _resized_depth(self, depth: Shaped[np.ndarray, "h w"]) -> Shaped[np.ndarray, "h2 w2"]:
        out = np.empty(self.agent.dims.depth_size or depth.shape, depth.dtype)
        fit(depth, out)
        return out

    def _compute(self, inputs: Any) -> Any:
        program = self._program if len(inputs) == 2 else self._completing
        assert program is not None
        try:
            return program(self._params, *inputs)
        except KeyError as error:
            if error.args != ("depth_images",):
                raise
            raise ConfigError(
                f"{type(self.agent).__name__} acts by depth_images; expected `acts_by_depth = True` in its class"
            ) from error

    def _denormalised(self, chunk: Float32[np.ndarray, "b t d"]) -> Float32[np.ndarray, "b t a"]:
        return self._action_norm.invert(chunk)

    def exportable(self) -> Exportable:
        """Inputs: `state`, `images` (k, h, w, 3) in the order of data.cameras, for an agent that acts by depth
        `depth_images` (k, h, w) in that of data.depth_cameras, and `seed` of what a row draws."""
        name, dims = self.config.data.observation, self.agent.dims
        inputs: dict[str, tuple[tuple[int, ...], str]] = {
            "state": ((dims.observation,), "float32"),
            "seed": ((), "uint32"),
        }
        if self.cameras:
            inputs["images"] = ((len(self.cameras), *(dims.image_size or ()), 3), "uint8")
        if self._depth:
            inputs["depth_images"] = ((len(self._depth), *(dims.depth_size or ())), dims.depth_dtype or "float32")

        def program(params: PyTree, given: dict[str, Any]) -> Any:
            seen = {name: given["state"]}
            seen |= {key: given[key] for key in ("images", "depth_images") if key in inputs}
            return self._program(params, seen, given["seed"])

        return Exportable(
            program=program,
            params=self._params,
            inputs=inputs,
            normalised={"state": self._observation_norm},
            actions=self._action_norm,
            order={
                name: cameras
                for name, cameras in (("images", self.cameras), ("depth_images", self._depth))
                if name in inputs
            },
            seed="seed",
            spec=self.spec,
        )

    def _action_stats(self) -> NormStats | None:
        return None if self._stats is None else self._stats.get("actions")


def _chooses_otherwise(agent: QCAgent) -> bool:
    """Whether a class replaces how chunks are chosen, and leaves how they are completed to the one that it replaces."""
    order = type(agent).__mro__

    def newest(*names: str) -> int:
        return min(i for i, kind in enumerate(order) if any(name in vars(kind) for name in names))

    return newest("policy", "act") < newest("complete", "_completed")


def by_row(act: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Compiles a policy in which each row draws from a seed of its own: (weights, observations, seeds, ...) -> chunks.

    What a row draws is what a batch of that row alone would draw.
    """

    def one(params: PyTree, seen: Mapping[str, Array], seed: Array, rest: tuple[Array, ...]) -> Array:
        rows = {name: array[None] for name, array in seen.items()}
        return act(params, rows, jax.random.key(seed), *(array[None] for array in rest))[0]

    program = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))
    return lambda params, seen, seeds, *rest: program(params, seen, seeds, rest)


def dims_json(dims: Dims) -> str:
    """Returns the text of a run's dims.json."""
    size = None if dims.image_size is None else list(dims.image_size)
    found: dict[str, Any] = {"observation": dims.observation, "action": dims.action, "image_size": size}
    if dims.depth_size is not None:
        found |= {"depth_size": list(dims.depth_size), "depth_dtype": dims.depth_dtype}
    return json.dumps(found) + "\n"


def load(asked: Asked) -> QChunkPolicy:
    """Loads the policy of a run; nothing but its folder is needed. See `chunkwise.load_policy`."""
    asked.require_run("qchunk")
    folder = asked.folder
    own = read_config(folder, QChunkConfig)
    if not (folder / NORM_STATS).exists() and not list_saves(folder):  # a run that has only just begun
        raise DataError(f"{folder}: expected a checkpoint of a run, found none")
    stats = norm_stats.load(folder / NORM_STATS)
    named = own.agent.factory
    if named is not None and named != asked.allow_code:
        trust.refuse_code(
            f"{folder}: agent.factory is {named!r}; expected it in --allow-code (allow_code), where you trust it"
        )
    agent = make_agent(own, read_dims(folder, own, stats), allow_code=named is not None)
    data, dims = own.data, agent.dims
    step, params = read_weights(folder, own, lambda: agent.init(jax.random.key(0)).params, checkpoint=asked.checkpoint)
    return QChunkPolicy(
        agent,
        params,
        observation_norm=affine(stats, data.observation_norm, "state", dims.observation, name="state")[0],
        action_norm=affine(stats, data.action_norm, "actions", dims.action, name="action")[0],
        stats=stats,
        recorded=read_sizes(folder),
        step=step,
        seed=asked.seed,
    )


def read_dims(folder: Path, config: QChunkConfig, stats: Mapping[str, NormStats]) -> Dims:
    """Reads what the networks of a run were made for.

    A run of an earlier version has no dims.json; its widths are those of the statistics, the size of its images that of
    its config.

    Raises:
      DataError: dims.json is none, or the size of the images cannot be told.
    """
    if missing := sorted({"state", "actions"} - set(stats)):
        raise DataError(f"{folder / NORM_STATS}: expected statistics of {' and '.join(missing)}, found {sorted(stats)}")
    size, cameras = config.data.image_size, config.data.cameras
    path = folder / DIMS
    depth: dict[str, Any] = {}
    if path.exists():
        tree = read_json(path)
        found = tree.get("image_size") if isinstance(tree, dict) else None
        if found is not None and not _is_size(found):
            raise DataError(f"{path}: expected image_size of two whole numbers above 0, found {found!r:.80}")
        size = None if found is None else (found[0], found[1])
        deep = tree.get("depth_size") if isinstance(tree, dict) else None
        if deep is not None and _is_size(deep):
            dtype = tree.get("depth_dtype")
            if dtype not in DEPTH_DTYPES:
                raise DataError(f"{path}: expected depth_dtype among {', '.join(DEPTH_DTYPES)}, found {dtype!r:.80}")
            depth = {"depth_size": (deep[0], deep[1]), "depth_dtype": dtype}
    if cameras and size is None:
        raise DataError(
            f"{folder}: expected the size of the images in {DIMS} or data.image_size, found neither; a run of an "
            f'earlier version. Write {{"image_size": [height, width]}} of its recordings into {DIMS}'
        )
    if config.data.depth_cameras:
        # A run of an earlier version says neither: depth is taken as it is sent, or at the size of its config.
        depth = {"depth_size": config.data.image_size} | depth
        depth["depth_cameras"] = config.data.depth_cameras
    widths = len(stats["state"].mean), len(stats["actions"].mean)
    return Dims(
        observation=widths[0],
        action=widths[1],
        cameras=cameras,
        image_size=size if cameras else None,
        shrunk=read_shrunk(folder),
        **(depth if config.data.depth_cameras else {}),
    )


def _is_size(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value)
    return whole and all(0 < n <= 1 << 14 for n in value)
