"""Meta-World's MT50 by rejection with hindsight and by imitation alone, one seed.

    chunkwise study metaworld_mt50 --out studies/metaworld_mt50

Two runs of configs/openpi_ript/metaworld_mt10.py with the fifty tasks, one demonstration of each of 47 (within 200
steps the scripts of basketball-v3, bin-picking-v3 and disassemble-v3 do not succeed, and these have none), 200 groups
a round, and 500 held-out initial states, 10 of each task; object and goal are seen from the hand; rows, exploration,
learning rate and lengths are what that config had when this was measured. An evaluation's lines have each task's
success and that of the groups by difficulty. What came of it: docs/ript.md.
"""

from chunkwise.config.study import StudyConfig

PATH = "datasets/openpi_ript/metaworld-mt50"


def get_study() -> StudyConfig:
    """The control comes last."""
    return StudyConfig(
        config="openpi_ript/metaworld_mt10",
        seeds=(0,),
        grid={"method": {"rejection": "", "control": "--rollout.dataset-share 1"}},
        flags=(
            *("--env.tasks", "MT50", "--data.path", PATH, "--tokenizer", f"{PATH}/tokenizer.model"),
            *("--env.state-function", "relative", "--rollout.hindsight.places", "passed", "--train.batch-size", "128"),
            *("--model.prompt-tokens", "48", "--demonstrate.episodes", "50"),
            *("--train.steps", "2000", "--train.eval-every", "400", "--optim.learning-rate", "1e-3"),
            *("--train.log-every", "50"),
            *("--rollout.updates", "160", "--rollout.rows", "tasks", "--rollout.exploration.steps", "None"),
            *("--rollout.exploration.each", "0.5", "--rollout.groups", "200", "--rollout.max-groups", "200"),
            *("--eval.episodes", "500", "--eval.final-episodes", "500", "--eval.videos", "0"),
        ),
    )
