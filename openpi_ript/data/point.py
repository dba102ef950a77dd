"""A small synthetic LeRobot dataset, for debugging and tests: a point is to move to one of two discs.

Nothing in it comes from a robot; info.json says so. The world is the unit square. A point starts in the lower middle,
the red disc lies at the upper left, the blue one at the upper right, and the prompt names one of them. Every other
episode goes to the wrong one and fails, so half of the episodes are bad; RecordConfig.luck reports some outcomes the
wrong way round. From one initial state several episodes start,
as rollouts of RIPT do.

  observation.state         float32  position of the point, [x, y], y upwards
  action                    float32  [x, y] to be reached in one step of at most MAX_STEP, and 1 on a disc, else 0
  next.success, next.reward          true and 1 in the last frame of an episode that reached its disc
  observation.images.base            the world; observation.images.wrist: what is near the point

The files are LeRobot v2.1, images as PNG in the tables; beside them lies a small sentencepiece model of the prompts,
which stands in for PaliGemma's tokenizer.
"""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, UInt8

from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.recorder import record_whole
from openpi_ript.config.rollouts import RecordConfig
from openpi_ript.data.lerobot_writer import OWN_DATA, Recorded, settings_of, train_tokenizer, write_lerobot

FPS = 10
MAX_STEP = 0.08
"""How far the point moves in one step at most."""
ON_DISC = 0.1
"""Distance from a disc's centre below which the point is on it."""
DISCS = {"red": (0.2, 0.8), "blue": (0.8, 0.8)}
PROMPTS = {colour: f"move to the {colour} disc" for colour in DISCS}
NOISE = 0.01
"""Standard deviation of what is added to each commanded position: no two episodes are the same."""
IMAGE_SIZE = 28
"""Rows and columns of an image."""
TOKENIZER = "tokenizer.model"

CAMERAS = {"observation.images.base": 1.0, "observation.images.wrist": 0.4}
"""Part of the world's side that a camera sees; the second one follows the point."""
_COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}


def record(config: RecordConfig, path: str | Path) -> None:
    """Writes the dataset if there is none; one that is there must have been made with the same settings.

    Raises:
      ConfigError: If the folder holds anything else; the message says what.
    """
    provenance = {"made_by": "openpi_ript.data.point: a simulated point, drawn with numpy, no robot"}
    provenance |= dataclasses.asdict(config)

    def write(root: Path) -> str:
        count = config.groups * config.rollouts
        episodes = (_episode(config, *divmod(index, config.rollouts)) for index in range(count))
        names = {"observation.state": ["x", "y"], "action": ["x", "y", "on_disc"]}
        write_lerobot(root, episodes, fps=FPS, robot="synthetic_point", provenance=provenance, names=names)
        sentences = [*PROMPTS.values(), f"Task: {PROMPTS['red']}, State: -0123456789;"]
        (root / TOKENIZER).write_bytes(train_tokenizer(sentences))
        return f"recorded {count} synthetic episodes"

    record_whole(Path(path), provenance, write, settings_of, hint=OWN_DATA)


def initial_state(seed: int, group: int) -> Float32[np.ndarray, " s"]:
    """Where the episodes of a group start: the lower middle of the world."""
    return generator(Purpose.POINT, seed, group, 0).uniform((0.3, 0.1), (0.7, 0.4)).astype(np.float32)


def expert_action(
    position: Float[np.ndarray, "*b s"], goal: Float[np.ndarray, "*b s"]
) -> tuple[Float[np.ndarray, "*b s"], Float[np.ndarray, "*b 1"]]:
    """The next position on the straight way to a goal, and whether the point is on it already (1 or 0)."""
    way = goal - position
    distance = np.linalg.norm(way, axis=-1, keepdims=True)
    step = way * np.minimum(1.0, MAX_STEP / np.maximum(distance, 1e-9))
    return position + step, (distance < ON_DISC).astype(position.dtype)


def move(position: Float[np.ndarray, "*b s"], target: Float[np.ndarray, "*b s"]) -> Float[np.ndarray, "*b s"]:
    """The world's own step: towards the target, by MAX_STEP at most, inside the unit square."""
    return np.clip(expert_action(position, target)[0], 0, 1)


def render(position: Float[np.ndarray, " s"], camera: str) -> UInt8[np.ndarray, "h w 3"]:
    """The world around its centre, or around the point."""
    span = CAMERAS[camera]
    centre = np.full(2, 0.5) if span == 1 else position
    offsets = ((np.arange(IMAGE_SIZE) + 0.5) / IMAGE_SIZE - 0.5) * span
    x, y = np.meshgrid(centre[0] + offsets, centre[1] - offsets)
    inside = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
    image = np.where(inside[..., None], 90, 20) * np.ones(3)
    for colour, (disc_x, disc_y) in DISCS.items():
        image[np.hypot(x - disc_x, y - disc_y) < ON_DISC] = _COLOURS[colour]
    image[np.hypot(x - position[0], y - position[1]) < 0.05] = 240
    return image.astype(np.uint8)


def play(config: RecordConfig, group: int, rollout: int) -> tuple[dict[str, np.ndarray], str]:
    """Columns of one episode, a function of (seed, group, rollout), and its prompt."""
    rng = generator(Purpose.POINT, config.seed, group, rollout + 1)
    prompted = config.prompted[group % len(config.prompted)]
    wrong = "blue" if prompted == "red" else "red"
    goal = DISCS[prompted if rollout % 2 == 0 else wrong]
    position = initial_state(config.seed, group).astype(np.float64)
    states, actions = [], []
    for _ in range(config.length):
        target, on_disc = expert_action(position, np.array(goal))
        target = np.clip(target + NOISE * rng.normal(size=2), 0, 1)
        states.append(position)
        actions.append(np.concatenate([target, on_disc]))
        position = move(position, target)
    success = np.zeros(config.length, bool)
    reached = np.linalg.norm(states[-1] - np.array(DISCS[prompted])) < ON_DISC
    success[-1] = reached != (rng.random() < config.luck)
    columns = {
        "observation.state": np.stack(states).astype(np.float32),
        "action": np.stack(actions).astype(np.float32),
        "next.success": success,
        "next.reward": success.astype(np.float32),
    }
    return columns, PROMPTS[prompted]


def _episode(config: RecordConfig, group: int, rollout: int) -> Recorded:
    columns, prompt = play(config, group, rollout)
    states = columns["observation.state"]
    images = {camera: [render(state, camera) for state in states] for camera in CAMERAS}
    return Recorded(columns=columns, images=images, task=prompt)
