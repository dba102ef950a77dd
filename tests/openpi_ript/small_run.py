"""A synthetic dataset and runs of a toy model on it, which the tests of training, policy and server share."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from chunkwise.config.experiment import CheckpointConfig, OptimConfig, RunConfig, TrainConfig
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.experiment import GuidanceConfig, OpenpiRiptConfig
from openpi_ript.config.model import toy
from openpi_ript.config.rollouts import RecordConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.data.point import TOKENIZER, record
from openpi_ript.tasks.supervised import SupervisedTask

RECORD = RecordConfig(groups=2, rollouts=4, length=10)


def make_dataset(folder: Path) -> Path:
    """Eight episodes of ten frames and a tokenizer; half of them fail."""
    root = folder / "dataset"
    record(RECORD, root)
    return root


def small_config(root: Path, run: Path, **changes: Any) -> OpenpiRiptConfig:
    """Six guided updates of the toy model, saved every two, with a moving average and a frozen language model."""
    settings: dict[str, Any] = {
        "run": RunConfig(dir=str(run), seed=5),
        "train": TrainConfig(steps=6, batch_size=4, ema_decay=0.5, log_every=3),
        "optim": OptimConfig(learning_rate=1e-2, clip_norm=1.0),
        "model": dataclasses.replace(toy("pi0"), optimality=True, freeze=("language",)),
        "data": DataConfig(
            path=str(root),
            robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3, relative_dims=(0, 1)),
            horizon=8,
            image_size=(28, 28),
            action_norm="mean_std",
            advantage=AdvantageConfig(),
        ),
        "guidance": GuidanceConfig(sample_steps=4),
        "tokenizer": str(root / TOKENIZER),
        "checkpoint": CheckpointConfig(every=2),
    }
    return OpenpiRiptConfig(**settings | changes)


@contextlib.contextmanager
def quick_compiling(cache: Path) -> Iterator[None]:
    """Compiles with few optimisations, a third of the time, and keeps programs, since every run has the same ones."""
    settings = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def supervised(config: OpenpiRiptConfig, **changes: Any) -> OpenpiRiptConfig:
    """The same run without guidance."""
    model = dataclasses.replace(config.model, optimality=False)
    return dataclasses.replace(config, model=model, guidance=None, **changes)


def make_task(config: OpenpiRiptConfig) -> SupervisedTask:
    return SupervisedTask(config, open_data(config.data))


def other_tokenizer(pieces: int) -> bytes:
    """A sentencepiece model of about so many pieces."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["move to the red disc", "move to the blue disc"] * 10),
        model_writer=model,
        model_type="bpe",
        vocab_size=pieces,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
    )
    return model.getvalue()
