"""Whether drives in closed loop that a policy learns from raise its score, three seeds.

chunkwise study driving_reinforcement --out studies/driving_reinforcement

Goes on with the runs of configs/studies/driving_closed_loop.py, in studies/driving_closed_loop, each twice: sixteen
rounds of 96 drives of 5 s, 90 updates after each, and as many updates that imitate, at the same learning rate. Before
both stand the runs that they began with. history sees no image; the encoder of frozen random stays as it was drawn.

Not run whole yet; docs/driving_results.md has what was run of it, some on other drives.
"""

from chunkwise.config.study import StudyConfig

BLIND = (
    "--waypoints.no-use-cameras --data.augment.brightness 0 --data.augment.contrast 0 --data.augment.saturation 0 "
    "--data.augment.camera-dropout 0"
)
MODELS = {"scratch": "", "history": BLIND, "frozen_random": "--waypoints.freeze", "pretrained": ""}
GOES_ON = {
    "imitation": "",
    "reinforced": "--rollout.start 0 --rollout.weight 20 --rollout.routes 2048 --rollout.groups 24 --rollout.seconds 5 "
    "--rollout.lead-s 12 --rollout.keep 10 --rollout.updates 90",
}


def get_study() -> StudyConfig:
    """The score of 30 routes, of each model against its own control."""
    return StudyConfig(
        config="driving/modes",
        seeds=(0, 1, 2),
        grid={
            "model": {
                name: f"{flags} --waypoints.weights studies/driving_closed_loop/model={name}/seed_{{seed}}"
                for name, flags in MODELS.items()
            },
            "goes_on": GOES_ON,
        },
        tables="model",
        flags=("--train.steps", "1440", "--optim.learning-rate", "3e-4", "--optim.warmup-steps", "50"),
        metric="score",
        evaluate=("--closed-loop", "--episodes", "30"),
    )
