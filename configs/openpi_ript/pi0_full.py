"""Every weight of pi0, fine-tuned on 8 accelerators that share one copy of the state.

3.2 billion weights in float32 with Adam's two moments and a moving average are 52 GB: 6.5 GB on each of 8 devices, and
gradients and activations beside them (layers are recomputed, attention goes through the queries in blocks). openpi's
settings: AdamW with a peak of 2.5e-5, moving average of 0.99. Not run on such a machine yet.

    python launch.py --config configs/openpi_ript/pi0_full.py --data.path my_dataset --weights pi0_base \
        --tokenizer paligemma_tokenizer.model
"""

import dataclasses

from chunkwise.config import CheckpointConfig, MeshConfig, OptimConfig, TrainConfig
from openpi_ript.config import PANDA, DataConfig, OpenpiRiptConfig, full


def get_config() -> OpenpiRiptConfig:
    """Batch 64: 8 rows on each device."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=30_000, batch_size=64, ema_decay=0.99),
        optim=OptimConfig(
            learning_rate=2.5e-5,
            schedule="cosine",
            warmup_steps=1000,
            clip_norm=1.0,
            beta2=0.95,
        ),
        mesh=MeshConfig(fsdp=8),
        model=dataclasses.replace(full("pi0"), attention_block=128),
        data=DataConfig(
            path="datasets/openpi_ript/demonstrations",
            robot=PANDA,
            action_norm="mean_std",
            read_threads=16,
        ),
        tokenizer="checkpoints/paligemma_tokenizer.model",
        weights="checkpoints/pi0_base",
        checkpoint=CheckpointConfig(every=1000, keep_period=10_000),
    )
