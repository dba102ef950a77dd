"""A robot's side of serving: openpi's own client asks for chunks, and a simulator executes them.

    chunkwise serve RUN --port 8000 &
    python -m examples.simulated_robot --port 8000 --env aloha-transfer-cube --episodes 100 --out served.json
    chunkwise compare RUN/evaluations/step_....json served.json

For a policy of qchunk that sees no cameras. Each episode begins where `chunkwise evaluate RUN --episodes 100` begins
it, and each request carries the seed that the policy had there, so that every episode ends as it did there: nothing is
lost on the way through the server. A robot of yours sends what its sensors show in place of the simulator, and no seed.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from chunkwise.envs.environment import Environment, state_hash
from chunkwise.envs.evaluate import Evaluation
from qchunk.envs import simulators
from qchunk.evaluate import action_seed, scene_seed


def connect(host: str, port: int, *, patience_s: float = 300.0) -> Any:
    """Returns openpi's client once the server is there: one that was just started loads and compiles first.

    Raises:
      OSError: It was not there in time.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return WebsocketClientPolicy(host, port)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def play(env: Environment, server: Any, *, episode: int, seed: int, array: str, most: int) -> dict[str, Any]:
    """Plays an episode, chunk by chunk, up to its first success or its end; returns its outcome as evaluations have it.

    Args:
      env: The simulator.
      server: openpi's client.
      episode: Its number.
      seed: Of the evaluation.
      array: Of the observation that the policy sees, as data.observation of the run.
      most: Steps after which it is cut.
    """
    begin = scene_seed(seed, episode)
    observed, rewards, success = env.reset(begin), [], False
    init_hash, step, chunk = state_hash(env.state()), server.get_server_metadata()["step"], 0
    over = False
    while not over:
        request = {"state": observed[array].astype(np.float32), "seed": action_seed(seed, step, episode, chunk)}
        for action in server.infer(request)["actions"]:
            outcome = env.step(env.clip(action))
            observed, success = outcome.observation, success or outcome.success
            rewards.append(outcome.reward)
            over = success or outcome.terminated or outcome.truncated or len(rewards) == most
            if over:
                break
        chunk += 1
    reward = float(np.sum(np.asarray(rewards, np.float64)))
    return {"seed": begin, "init_hash": init_hash, "success": success, "length": len(rewards), "reward": reward}


def main(argv: list[str] | None = None) -> int:
    """Plays the episodes, and writes their outcomes as an evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--env", default="aloha-transfer-cube", help="as eval.env")
    parser.add_argument("--observation", default="state", help="as data.observation of the run")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0, help="of the evaluation")
    parser.add_argument("--out", type=Path, required=True, help="JSON of outcomes to write")
    given = parser.parse_args(argv)
    server, env = connect(given.host, given.port), simulators.make(given.env)
    outcomes = []
    for episode in range(given.episodes):
        told = {"seed": given.seed, "array": given.observation, "most": given.max_steps}
        outcomes.append(play(env, server, episode=episode, **told))
        print(f"episode {episode}: {'success' if outcomes[-1]['success'] else 'failure'}", flush=True)
    result = Evaluation(step=server.get_server_metadata()["step"], weights="", outcomes=tuple(outcomes))
    result.save(given.out)
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
