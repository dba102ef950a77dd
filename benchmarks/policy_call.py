"""How long a call of a policy takes: ours, openpi's own `Policy`, and our export, in turns and with the same weights.

    python benchmarks/policy_call.py --peer PYTHON --openpi DIR [--calls 200] [--rounds 5] [--size dummy|small]

PYTHON has openpi's packages, DIR is a checkout of github.com/Physical-Intelligence/openpi (policy_call_peer.py says
which packages). A pi0 of small size, float32, two cameras of 224 x 224 and a third that is off, a state of 8, chunks
of 50 x 7, ten denoising steps. Every call begins with raw numbers, bytes and a sentence, and ends with a chunk in the
robot's units; for the export, which takes token ids, the sentence is tokenised inside the timing. Printed are the
median and the 99th percentile in milliseconds, and the largest difference of the actions from openpi's for the same
noise; exit code 1 if that is above 1e-4.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import jax

from chunkwise.config import OptimConfig, TrainConfig
from chunkwise.data.norm_stats import NormStats
from chunkwise.policies import runner
from chunkwise.policies.export import export
from openpi_ript.config import DataConfig, GemmaConfig, ModelConfig, OpenpiRiptConfig, RobotConfig, SiglipConfig, dummy
from openpi_ript.data.lerobot_writer import train_tokenizer
from openpi_ript.data.tokenizer import PromptTokenizer
from openpi_ript.model.pi0 import Pi0, init_params
from openpi_ript.policies.policy import Policy
from openpi_ript.weights import save_openpi

STATE, ACTION = 8, 7
PROMPT = "pick up the cube and put it into the drawer"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
BOUND = 1e-4


def sizes(name: str) -> ModelConfig:
    """Returns `dummy`, half a million weights, or `small`, 60 million."""
    if name == "dummy":
        return dummy("pi0")
    part = GemmaConfig(width=512, depth=8, mlp_dim=2048, num_heads=8, num_kv_heads=1, head_dim=64)
    vision = SiglipConfig(width=384, depth=6, mlp_dim=1536, num_heads=6)
    return dataclasses.replace(dummy("pi0"), vision=vision, language=part, expert=part)


class Peer:
    """openpi's policy in its own process."""

    def __init__(self, python: str, openpi: Path, folder: Path) -> None:
        """Starts it, and waits until it has compiled."""
        script = Path(__file__).with_name("policy_call_peer.py")
        told = [python, str(script), str(openpi), str(folder)]
        self._process = subprocess.Popen(told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._answer()["version"]

    def ask(self, calls: int) -> tuple[list[float], np.ndarray]:
        """Returns the seconds of calls, and the chunk of the last one."""
        assert self._process.stdin is not None
        print(calls, file=self._process.stdin, flush=True)
        found = self._answer()
        return found["seconds"], np.array(found["actions"], np.float32)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer ended with {self._process.wait()}; run it by hand to see why")
        return json.loads(line)


def make_policy(model: ModelConfig, folder: Path) -> Policy:
    """Makes a policy with random weights, and writes for the peer what it needs of it."""
    tokenizer = folder / "tokenizer.model"
    tokenizer.write_bytes(train_tokenizer([PROMPT, "move to the red disc"]))
    config = OpenpiRiptConfig(
        train=TrainConfig(steps=1, batch_size=1),
        optim=OptimConfig(learning_rate=1e-3),
        model=model,
        data=DataConfig(
            path="none",
            robot=RobotConfig(state_dim=STATE, target_state_dim=STATE, action_dim=ACTION),
            cameras={name: name for name in CAMERAS},
            state_norm="mean_std",
            action_norm="mean_std",
        ),
        tokenizer=str(tokenizer),
    )
    params = jax.jit(lambda key: init_params(Pi0(model), key))(jax.random.key(0))
    save_openpi(params, folder / "params")
    rng, stats = np.random.default_rng(0), {}
    for name, width in (("state", STATE), ("actions", ACTION)):
        mean, std = rng.normal(size=width), rng.uniform(0.5, 2, width)
        stats[name] = NormStats(mean=mean, std=std, q01=mean - 2 * std, q99=mean + 2 * std)
    plain = {name: {"mean": one.mean.tolist(), "std": one.std.tolist()} for name, one in stats.items()}
    noise = rng.standard_normal((model.action_horizon, model.action_dim), np.float32)
    images = rng.integers(0, 256, (2, 224, 224, 3), np.uint8)
    state = rng.normal(size=STATE).astype(np.float32)
    np.savez(folder / "seen.npz", images=images, state=state, noise=noise)
    parts = {name: dataclasses.asdict(getattr(model, name)) for name in ("vision", "language", "expert")}
    about = {"model": parts, "vocab_size": model.vocab_size, "prompt": PROMPT, "stats": plain}
    (folder / "about.json").write_text(json.dumps(about))
    return Policy(config, params, stats)


def timed(call: Callable[[], np.ndarray], calls: int) -> tuple[list[float], np.ndarray]:
    """Returns the seconds of calls, and the chunk of the last one."""
    seconds, chunk = [], np.empty(0)
    for _ in range(calls):
        began = time.perf_counter()
        chunk = call()
        seconds.append(time.perf_counter() - began)
    return seconds, chunk


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="with openpi's packages")
    parser.add_argument("--openpi", required=True, type=Path, metavar="DIR", help="checkout of openpi")
    parser.add_argument("--calls", type=int, default=200, help="of each, in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=("dummy", "small"), default="dummy")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy = make_policy(sizes(given.size), folder)
        export(policy.exportable(), folder / "export", platforms=["cpu"])
        act = runner.load(folder / "export")
        tokenizer = PromptTokenizer(folder / "tokenizer.model", policy.config.model.prompt_tokens)
        peer = Peer(given.peer, given.openpi, folder)
        with np.load(folder / "seen.npz") as seen:
            images, state, noise = seen["images"], seen["state"], seen["noise"]
        asked = {
            "image": dict(zip(CAMERAS, [*images, None], strict=True)),
            "state": state,
            "prompt": PROMPT,
        }
        three = np.concatenate([images, np.zeros_like(images[:1])])
        mask = np.array([True, True, False])

        def exported() -> np.ndarray:
            tokens, token_mask = tokenizer.encode(PROMPT)
            known = {"tokens": tokens, "token_mask": token_mask, "images": three, "image_mask": mask}
            return act({**known, "state": state, "noise": noise})

        ways: dict[str, Callable[[int], tuple[list[float], np.ndarray]]] = {
            f"openpi ({peer.version})": peer.ask,
            f"chunkwise (jax {jax.__version__})": lambda calls: timed(
                lambda: policy.infer(asked, noise=noise)["actions"], calls
            ),
            "its export": lambda calls: timed(exported, calls),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        chunks = {name: way(10)[1] for name, way in ways.items()}  # compiles
        for _ in range(given.rounds):
            for name, way in ways.items():
                seconds[name] += way(given.calls)[0]
    theirs, median = next(iter(chunks.values())), {name: float(np.median(taken)) for name, taken in seconds.items()}
    reference = next(iter(median.values()))
    print("| | median ms | 99 % ms | ratio of medians | largest difference of an action |\n|---|---|---|---|---|")
    for name, taken in seconds.items():
        slow, apart = 1e3 * float(np.percentile(taken, 99)), float(np.abs(chunks[name] - theirs).max())
        print(f"| {name} | {1e3 * median[name]:.1f} | {slow:.1f} | {median[name] / reference:.2f} | {apart:.1e} |")
    return int(max(float(np.abs(chunk - theirs).max()) for chunk in chunks.values()) > BOUND)


if __name__ == "__main__":
    sys.exit(main())
