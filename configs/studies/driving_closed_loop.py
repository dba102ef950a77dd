"""Who drives the town, and what cameras, pretraining and reinforcement in closed loop add, three seeds.

chunkwise train driving/pretrain --run.dir runs/driving-pretrain
chunkwise study driving_closed_loop --out studies/driving_closed_loop

24 runs of configs/driving/modes.py, each evaluated on 30 routes beside the town's own driver, one who stands,
constant velocity and the MLP on motion (`chunkwise evaluate RUN --closed-loop`); ADE, FDE and minADE at 1, 2 and 3 s
against the held-out drives are in each run's evaluation.json: `python -m driving.evaluate RUN...` makes one table of
them. history sees no image. Reinforced rows go on for sixteen rounds of 32 drives, 800 updates after the 8,000 of the
others, whose learning rate falls to 0 meanwhile; docs/driving.md has single runs of two steps.

Not run whole yet; docs/driving.md has the runs of it that were made, nine of them with 6,000 updates.
"""

from chunkwise.config.study import StudyConfig

BLIND = (
    "--waypoints.no-use-cameras --data.augment.brightness 0 --data.augment.contrast 0 --data.augment.saturation 0 "
    "--data.augment.camera-dropout 0"
)
MODELS = {
    "scratch": "",
    "history": BLIND,
    "frozen random": "--waypoints.freeze",
    "pretrained": "--waypoints.weights runs/driving-pretrain",
}
REINFORCED = {
    "no": "",
    "yes": "--train.steps 8800 --rollout.start 8000 --rollout.weight 3",
}


def get_study() -> StudyConfig:
    """Each with and without drives in closed loop that it learns from."""
    return StudyConfig(
        config="driving/modes",
        seeds=(0, 1, 2),
        grid={"model": MODELS, "reinforced": REINFORCED},
        flags=("--data.path", "datasets/driving/town"),
        metric="score",
        evaluate=("--closed-loop", "--episodes", "30"),
    )
