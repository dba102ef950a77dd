"""Who drives the town, and what cameras and pretraining add in closed loop, three seeds.

for SEED in 0 1 2; do
    chunkwise train driving/pretrain --run.seed $SEED --run.dir runs/driving-pretrain/seed_$SEED
done
chunkwise study driving_closed_loop --out studies/driving_closed_loop

Twelve runs of configs/driving/modes.py, each evaluated on 30 routes beside the town's own driver, one who stands,
constant velocity and the MLP on motion (`chunkwise evaluate RUN --closed-loop`); ADE, FDE and minADE at 1, 2 and 3 s
against the held-out drives are in each run's evaluation.json: `python -m driving.evaluate RUN...` makes one table of
them. history sees no image. configs/studies/driving_reinforcement.py goes on with these runs.

docs/driving_results.md has what came of scratch and history, of frozen random on 160 drives in place of 240, and of
pretrained with one pretraining for three seeds and 6,000 updates.
"""

from chunkwise.config.study import StudyConfig

BLIND = (
    "--waypoints.no-use-cameras --data.augment.brightness 0 --data.augment.contrast 0 --data.augment.saturation 0 "
    "--data.augment.camera-dropout 0"
)
MODELS = {
    "scratch": "",
    "history": BLIND,
    "frozen_random": "--waypoints.freeze",
    "pretrained": "--waypoints.weights runs/driving-pretrain/seed_{seed}",
}


def get_study() -> StudyConfig:
    """The score of 30 routes."""
    return StudyConfig(
        config="driving/modes",
        seeds=(0, 1, 2),
        grid={"model": MODELS},
        metric="score",
        evaluate=("--closed-loop", "--episodes", "30"),
    )
