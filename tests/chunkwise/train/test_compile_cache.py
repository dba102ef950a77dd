"""Compiled programs are kept where a run says, and change nothing."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from chunkwise.config.experiment import RunConfig
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyTask, toy_config


@pytest.fixture
def every_program() -> Iterator[None]:
    """Keeps programs that compile in less than a second too, and takes all settings back."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def train(folder: Path, programs: Path | None) -> str:
    config = toy_config(folder)
    run = RunConfig(dir=str(folder), compile_cache=None if programs is None else str(programs))
    config = dataclasses.replace(config, run=run)
    with RunFolder(config, "toy") as opened:
        return fit(config, ToyTask(config), opened)


@pytest.mark.usefixtures("every_program")
def test_programs_are_kept_and_found_again(tmp_path: Path):
    untouched = train(tmp_path / "a", None)
    assert train(tmp_path / "b", tmp_path / "programs") == untouched
    kept = {path.name for path in (tmp_path / "programs").iterdir() if "jit_run_updates" in path.name}
    assert kept
    jax.clear_caches()
    assert train(tmp_path / "c", tmp_path / "programs") == untouched
    assert {path.name for path in (tmp_path / "programs").iterdir() if "jit_run_updates" in path.name} == kept
