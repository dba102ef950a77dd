"""Supervised fine-tuning of pi0 with adapters on your own LeRobot dataset, for one accelerator.

openpi's own low-memory setting (its pi0_*_low_mem_finetune configs): rank 16 in the language model, 32 in the action
expert, both frozen otherwise and kept in bfloat16, the image encoder trained, batch 32, 30,000 updates, AdamW with a
peak of 2.5e-5. Its cosine ends at a tenth of the peak, this one at 0; padded actions have no part in the loss here.
Start from openpi's `pi0_base`; the tokenizer is PaliGemma's. Not trained to the end yet: no figure is promised.

    python launch.py --config configs/openpi_ript/sft.py --data.path my_dataset --weights pi0_base \
        --tokenizer paligemma_tokenizer.model
"""

from chunkwise.config import CheckpointConfig, OptimConfig, TrainConfig
from openpi_ript.config import PANDA, DataConfig, OpenpiRiptConfig, full_lora


def get_config() -> OpenpiRiptConfig:
    """Replace data.robot by your robot's: widths, and the action dimensions that become relative."""
    return OpenpiRiptConfig(
        train=TrainConfig(steps=30_000, batch_size=32),
        optim=OptimConfig(
            learning_rate=2.5e-5,
            schedule="cosine",
            warmup_steps=1000,
            clip_norm=1.0,
            beta2=0.95,
        ),
        model=full_lora("pi0"),
        data=DataConfig(
            path="datasets/openpi_ript/demonstrations",
            robot=PANDA,
            action_norm="mean_std",
            read_threads=8,
        ),
        tokenizer="checkpoints/paligemma_tokenizer.model",
        weights="checkpoints/pi0_base",
        checkpoint=CheckpointConfig(every=1000, keep_period=10_000),
    )
