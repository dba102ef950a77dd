"""One task of the papers' on two cores: QC, QC-FQL, FQL, n-step FQL, RLPD and QAM, offline then online, three seeds.

chunkwise study qchunk_scene --out studies/qchunk_scene

Scene with sparse rewards, task 1: open a drawer and a window. 18 runs of 4,000 updates on 100,100 transitions, then
4,000 environment steps with an update each after the first 1,000; RLPD has no offline phase. The transitions are play
that this machine records with OGBench's oracles, 80 % of its targets chosen for the task (record.directed): no data of
OGBench's, and no figures comparable with the papers'. Sizes are those of configs/qchunk/cube_double.py; learning rate
1e-3, tau 0.01, QC the best of 8. The environment judges success after an action, as the papers' did.

Run with three seeds: QAM 98 %, QC 91 %, QC-FQL 64 %, n-step FQL 19 %, FQL 17 %, RLPD 1 % of 150 episodes each
(docs/qchunk.md).
"""

from chunkwise.config.study import StudyConfig

TASK = "scene-play-singletask-task1-v0"
DATA = "--record.env scene-v0 --record.episodes 100 --record.noise 0.3 --data.path datasets/qchunk/scene-directed"
PLAY = f"{DATA} --record.directed.task {TASK} --record.directed.share 0.8 --data.episodes-per-epoch 100"
WHERE = f"--data.task {TASK} --eval.env {TASK} --online.env {TASK} --data.sparse"
LENGTH = "--online.start 4000 --online.steps 4000 --train.eval-every 4000 --data.steps-per-epoch 7000"
EVAL = "--eval.episodes 50 --eval.final-episodes 50 --eval.videos 0"
SIZE = f"{LENGTH} {EVAL} --optim.learning-rate 1e-3 --agent.tau 0.01"
PLAIN = f"{PLAY} {WHERE} {SIZE} --train.steps 7000"
RLPD = "--agent.policy gaussian --agent.horizon 1 --agent.num-critics 10 --online.interval 5 --online.start 0"
QAM = "--agent.policy adjoint_matching --agent.num-critics 10 --agent.adjoint.inverse-temperature 1 --optim.clip-norm 1"
AGENTS = {
    "QC": f"{PLAIN} --agent.policy best_of_n --agent.num-samples 8",
    "QC-FQL": f"{PLAIN} --agent.policy distill",
    "FQL": f"{PLAIN} --agent.policy distill --agent.horizon 1 --online.interval 5",
    "n-step FQL": f"{PLAIN} --agent.policy distill --agent.no-action-chunking --online.interval 5",
    "RLPD": f"{PLAIN} {RLPD} --online.online-ratio 0.5 --train.steps 3000",
    "QAM": f"{PLAIN} {QAM}",
}


def get_study() -> StudyConfig:
    """Agents are compared with QC."""
    return StudyConfig(
        config="qchunk/cube_double",
        seeds=(0, 1, 2),
        grid={"agent": AGENTS},
    )
