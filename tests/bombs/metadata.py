"""Cases: JSON and JSON Lines of datasets, configs of run folders, tokenizers, weights."""

import json
import struct
from pathlib import Path
from typing import Any

from tests.bombs import Command, case
from tests.bombs.programs import driving_validate, openpi_inspect, train
from tests.lerobot_files import record, write_v21


def episode(frames: list[dict[str, Any]]) -> str:
    """A driving episode's JSON."""
    return json.dumps({"episode_id": "a", "domain": "driving", "frames": frames})


@case
def json_of_48_mb(folder: Path) -> Command:
    """A drive of 48 MB of waypoints."""
    frames = [{"t": n, "observations": {}, "expert": {"waypoints": [[1.5, 2.5]] * 2000}} for n in range(2000)]
    (folder / "a.json").write_text(episode(frames))
    return driving_validate(folder)


@case
def json_of_48_mb_in_training(folder: Path) -> Command:
    """The same, in training."""
    frames = [{"t": n, "observations": {}, "expert": {"waypoints": [[1.5, 2.5]] * 2000}} for n in range(2000)]
    (folder / "a.json").write_text(episode(frames))
    return train("driving", folder)


@case
def json_of_empty_lists(folder: Path) -> Command:
    """20 million empty lists in 60 MB."""
    (folder / "a.json").write_text("[" + "[]," * 20_000_000 + "[]]")
    return driving_validate(folder)


@case
def json_of_one_gigabyte(folder: Path) -> Command:
    """A gigabyte of spaces, which the file system stores as a hole."""
    with (folder / "a.json").open("wb") as file:
        file.truncate(1 << 30)
    return driving_validate(folder)


@case
def json_nested_deeply(folder: Path) -> Command:
    """900 levels of lists: not enough for Python's own limit."""
    (folder / "a.json").write_text('{"episode_id": "a", "map": ' + "[" * 900 + "]" * 900 + "}")
    return driving_validate(folder)


@case
def json_of_one_key_twice(folder: Path) -> Command:
    """300,000 keys, of which only the last one is there twice: looking for it must not take their square."""
    keys = ", ".join(f'"k{n}": 0' for n in range(300_000))
    (folder / "a.json").write_text("{" + keys + ', "k299999": 1}')
    return driving_validate(folder)


@case
def json_of_many_cameras(folder: Path) -> Command:
    """6,000 frames, each with a camera of its own: 36 million places for one."""
    frames = [{"t": n, "observations": {"cameras": {f"c{n}": {}}}} for n in range(6000)]
    (folder / "a.json").write_text(episode(frames))
    return driving_validate(folder)


@case
def json_of_one_long_list_of_waypoints(folder: Path) -> Command:
    """20,000 frames without waypoints, and one with 100,000."""
    frames: list[dict[str, Any]] = [{"t": n, "observations": {}} for n in range(20_000)]
    frames[0]["expert"] = {"waypoints": [[0, 0]] * 100_000}
    (folder / "a.json").write_text(episode(frames))
    return driving_validate(folder)


@case
def json_wrong_everywhere(folder: Path) -> Command:
    """A million values that all are wrong."""
    frames = [{"t": n, "observations": {}, "expert": {"waypoints": [["x", "y"]] * 1000}} for n in range(400)]
    (folder / "a.json").write_text(episode(frames))
    return driving_validate(folder)


@case
def json_lines_of_episodes(folder: Path) -> Command:
    """3 million episodes in episodes.jsonl."""
    root = write_v21(folder / "data", record(), "image")
    (root / "meta" / "episodes.jsonl").write_text('{"episode_index": 0, "length": 1}\n' * 3_000_000)
    return openpi_inspect(root)


@case
def json_number_of_ten_megabytes(folder: Path) -> Command:
    """One number of 10 million digits behind the point."""
    (folder / "a.json").write_text('{"episode_id": 0.' + "1" * 10_000_000 + "}")
    return driving_validate(folder)


@case
def norm_stats_of_empty_lists(folder: Path) -> Command:
    """norm_stats.json of 60 MB, in training."""
    from tests.qchunk.recordings import dataset

    stats = folder / "norm_stats.json"
    stats.write_text('{"norm_stats": [' + "[]," * 20_000_000 + "[]]}")
    root = dataset(folder / "data")
    return train("qchunk", root, "--data.norm-stats", str(stats), "--data.action-norm", "mean_std")


@case
def weights_with_an_endless_header(folder: Path) -> Command:
    """A safetensors file that declares a header of 8 exabytes."""
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    code = (
        "import sys; from chunkwise.errors import RunError; from openpi_ript.weights import load_safetensors\n"
        "try: load_safetensors(sys.argv[1])\nexcept RunError as error: print(error); sys.exit(error.exit_code)"
    )
    return ["-c", code, str(path)]
