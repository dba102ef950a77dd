"""Compares this model with numbers recorded from openpi's own code.

    python -m openpi_ript.parity FIXTURE.npz

prints a line per quantity, `name max_abs_diff rel_diff`, and exits with 1 if any rel_diff is over its bound: 1e-5 in
float32 and 5e-2 in bfloat16, which is how far openpi itself moves between two versions of jax. The fixture holds, for
pi0, pi05 and pi0_lora: weights, inputs, noise and times; the loss per step, the velocity, the loss at fixed times,
sampled chunks of 1, 4 and 10 Euler steps in both dtypes, and every gradient of the mean loss in float32; its `meta` may
hold the models' sizes, which are those of openpi's `dummy` otherwise. One is in the repository: tests/fixtures.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.errors import DataError
from chunkwise.files.npz import read_npz
from chunkwise.models.flow_matching import straight_path
from chunkwise.printable import printable
from openpi_ript.config.model import GemmaConfig, LoraConfig, ModelConfig, SiglipConfig, dummy
from openpi_ript.model.pi0 import Observation, Pi0, encode, flow_error, sample_actions, velocity
from openpi_ript.weights import by_path, model_shapes

MODELS = ("pi0", "pi05", "pi0_lora")
DTYPES: dict[str, Literal["float32", "bfloat16"]] = {"f32": "float32", "bf16": "bfloat16"}
BOUNDS = {"f32": 1e-5, "bf16": 5e-2}
FIXED_TIMES = ("0.001", "0.5", "1.0")
SAMPLE_STEPS = (1, 4, 10)

# Rounding noise in a gradient is set by the largest ones that the backward pass adds up, not by the leaf's own size:
# the bias of SigLIP's keys has a gradient of 0 in exact arithmetic and 1e-9 here, and openpi's f32 gradient of
# state_proj (a thousandth of the largest) lies 2.6e-5 of its own maximum from the same gradient in f64. Differences are
# therefore relative to at least this part of the model's largest gradient.
GRADIENT_FLOOR = 1e-2

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One compared quantity."""

    name: str
    max_abs: float
    relative: float
    """max_abs over the largest entry of what was expected."""
    bound: float

    @property
    def passed(self) -> bool:
        return self.relative <= self.bound  # false for NaN

    def __str__(self) -> str:
        return f"{self.name} {self.max_abs:.3e} {self.relative:.3e}"


def load_fixture(path: str | Path) -> dict[str, np.ndarray]:
    """Arrays of the fixture by name.

    Raises:
      DataError: If the file is missing or no .npz of plain arrays.
    """
    expected = f"{path}: expected a parity fixture, an .npz of plain arrays, found"
    try:
        return read_npz(path)
    except FileNotFoundError as error:
        raise DataError(f"{expected} no such file") from error
    except (OSError, DataError) as error:
        raise DataError(f"{expected} {str(error).removeprefix(printable(f'{path}: '))}") from error


def model_config(fixture: Arrays, name: str, dtype: Literal["float32", "bfloat16"]) -> ModelConfig:
    """Sizes of the fixture's model `name`.

    Raises:
      DataError: If the fixture's `meta` does not say them as it should.
    """
    kind = "pi05" if name == "pi05" else "pi0"
    config = dataclasses.replace(dummy(kind), dtype=dtype)
    lora = LoraConfig(rank=4, alpha=4.0)
    try:
        meta = json.loads(fixture["meta"].tobytes()) if "meta" in fixture else {}
        if "sizes" in meta:
            sizes = dict(meta["sizes"])
            parts = {part: GemmaConfig(**sizes.pop(part)) for part in ("language", "expert")}
            vision = SiglipConfig(**sizes.pop("vision"))
            tokens = meta["prompt_tokens"][kind]
            config = dataclasses.replace(config, **parts, vision=vision, prompt_tokens=tokens, **sizes)
            lora = LoraConfig(**meta["lora"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"meta: expected the sizes of the models in JSON, found {error!r}") from error
    if name != "pi0_lora":
        return config
    language, expert = (dataclasses.replace(part, lora=lora) for part in (config.language, config.expert))
    return dataclasses.replace(config, language=language, expert=expert)


def model_params(fixture: Arrays, name: str) -> Any:
    """Recorded weights of one model as a tree.

    Raises:
      DataError: If names or shapes are not those of the model.
    """
    prefix = f"{name}/params/"
    flat = {key.removeprefix(prefix): value for key, value in fixture.items() if key.startswith(prefix)}
    shapes = {key: leaf.shape for key, leaf in model_shapes(Pi0(model_config(fixture, name, "float32"))).items()}
    if shapes != {key: value.shape for key, value in flat.items()}:
        differ = sorted(set(shapes.items()) ^ {(key, value.shape) for key, value in flat.items()})
        raise DataError(f"{prefix}: expected the names and shapes of the model, these differ: {differ}")
    return traverse_util.unflatten_dict({key: jnp.asarray(value) for key, value in flat.items()}, sep="/")


def observation(fixture: Arrays, config: ModelConfig) -> Observation:
    """Recorded inputs; cameras in the order of their names."""
    cameras = sorted(key.rsplit("/", 1)[1] for key in fixture if key.startswith("inputs/image_u8/"))
    return Observation(
        images=jnp.stack([fixture[f"inputs/image_u8/{camera}"] for camera in cameras], axis=1),
        image_mask=jnp.stack([fixture[f"inputs/image_mask/{camera}"] for camera in cameras], axis=1),
        state=jnp.asarray(fixture["inputs/state"]),
        tokens=jnp.asarray(fixture[f"inputs/tokens/{config.prompt_tokens}"]),
        token_mask=jnp.asarray(fixture[f"inputs/token_mask/{config.prompt_tokens}"]),
    )


def compare(name: str, got: Any, expected: np.ndarray, bound: float, floor: float = 0.0) -> Difference:
    """Largest difference, also relative to the largest expected entry (at least `floor`)."""
    max_abs = float(np.abs(np.asarray(got, np.float64) - expected.astype(np.float64)).max())
    scale = max(float(np.abs(expected).max()), floor)
    return Difference(name=name, max_abs=max_abs, relative=max_abs / scale if max_abs else 0.0, bound=bound)


def outputs(fixture: Arrays, name: str, dtype: str) -> Iterator[Difference]:
    """Loss, velocity, loss at fixed times and sampled chunks of one model in one dtype ("f32" or "bf16")."""
    config = model_config(fixture, name, DTYPES[dtype])
    model, params, seen = Pi0(config), model_params(fixture, name), observation(fixture, config)
    actions, noise = jnp.asarray(fixture["inputs/actions"]), jnp.asarray(fixture[f"{name}/loss_noise"])

    context = jax.jit(lambda params: encode(model, params, seen))(params)

    @jax.jit
    def evaluate(time: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_t, _ = straight_path(actions, noise, time[:, None, None])
        v = velocity(model, params, context, x_t, time, None)
        return flow_error(model, params, context, actions, noise, time, None), v

    def difference(quantity: str, got: jax.Array) -> Difference:
        full = f"{name}/{dtype}/{quantity}"
        return compare(full, got, fixture[full], BOUNDS[dtype])

    drawn = jnp.asarray(fixture[f"{name}/loss_time"])
    error, v_t = evaluate(drawn)
    yield difference("loss", error)
    yield difference("v_t", v_t)
    for time in FIXED_TIMES:
        yield difference(f"loss_t{time}", evaluate(jnp.full_like(drawn, float(time)))[0])
    start = jnp.asarray(fixture["inputs/sample_noise"])
    sample = jax.jit(sample_actions, static_argnums=0)
    for steps in SAMPLE_STEPS:
        yield difference(f"actions_n{steps}", sample(model, params, context, start, steps))


def gradients(fixture: Arrays, name: str) -> Iterator[Difference]:
    """Gradient of the mean loss for every weight of one model, in float32."""
    config = model_config(fixture, name, "float32")
    model, params, seen = Pi0(config), model_params(fixture, name), observation(fixture, config)
    actions, noise = jnp.asarray(fixture["inputs/actions"]), jnp.asarray(fixture[f"{name}/loss_noise"])
    time = jnp.asarray(fixture[f"{name}/loss_time"])

    @jax.jit
    @jax.grad
    def gradient(params: Any) -> jax.Array:
        context = encode(model, params, seen)
        return flow_error(model, params, context, actions, noise, time, None).mean()

    got = by_path(gradient(params))
    floor = GRADIENT_FLOOR * max(float(np.abs(fixture[f"{name}/grad/{key}"]).max()) for key in got)
    for key in sorted(got):
        full = f"{name}/grad/{key}"
        yield compare(full, got[key], fixture[full], BOUNDS["f32"], floor)


def differences(fixture: Arrays) -> Iterator[Difference]:
    """Everything that the fixture records."""
    for name in MODELS:
        for dtype in DTYPES:
            yield from outputs(fixture, name, dtype)
        yield from gradients(fixture, name)


def main(argv: list[str] | None = None) -> int:
    """Prints all differences; 1 if one is over its bound, 65 if the fixture can't be used."""
    parser = Parser(prog="python -m openpi_ript.parity", description="Compares this model with openpi's own numbers.")
    parser.add_argument("fixture", help=".npz recorded from openpi's own code")
    path = parser.parse_args(argv).fixture
    failed = []
    try:
        for difference in differences(load_fixture(path)):
            print(difference, flush=True)
            if not difference.passed:
                failed.append(difference)
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for difference in failed:
        print(f"over its bound of {difference.bound:g}: {difference}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    command.run(main)
