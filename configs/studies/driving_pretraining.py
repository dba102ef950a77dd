"""Whether pretraining, or a world model learnt beside them, makes better waypoints at equal compute, three seeds.

DATA="--data.path datasets/driving/town160 --record.episodes 160"
ALONE="--objective.cross-camera 0 --objective.temporal 0 --objective.ego-motion 0 --data.offsets-s 0"
chunkwise train driving/pretrain $DATA --run.dir runs/pretrained/contrast_and_motion
chunkwise train driving/pretrain $DATA --run.dir runs/pretrained/contrast --objective.ego-motion 0
chunkwise train driving/pretrain $DATA --run.dir runs/pretrained/masked $ALONE --objective.masked 1 --train.steps 1300
chunkwise train driving/pretrain $DATA --run.dir runs/pretrained/distilled $ALONE --objective.distilled 1 \
    --train.steps 1400
chunkwise study driving_pretraining --out studies/driving_pretraining

All but the first read no pose. Each pretraining takes as long as 1,800 updates of configs/driving/waypoints.py, by the
seconds of `timing.jsonl` in 300 updates of each on two idle cores: 32 ms for waypoints, 58 for pairs of moments, 44 for
hidden tokens, 41 for self-distillation, 38 with the world model. So scratch makes 4,800 updates where a pretrained
encoder makes 3,000 more, and the world model 4,000. history sees no image; the frozen encoder stays as it was drawn.
Pretrainings are one each, of seed 0. The docs have what came of it: docs/driving_results.md.
"""

from chunkwise.config.study import StudyConfig

BLIND = (
    "--waypoints.no-use-cameras --data.augment.brightness 0 --data.augment.contrast 0 --data.augment.saturation 0 "
    "--data.augment.camera-dropout 0"
)
OBJECTIVES = ("contrast_and_motion", "contrast", "masked", "distilled")
STARTS = {
    "scratch": "--train.steps 4800",
    "history": f"--train.steps 4800 {BLIND}",
    "frozen random": "--train.steps 4800 --waypoints.freeze",
    **{name.replace("_", " "): f"--train.steps 3000 --waypoints.weights runs/pretrained/{name}" for name in OBJECTIVES},
    "world model": "--train.steps 4000 --waypoints.world.weight 0.2 --data.offsets-s 0 0.4",
}


def get_study() -> StudyConfig:
    """The error of plans of 3 s on held-out drives."""
    return StudyConfig(
        config="driving/waypoints",
        seeds=(0, 1, 2),
        grid={"start": STARTS},
        flags=("--data.path", "datasets/driving/town160", "--record.episodes", "160"),
        policies=("model",),
        metric="ade_3s",
        best="lowest",
    )
