"""The official implementation of Q-chunking, timed for benchmarks/qchunk_update.py in an environment of its own.

Started by it as `PYTHON qchunk_peer.py DIR SITE`: DIR holds a checkout of github.com/ColinQiyangLi/qc, PYTHON the
packages that its agents need (requirements.txt: jax, flax, distrax, tensorflow-probability, ml_collections), and SITE
the simulator where PYTHON has none. Reads a command a line, and answers each with the seconds that it took:

  update AGENT COUNT      COUNT updates of qc or qc_fql as its main.py makes them, batches drawn from its dataset
  evaluate EPISODES       as its evaluation.py does, with the QC-FQL agent; answers seconds and environment steps
"""

import sys
import time
from typing import Any

import numpy as np

OBSERVATION, ACTION, HORIZON, BATCH, TRANSITIONS = 46, 5, 5, 256, 100_000
ENV = "cube-triple-singletask-task2-v0"


def make_agent(name: str) -> Any:
    """An official agent with its default sizes: four layers of 512, two critics, 10 flow steps, 32 samples."""
    from agents.acfql import ACFQLAgent, get_config  # pyright: ignore[reportMissingImports]

    config = get_config()
    config.horizon_length = HORIZON
    config.actor_type = {"qc": "best-of-n", "qc_fql": "distill-ddpg"}[name]
    return ACFQLAgent.create(0, np.zeros(OBSERVATION, np.float32), np.zeros(ACTION, np.float32), config)


def make_dataset() -> Any:
    """Random transitions in the official container, in episodes of 1000."""
    from utils.datasets import Dataset  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)
    ends = (np.arange(TRANSITIONS) % 1000 == 999).astype(np.float32)
    return Dataset.create(
        observations=rng.normal(size=(TRANSITIONS, OBSERVATION)).astype(np.float32),
        next_observations=rng.normal(size=(TRANSITIONS, OBSERVATION)).astype(np.float32),
        actions=np.tanh(rng.normal(size=(TRANSITIONS, ACTION))).astype(np.float32),
        rewards=np.full(TRANSITIONS, -1, np.float32),
        masks=np.ones(TRANSITIONS, np.float32),
        terminals=ends,
    )


def evaluate(agent: Any, episodes: int) -> tuple[float, int]:
    """Seconds and environment steps of the official evaluation."""
    import gymnasium
    import ogbench.manipspace  # noqa: F401  (registers the environments)
    from evaluation import evaluate as official  # pyright: ignore[reportMissingImports]

    env = gymnasium.make(ENV, disable_env_checker=True)
    began = time.perf_counter()
    _, trajectories, _ = official(agent, env, num_eval_episodes=episodes, action_dim=ACTION)
    return time.perf_counter() - began, sum(len(one["reward"]) for one in trajectories)


def main() -> None:
    """Answers commands until the input ends."""
    sys.path.insert(0, sys.argv[1])
    sys.path.append(sys.argv[2])
    import jax

    print(f"jax {jax.__version__}", flush=True)
    agents, dataset = {name: make_agent(name) for name in ("qc", "qc_fql")}, make_dataset()
    for line in sys.stdin:
        command, *words = line.split()
        if command == "update":
            name, count = words[0], int(words[1])
            agent, began = agents[name], time.perf_counter()
            for _ in range(count):
                batch = dataset.sample_sequence(BATCH, sequence_length=HORIZON, discount=0.99)
                agent, _ = agent.update(batch)
            jax.block_until_ready(agent.network.params)
            agents[name] = agent
            print(time.perf_counter() - began, flush=True)
        else:
            print(*evaluate(agents["qc_fql"], int(words[0])), flush=True)


if __name__ == "__main__":
    main()
