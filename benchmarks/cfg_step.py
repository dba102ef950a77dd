"""What the second branch of a guided training step costs, with one prefix for both and with two.

    python benchmarks/cfg_step.py [--scale 16] [--layers 2] [--batch 2] [--repeats 5]

pi0 at full lengths (three cameras of 256 tokens and 48 of prompt, then state and 50 actions) and full proportions of
widths and layers, both divided: widths by --scale, layers to --layers of the transformers. A step is loss, gradient and
Adam. Compared, in one run:

    one branch    supervised step: prefix and one suffix
    two branches  guided step: one prefix, both suffixes in one batch
    naive         guided step on a batch that holds each sample twice, once for each branch

FLOPs are XLA's own count for the compiled step, with the layer loops unrolled (its count of a loop is of one pass). The
layers are rematerialised, as at full size. Last, without a second run, the FLOPs of the loss and gradient at true size,
counted on the program before compilation. Claim: two branches / one branch is at most 1.25 in time and FLOPs.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import jax
import jax.numpy as jnp
import optax

from openpi_ript.config.experiment import GuidanceConfig
from openpi_ript.config.model import ModelConfig, Optimality, full
from openpi_ript.model.guidance import guided_loss
from openpi_ript.model.pi0 import Observation, Pi0, flow_loss, init_params

CAMERAS = 3
CLAIM = 1.25
GUIDANCE = GuidanceConfig()
NAMES = ("one branch", "two branches", "naive")

Loss = Callable[[Any, Any], jax.Array]


def small(scale: int, layers: int) -> ModelConfig:
    """pi0 with widths divided and the proportion of SigLIP's 27 layers to Gemma's 18 kept."""
    config = full("pi0")
    vision, language, expert = config.vision, config.language, config.expert
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 4 * language.head_dim // scale}
    return dataclasses.replace(
        config,
        vision=dataclasses.replace(
            vision, width=1152 // scale, mlp_dim=4304 // scale, depth=layers * 27 // 18, num_heads=2
        ),
        language=dataclasses.replace(language, width=2048 // scale, mlp_dim=16_384 // scale, depth=layers, **heads),
        expert=dataclasses.replace(expert, width=1024 // scale, mlp_dim=4096 // scale, depth=layers, **heads),
        vocab_size=512,
        dtype="float32",
    )


def losses(config: ModelConfig) -> dict[str, tuple[Pi0, Loss]]:
    """Model and loss (params, batch) -> scalar of each variant."""
    plain = Pi0(dataclasses.replace(config, optimality=False))
    guided = Pi0(dataclasses.replace(config, optimality=True))
    key = jax.random.key(0)

    def one(params: Any, batch: Any) -> jax.Array:
        return flow_loss(plain, params, batch["observation"], batch["actions"], batch["is_pad"], key)[0]

    def two(params: Any, batch: Any) -> jax.Array:
        b = batch["actions"].shape[0]
        label = jnp.full((b,), Optimality.POSITIVE, jnp.int32)
        return guided_loss(guided, params, **batch_arguments(batch), label=label, config=GUIDANCE, key=key)[0]

    def naive(params: Any, batch: Any) -> jax.Array:
        # label_dropout with probability 0 is one pass with one condition a row: here the batch holds each row twice.
        twice = jax.tree.map(lambda x: jnp.concatenate([x, x]), batch)
        b = batch["actions"].shape[0]
        label = jnp.repeat(jnp.array([Optimality.POSITIVE, Optimality.NONE], jnp.int32), b, total_repeat_length=2 * b)
        setting = GuidanceConfig(loss="label_dropout", dropout=0.0)
        return guided_loss(guided, params, **batch_arguments(twice), label=label, config=setting, key=key)[0]

    return dict(zip(NAMES, ((plain, one), (guided, two), (guided, naive)), strict=True))


def batch_arguments(batch: Any) -> dict[str, Any]:
    """Arguments of `guided_loss` that come from the batch."""
    return {
        "observation": batch["observation"],
        "actions": batch["actions"],
        "action_is_pad": batch["is_pad"],
        "advantage": jnp.ones(batch["actions"].shape[0]),
    }


def make_batch(config: ModelConfig, b: int) -> Any:
    """Random inputs of full lengths, nothing masked."""
    size, n = config.image_size, config.prompt_tokens
    keys = jax.random.split(jax.random.key(1), 4)
    return {
        "observation": Observation(
            images=jax.random.randint(keys[0], (b, CAMERAS, size, size, 3), 0, 256, jnp.int32).astype(jnp.uint8),
            image_mask=jnp.ones((b, CAMERAS), bool),
            state=jax.random.normal(keys[1], (b, config.action_dim)),
            tokens=jax.random.randint(keys[2], (b, n), 0, 512, jnp.int32),
            token_mask=jnp.ones((b, n), bool),
        ),
        "actions": jax.random.normal(keys[3], (b, config.action_horizon, config.action_dim)),
        "is_pad": jnp.zeros((b, config.action_horizon), bool),
    }


def flops(analysis: Any) -> float:
    """FLOPs of a cost analysis, which is a dict or a list with one."""
    return (analysis[0] if isinstance(analysis, list) else analysis)["flops"]


def measure(config: ModelConfig, b: int, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of a step (rounds interleaved, so that a busy machine slows all alike) and FLOPs compiled."""
    optimiser = optax.adam(1e-4)

    def step_of(loss: Loss) -> Any:
        def step(params: Any, opt_state: Any, batch: Any) -> Any:
            updates, opt_state = optimiser.update(jax.grad(loss)(params, batch), opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        return jax.jit(step)

    batch = make_batch(config, b)
    unrolled = dataclasses.replace(config, scan_unroll=config.vision.depth)
    steps, states, counted = {}, {}, {}
    for name, (model, loss) in losses(config).items():
        _, loss_unrolled = losses(unrolled)[name]
        params = jax.jit(init_params, static_argnums=0)(model, jax.random.key(0))
        states[name] = (params, optimiser.init(params))
        steps[name] = step_of(loss).lower(*states[name], batch).compile()
        counted[name] = flops(step_of(loss_unrolled).lower(*states[name], batch).compile().cost_analysis())
        jax.block_until_ready(steps[name](*states[name], batch))
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(repeats):
        for name in NAMES:
            start = time.perf_counter()
            jax.block_until_ready(steps[name](*states[name], batch))
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}, counted


def count_at_full_size(b: int) -> dict[str, float]:
    """FLOPs of loss and gradient of the full model before compilation; no weight exists."""
    config = full("pi0")
    config = dataclasses.replace(config, scan_unroll=config.vision.depth)
    batch = jax.eval_shape(lambda: make_batch(config, b))
    counted = {}
    for name, (model, loss) in losses(config).items():
        shapes = jax.eval_shape(lambda key, m=model: init_params(m, key), jax.random.key(0))
        counted[name] = flops(jax.jit(jax.grad(loss)).lower(shapes, batch).cost_analysis())
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=16, help="widths are divided by this")
    parser.add_argument("--layers", type=int, default=2, help="of the transformers; SigLIP has 1.5 times as many")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    config = small(options.scale, options.layers)
    seconds, compiled = measure(config, options.batch, options.repeats)
    true_size = count_at_full_size(options.batch)
    print(f"{'':14}{'step':>10}{'ratio':>8}{'GFLOP':>10}{'ratio':>8}{'GFLOP, true size':>19}{'ratio':>8}")
    for name in NAMES:
        row = f"{name:14}{seconds[name] * 1e3:>7.0f} ms{seconds[name] / seconds[NAMES[0]]:>8.3f}"
        row += f"{compiled[name] / 1e9:>10.1f}{compiled[name] / compiled[NAMES[0]]:>8.3f}"
        print(row + f"{true_size[name] / 1e9:>19.0f}{true_size[name] / true_size[NAMES[0]]:>8.3f}")
    two = NAMES[1]
    worst = max(seconds[two] / seconds[NAMES[0]], compiled[two] / compiled[NAMES[0]])
    print(f"two branches / one branch: {worst:.3f} (claim: at most {CLAIM})")
    sys.exit(worst > CLAIM)


if __name__ == "__main__":
    main()
