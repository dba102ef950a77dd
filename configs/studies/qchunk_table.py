"""Three of the papers' tasks on two cores: QC, QC-FQL, FQL, n-step FQL, RLPD and QAM, offline then online, three seeds.

chunkwise study qchunk_table --out studies/qchunk_table

54 runs of 4,000 updates on 100,100 transitions, then 4,000 environment steps with an update each after the first 1,000;
RLPD has no offline phase. Tasks are OGBench's first of each: cube-double (move a cube), scene (open a drawer and a
window) and puzzle-3x3 (press two buttons, each of which switches its neighbours), the latter two with sparse rewards.
The transitions are play that this machine records with OGBench's oracles, 80 % of its targets chosen for the task
(record.directed): no data of OGBench's, and no figures comparable with the papers', which have a million transitions,
updates and environment steps each. Layers, batch and flow steps are those of configs/qchunk/cube_double.py; learning
rate 1e-3, tau 0.01, QC the best of 8. Environments judge success after an action, as the papers' did.
"""

from chunkwise.config.study import StudyConfig


def _task(name: str, *flags: str) -> str:
    """Flags of a task: its recordings, environments and rewards, and the length of a run on it."""
    single = f"{name}-play-singletask-task1-v0"
    record = f"--record.env {name}-v0 --record.episodes 100 --record.noise 0.3"
    directed = f"--record.directed.task {single} --record.directed.share 0.8"
    data = f"--data.path datasets/qchunk/{name}-directed --data.episodes-per-epoch 100"
    where = f"--data.task {single} --eval.env {single} --online.env {single}"
    return " ".join([record, data, directed, where, *flags, SIZE])


LENGTH = "--online.start 4000 --online.steps 4000 --train.eval-every 4000 --data.steps-per-epoch 7000"
EVAL = "--eval.episodes 50 --eval.final-episodes 50 --eval.videos 0"
SIZE = f"{LENGTH} {EVAL} --optim.learning-rate 1e-3 --agent.tau 0.01 --train.steps 7000"
TASKS = {
    "cube-double": _task("cube-double"),
    "scene-sparse": _task("scene", "--data.sparse"),
    "puzzle-3x3-sparse": _task("puzzle-3x3", "--data.sparse"),
}
RLPD = "--agent.policy gaussian --agent.horizon 1 --agent.num-critics 10 --online.interval 5"
QAM = "--agent.policy adjoint_matching --agent.num-critics 10 --agent.adjoint.inverse-temperature 1 --optim.clip-norm 1"
AGENTS = {
    "QC": "--agent.policy best_of_n --agent.num-samples 8",
    "QC-FQL": "--agent.policy distill",
    "FQL": "--agent.policy distill --agent.horizon 1 --online.interval 5",
    "n-step FQL": "--agent.policy distill --agent.no-action-chunking --online.interval 5",
    "RLPD": f"{RLPD} --online.start 0 --online.online-ratio 0.5 --train.steps 3000",
    "QAM": QAM,
}


def get_study() -> StudyConfig:
    """Each task is a table of its own, whose agents are compared with QC."""
    return StudyConfig(
        config="qchunk/cube_double",
        seeds=(0, 1, 2),
        grid={"task": TASKS, "agent": AGENTS},
        tables="task",
    )
