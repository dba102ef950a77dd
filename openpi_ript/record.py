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

The files are LeRobot v2.1, pictures as PNG in the tables; beside them lies a small sentencepiece model of the prompts,
which stands in for PaliGemma's tokenizer.
"""

import dataclasses
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from core.errors import ConfigError
from openpi_ript.config import RecordConfig

FPS = 10
MAX_STEP = 0.08
"""How far the point moves in one step at most."""
ON_DISC = 0.1
"""Distance from a disc's centre below which the point is on it."""
DISCS = {"red": (0.2, 0.8), "blue": (0.8, 0.8)}
PROMPTS = {colour: f"move to the {colour} disc" for colour in DISCS}
NOISE = 0.01
"""Standard deviation of what is added to each commanded position: no two episodes are the same."""
PICTURE = 28
"""Rows and columns of a picture."""
TOKENIZER = "tokenizer.model"

_CAMERAS = {"observation.images.base": 1.0, "observation.images.wrist": 0.4}
_COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}


def record(config: RecordConfig, path: str | Path) -> None:
    """Writes the dataset if there is none; one that is there must have been made with the same settings.

    Raises:
      ConfigError: If the folder holds anything else; the message says what.
    """
    root = Path(path)
    if root.exists():
        _require_same(config, root)
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    scratch = root.with_name(f"{root.name}.{os.getpid()}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    _write(config, scratch)
    try:
        scratch.rename(root)
    except OSError:  # another process was faster; its dataset is the same
        shutil.rmtree(scratch)
        _require_same(config, root)
    print(f"recorded {config.groups * config.rollouts} synthetic episodes into {root}", flush=True)


def initial_state(seed: int, group: int) -> Float32[np.ndarray, " s"]:
    """Where the episodes of a group start: the lower middle of the world."""
    return np.random.default_rng([seed, group, 0]).uniform((0.3, 0.1), (0.7, 0.4)).astype(np.float32)


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
    span = _CAMERAS[camera]
    centre = np.full(2, 0.5) if span == 1 else position
    offsets = ((np.arange(PICTURE) + 0.5) / PICTURE - 0.5) * span
    x, y = np.meshgrid(centre[0] + offsets, centre[1] - offsets)
    inside = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
    picture = np.where(inside[..., None], 90, 20) * np.ones(3)
    for colour, (disc_x, disc_y) in DISCS.items():
        picture[np.hypot(x - disc_x, y - disc_y) < ON_DISC] = _COLOURS[colour]
    picture[np.hypot(x - position[0], y - position[1]) < 0.05] = 240
    return picture.astype(np.uint8)


def play(config: RecordConfig, group: int, rollout: int) -> tuple[dict[str, np.ndarray], str]:
    """Columns of one episode, a function of (seed, group, rollout), and its prompt."""
    rng = np.random.default_rng([config.seed, group, rollout + 1])
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


def _require_same(config: RecordConfig, root: Path) -> None:
    """Whether a folder holds what `record` would write."""
    info = root / "meta" / "info.json"
    made = json.loads(info.read_text()).get("synthetic") if info.is_file() else None
    if made != _provenance(config):
        raise ConfigError(
            f"{root}: expected the synthetic dataset of {config}, found {made or 'other files'}; set record to None to "
            "train on your own data, or choose another data.path"
        )


def _provenance(config: RecordConfig) -> dict[str, Any]:
    settings = json.loads(json.dumps(dataclasses.asdict(config)))  # as it comes back from the file
    return {"made_by": "openpi_ript.record: a simulated point, drawn with numpy, no robot"} | settings


def _write(config: RecordConfig, root: Path) -> None:
    features = _features()
    tasks = list(PROMPTS.values())
    rows, start = [], 0
    for index in range(config.groups * config.rollouts):
        columns, prompt = play(config, *divmod(index, config.rollouts))
        file = root / f"data/chunk-000/episode_{index:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_table(columns, features, index=index, start=start, task=tasks.index(prompt)), file)
        rows.append({"episode_index": index, "tasks": [prompt], "length": config.length})
        start += config.length
    info = {
        "codebase_version": "v2.1",
        "robot_type": "synthetic_point",
        "synthetic": _provenance(config),
        "total_episodes": len(rows),
        "total_frames": start,
        "total_tasks": len(tasks),
        "total_videos": 0,
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(rows)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
        "features": features,
    }
    meta = root / "meta"
    meta.mkdir()
    (meta / "info.json").write_text(json.dumps(info, indent=4) + "\n")
    _write_lines(meta / "tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(tasks)])
    _write_lines(meta / "episodes.jsonl", rows)
    (root / TOKENIZER).write_bytes(_train_tokenizer())


def _features() -> dict[str, Any]:
    names = ["height", "width", "channels"]
    features: dict[str, Any] = {
        camera: {"dtype": "image", "shape": [PICTURE, PICTURE, 3], "names": names} for camera in _CAMERAS
    }
    features["observation.state"] = {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
    features["action"] = {"dtype": "float32", "shape": [3], "names": ["x", "y", "on_disc"]}
    types = {"next.success": "bool", "next.reward": "float32", "timestamp": "float32"}
    types |= dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
    return features | {key: {"dtype": dtype, "shape": [1], "names": None} for key, dtype in types.items()}


def _table(columns: dict[str, np.ndarray], features: dict[str, Any], *, index: int, start: int, task: int) -> pa.Table:
    """One episode as LeRobot writes it, with the note from which Hugging Face datasets knows the pictures."""
    states = columns["observation.state"]
    frames = np.arange(len(states))
    arrays: dict[str, Any] = {}
    for camera in _CAMERAS:
        cells = [
            {"bytes": _png(render(state, camera)), "path": f"frame_{frame:06d}.png"}
            for frame, state in enumerate(states)
        ]
        arrays[camera] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    for key, values in columns.items():
        flat = pa.array(values.ravel())
        arrays[key] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    arrays |= {"timestamp": pa.array((frames / FPS).astype(np.float32)), "frame_index": pa.array(frames)}
    arrays |= {"episode_index": pa.array(np.full(len(frames), index)), "index": pa.array(start + frames)}
    arrays |= {"task_index": pa.array(np.full(len(frames), task))}
    notes = {"info": {"features": {key: _note(feature) for key, feature in features.items()}}}
    return pa.table(arrays).replace_schema_metadata({"huggingface": json.dumps(notes)})


def _note(feature: dict[str, Any]) -> dict[str, Any]:
    """A feature in the words of Hugging Face datasets."""
    if feature["dtype"] == "image":
        return {"_type": "Image"}
    value = {"dtype": feature["dtype"], "_type": "Value"}
    return value if feature["shape"] == [1] else {"feature": value, "length": feature["shape"][0], "_type": "Sequence"}


def _png(picture: UInt8[np.ndarray, "h w 3"]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def _write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _train_tokenizer() -> bytes:
    """Some 300 sentencepiece pieces, with PaliGemma's traits: a piece for the line break, bytes for the rest."""
    from sentencepiece import SentencePieceTrainer

    sentences = [*PROMPTS.values(), f"Task: {PROMPTS['red']}, State: -0123456789;", "Action: "] * 20
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="bpe",
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()
