"""The papers' tasks side by side: QC, QC-FQL, FQL, n-step FQL, RLPD and QAM, offline then online, three seeds.

chunkwise study qchunk_table --out studies/qchunk_table

54 runs of configs/qchunk/cube_double.py, meant for at most 40 minutes each on two cores: 15,000 updates on 250,000
transitions of play that this machine records with OGBench's oracles (not OGBench's own files), then 15,000 environment
steps with an update each after the first 1,000. RLPD has no offline phase. The papers' settings, but for sizes (3
layers of 256, batch 128, 5 flow steps), the best of 8 and not of 32, and the number of updates; tau of QAM is 1
everywhere, where its authors take 3 for puzzle-3x3. Tasks are OGBench's default ones, 2, 2 and 4, where the papers
take five each; scene and puzzle-3x3 have sparse rewards, and environments judge success after an action, as the
papers' did.

Not run whole yet: no figure is promised.
"""

from chunkwise.config.study import StudyConfig


def _task(name: str, task: int, *flags: str) -> str:
    """Flags of a task, its recordings and environments."""
    single = f"{name}-play-singletask-task{task}-v0"
    where = f"--data.task {single} --eval.env {single} --online.env {single}"
    return " ".join([where, f"--record.env {name}-v0 --data.path datasets/qchunk/{name}-play-250k", *flags])


TASKS = {
    "cube-double": _task("cube-double", 2),
    "scene-sparse": _task("scene", 2, "--data.sparse"),
    "puzzle-3x3-sparse": _task("puzzle-3x3", 4, "--data.sparse"),
}
RLPD = "--agent.policy gaussian --agent.horizon 1 --agent.num-critics 10 --online.interval 5"
QAM = "--agent.policy adjoint_matching --agent.num-critics 10 --agent.adjoint.inverse-temperature 1 --optim.clip-norm 1"
AGENTS = {
    "QC": "--agent.policy best_of_n --agent.num-samples 8",
    "QC-FQL": "--agent.policy distill",
    "FQL": "--agent.policy distill --agent.horizon 1 --online.interval 5",
    "n-step FQL": "--agent.policy distill --agent.no-action-chunking --online.interval 5",
    "RLPD": f"{RLPD} --online.start 0 --online.online-ratio 0.5 --train.steps 14000",
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
