"""Ten tasks of Meta-World whose rounds are played beside the updates, against rounds that wait: time and success.

    chunkwise study metaworld_staleness --out studies/metaworld_staleness --workers 1

Six runs of configs/openpi_ript/metaworld_mt10.py, shortened: 320 updates that imitate, then four rounds of 160 rollouts
with 80 updates each, and with what the config had when they were measured. One run at a time, since it is their time
that is asked for.
"""

from chunkwise.config.study import StudyConfig

PATH = "datasets/openpi_ript/metaworld-mt10"


def get_study() -> StudyConfig:
    """Three seeds of both, evaluated on the same 200 held-out initial states."""
    flags = (
        "--train.steps 640 --train.updates-per-call 40 --train.eval-every 0 --rollout.start 320 --rollout.updates 80 "
        "--rollout.groups 40 --rollout.max-groups 40 --rollout.rows tasks --rollout.exploration.steps None "
        "--rollout.exploration.each 0.5 --rollout.hindsight.places last --env.state-function concatenate "
        f"--data.path {PATH} --tokenizer {PATH}/tokenizer.model --optim.learning-rate 1e-3 --train.batch-size 64 "
        "--train.log-every 50 --eval.videos 0"
    )
    return StudyConfig(
        config="openpi_ript/metaworld_mt10",
        seeds=(0, 1, 2),
        grid={"rollout.staleness": ("0", "1")},
        flags=tuple(flags.split()),
    )
