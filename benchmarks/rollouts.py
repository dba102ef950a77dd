"""Environment steps a second: the collector against one environment stepped serially with inference for one.

    python benchmarks/rollouts.py [--suite robosuite] [--num-envs 4] [--rollouts 16] [--rounds 3] [--latencies FILE]
    python benchmarks/rollouts.py --suite metaworld --ray

All play the same rollouts with a policy at random weights, state only, and every rollout to its time limit, in
interleaved rounds: robosuite's Lift with that of configs/openpi_ript/ript_lift.py, Meta-World's reach-v3 with that of
metaworld_mt10.py. Beside the ratio: where the time went, in the serial loop and, seen from the process that infers, in
the collector. The first round is not counted: compiling. With --ray the collector's environments are also put on a Ray
of this machine. With --latencies what single steps, inferences and requests took is written for the simulation of
benchmarks/hosts.py.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import jax
import numpy as np

from chunkwise.config.experiment import FleetConfig
from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs.collect import Job
from chunkwise.envs.environment import Environment
from chunkwise.train.rngs import key
from configs.openpi_ript import metaworld_mt10, ript_lift
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.data.lerobot_writer import train_tokenizer
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.envs.make import make
from openpi_ript.model.pi0 import Pi0, init_params
from openpi_ript.ript.acting import ActingPolicy
from openpi_ript.ript.collect import Collector


class Timed:
    """A callable that adds up the seconds spent in it."""

    def __init__(self, call: Any) -> None:
        self.call, self.each = call, list[float]()
        self.step, self.weights, self.chunk = 0, "", (0, 0)  # of a policy

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.call(*arguments, **named)
        finally:
            self.each.append(time.perf_counter() - began)

    @property
    def seconds(self) -> float:
        return sum(self.each)


@dataclasses.dataclass(frozen=True)
class Each:
    """Seconds of single calls."""

    step: list[float] = dataclasses.field(default_factory=list)
    inference: list[float] = dataclasses.field(default_factory=list)
    request: list[float] = dataclasses.field(default_factory=list)
    """What the collecting process spent besides on each request; a mean of each round."""

    def write(self, path: Path, settings: EnvConfig) -> None:
        """Writes 101 quantiles of each, and the sizes that they belong to."""
        quantiles = {
            name: np.quantile(seconds, np.linspace(0, 1, 101)).tolist() for name, seconds in vars(self).items()
        }
        sizes = {"rows": settings.rows, "chunk": settings.execute, "length": settings.max_steps}
        path.write_text(json.dumps(quantiles | sizes) + "\n")


def make_config(suite: str, num_envs: int, folder: Path) -> OpenpiRiptConfig:
    """The suite's, without a dataset, and without normalisation, which needs one."""
    config = (metaworld_mt10 if suite == "metaworld" else ript_lift).get_config()
    tokenizer = folder / "tokenizer.model"
    tokenizer.write_bytes(train_tokenizer(["lift the red cube"]))
    assert config.env is not None
    env = dataclasses.replace(config.env, num_envs=num_envs)
    data = dataclasses.replace(config.data, state_norm="none", action_norm="none")
    if suite == "metaworld":
        env = dataclasses.replace(env, tasks=(), task="reach-v3", prompt="reach the goal")
    if suite == "point":
        env = dataclasses.replace(env, suite="point", task="red", state=("robot0_eef_pos", "robot0_eef_quat"))
        robot = dataclasses.replace(data.robot, state_dim=7, action_dim=3)
        data = dataclasses.replace(data, robot=robot)
    return dataclasses.replace(config, env=env, data=data, tokenizer=str(tokenizer))


def make_policy(config: OpenpiRiptConfig) -> ActingPolicy:
    """Random weights: the arithmetic is that of trained ones."""
    policy = ActingPolicy(config, {})
    model = Pi0(config.model)
    policy.use(jax.jit(lambda: init_params(model, key(0, "benchmark")))(), 0)
    return policy


def jobs(count: int) -> list[Job]:
    """Rollouts of different initial states."""
    return [
        Job(number=n, seed=seed_of(Purpose.ROLLOUT_SCENE, 0, n), draw=(0, n), path=Path(f"rollout_{n}.npz"))
        for n in range(count)
    ]


def serial(
    config: OpenpiRiptConfig, env: Environment, policy: ActingPolicy, todo: Sequence[Job]
) -> tuple[int, dict[str, Timed]]:
    """Steps taken, and what was timed, by purpose: one environment, one row, nothing at the same time."""
    settings = config.env
    assert settings is not None
    infer, step = Timed(policy), Timed(env.step)
    steps = 0
    for job in todo:
        observed, done = env.reset(job.seed), 0
        while done < settings.max_steps:
            rng = np.random.default_rng([*job.draw, done])
            state = policy_state(observed, settings.state, settings.state_function)[None]
            noise = rng.standard_normal((1, *policy.chunk), np.float32)
            chunk = infer({"state": state, "image": {}, "prompt": [settings.prompt]}, noise)[0]
            for action in chunk[: min(settings.execute, settings.max_steps - done)]:
                observed = step(env.clip(action)).observation
                done += 1
        steps += done
    return steps, {"inference": infer, "environment": step}


def collected(collector: Collector, policy: ActingPolicy, todo: Sequence[Job]) -> tuple[int, dict[str, Timed]]:
    """The same with workers: seconds that the inferring process spent inferring, and waiting for workers."""
    infer, receive = Timed(policy), Timed(collector.workers.receive)
    infer.step, infer.weights, infer.chunk = policy.step, policy.weights, policy.chunk
    lengths: list[int] = []
    plain = collector.workers.receive
    collector.workers.receive = receive  # pyright: ignore[reportAttributeAccessIssue]
    try:
        actor: Any = infer
        collector.collect(todo, actor, lambda job, rollout: lengths.append(rollout.length))
    finally:
        collector.workers.receive = plain
    return sum(lengths), {"inference": infer, "waiting for workers": receive}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=["robosuite", "metaworld", "point"], default="robosuite")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--rollouts", type=int, default=16, help="of one round")
    parser.add_argument("--rounds", type=int, default=3, help="counted ones")
    parser.add_argument("--latencies", type=Path, metavar="FILE.json", help="where single latencies are written")
    parser.add_argument("--ray", action="store_true", help="also on a Ray of this machine")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(arguments.suite, arguments.num_envs, Path(folder))
        assert config.env is not None
        policy, env = make_policy(config), make(config.env)
        collectors = {"collector": Collector(config.env)}
        if arguments.ray:
            collectors["ray"] = Collector(config.env, fleet=FleetConfig(address="local"))
        todo = jobs(arguments.rollouts)
        each = Each()
        rates: dict[str, list[float]] = {"serial": [], **{name: [] for name in collectors}}
        for number in range(arguments.rounds + 1):
            for name in rates:
                began = time.perf_counter()
                if name == "serial":
                    steps, calls = serial(config, env, policy, todo)
                else:
                    steps, calls = collected(collectors[name], policy, todo)
                wall = time.perf_counter() - began
                spent = {part: one.seconds for part, one in calls.items()}
                rest = {"other": wall - sum(spent.values())}
                shares = ", ".join(f"{part} {seconds / wall:.0%}" for part, seconds in (spent | rest).items())
                print(f"round {number} {name:9} {steps / wall:7.1f} steps/s   {shares}", flush=True)
                if number:
                    rates[name].append(steps / wall)
                    if name == "serial":
                        each.step.extend(calls["environment"].each)
                    elif name == "collector":
                        each.inference.extend(calls["inference"].each)
                        each.request.append(rest["other"] * config.env.execute / steps)
        for collector in collectors.values():
            collector.close()
        if arguments.latencies:
            each.write(arguments.latencies, config.env)
        if arguments.ray:
            tell(arguments, rates, "ray", "collector")
        tell(arguments, rates, "collector", "serial")  # last: what `make bench` reads


def tell(arguments: argparse.Namespace, rates: dict[str, list[float]], ours: str, theirs: str) -> None:
    """Prints the ratio of two, round by round."""
    ratios = [mine / other for mine, other in zip(rates[ours], rates[theirs], strict=True)]
    print(
        f"{arguments.suite}, {ours} against {theirs}: {statistics.median(rates[ours]):.0f} against "
        f"{statistics.median(rates[theirs]):.0f} steps/s: {statistics.median(ratios):.2f} times "
        f"({min(ratios):.2f} to {max(ratios):.2f}), {arguments.num_envs} environments"
    )


if __name__ == "__main__":
    main()
