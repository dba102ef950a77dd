"""Command lines of the programs that the cases are given to."""

from pathlib import Path

from tests.bombs import Command
from tests.openpi_ript.small_run import other_tokenizer

ROOT = Path(__file__).parents[2]
DATA = {"qchunk": {"task": None, "observation": "qpos"}}
"""Settings of the data that the debug configs have for their own recordings alone."""


def qchunk_inspect(path: Path) -> Command:
    """Reads episodes, and decodes their images."""
    return ["-m", "qchunk.inspect", str(path)]


def qchunk_convert(path: Path) -> Command:
    """Converts robomimic, D4RL, OGBench and LeRobot."""
    return ["-m", "qchunk.convert", str(path), str(path.parent / "converted")]


def openpi_inspect(path: Path) -> Command:
    """Reads a LeRobot dataset or a pack."""
    return ["-m", "openpi_ript.inspect", str(path)]


def driving_validate(path: Path) -> Command:
    """Reads driving episodes or a pack."""
    return ["-m", "driving.validate", str(path)]


def driving_convert(path: Path, kind: str) -> Command:
    """Converts public driving datasets."""
    return ["-m", "driving.convert", str(path), str(path.parent / "converted"), "--format", kind]


def train(package: str, path: Path, *more: str) -> Command:
    """Trains the package's debug config on a dataset."""
    run, config = str(path.parent / "run"), path.parent / "debug_config.py"
    config.write_text(
        "import dataclasses\n"
        f"from configs.{package} import debug\n\n\n"
        "def get_config():\n"
        "    config = debug.get_config()\n"
        "    return dataclasses.replace(config, record=None, data=dataclasses.replace(config.data, **DATA))\n\n\n"
        f"DATA = {DATA.get(package, {})}\n"
    )
    return [str(ROOT / "launch.py"), "--config", str(config), "--data.path", str(path), "--run.dir", run, *more]


def train_lerobot(path: Path, *more: str) -> Command:
    """Trains openpi_ript's debug config for an update, on three episodes or more of tests.lerobot_files."""
    tokenizer = path.parent / "good_tokenizer.model"
    if "--tokenizer" not in more:
        tokenizer.write_bytes(other_tokenizer(300))
        more = (*more, "--tokenizer", str(tokenizer))
    widths = ("--data.robot.state-dim", "6", "--data.robot.target-state-dim", "6", "--data.robot.action-dim", "7")
    return train("openpi_ript", path, *widths, "--data.advantage.group-by", "dataset", "--train.steps", "1", *more)
