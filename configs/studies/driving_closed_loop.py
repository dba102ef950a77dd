"""Who drives the town, and what cameras, pretraining and reinforcement in closed loop add, three seeds.

chunkwise train driving/pretrain --run.dir runs/driving-pretrain --model.conv.channels 32 64 --model.conv.blocks 1 2
chunkwise study driving_closed_loop --out studies/driving_closed_loop

24 runs of configs/driving/modes.py, each evaluated on 30 routes beside the town's own driver, one who stands,
constant velocity and the MLP on motion (`chunkwise evaluate RUN --closed-loop`); ADE, FDE and minADE at 1, 2 and 3 s
against the held-out drives are in each run's evaluation.json: `python -m driving.evaluate RUN...` makes one table of
them. history sees no image. The frozen random encoder reads no rays, since what reads them would stay random.
Reinforced rows go on for eight rounds of 32 drives, 400 updates after the 4,000 of the others.

Not run whole yet: no figure is promised.
"""

from chunkwise.config.study import StudyConfig

BLIND = "--waypoints.no-use-cameras --waypoints.no-use-calibration --waypoints.residual None"
MODELS = {
    "scratch": "",
    "history": BLIND,
    "frozen random": "--waypoints.no-use-calibration --waypoints.freeze",
    "pretrained": "--waypoints.weights runs/driving-pretrain",
}
REINFORCED = {
    "no": "",
    "yes": "--train.steps 4400 --rollout.start 4000",
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
