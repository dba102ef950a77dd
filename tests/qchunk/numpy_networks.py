"""The networks' forward passes in float64 numpy, from the same weights."""

from typing import Any

import numpy as np


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(params: Any, x: np.ndarray) -> np.ndarray:
    """Layer norm over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return scaled * np.asarray(params["scale"], np.float64) + np.asarray(params["bias"], np.float64)


def mlp(params: Any, x: np.ndarray) -> np.ndarray:
    """chunkwise.models.layers.MLP on the concatenated inputs; layer norm where there are weights for it."""
    x = np.asarray(x, np.float64)
    depth = sum(name.startswith("layer_") for name in params)
    for i in range(depth):
        if i > 0:
            x = gelu(x)
            x = norm(params[f"norm_{i - 1}"], x) if f"norm_{i - 1}" in params else x
        layer = params[f"layer_{i}"]
        x = x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
    return x


def policy(params: Any, *inputs: np.ndarray) -> np.ndarray:
    """qchunk.models.networks.ChunkPolicy."""
    return mlp(params["mlp"], np.concatenate(inputs, axis=-1))


def critic(params: Any, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    """qchunk.models.networks.Critic: one row of values per ensemble member."""
    x = np.concatenate([s, a], axis=-1)
    first = params["mlp"]
    members = len(first["layer_0"]["bias"])
    pick = [{layer: {k: w[e] for k, w in leaf.items()} for layer, leaf in first.items()} for e in range(members)]
    return np.stack([mlp(member, x)[..., 0] for member in pick])


def velocity(params: Any, s: np.ndarray, x: np.ndarray, t: np.ndarray, predicts: str = "velocity") -> np.ndarray:
    """The flow's velocity: what the network gives out, or the way to the chunk that it predicts over the time left."""
    output = policy(params, s, x, t)
    return output if predicts == "velocity" else (output - x) / np.where(t > 0.95, 0.05, 1 - t)


def flow_chunks(params: Any, s: np.ndarray, z: np.ndarray, steps: int, predicts: str = "velocity") -> np.ndarray:
    """Euler steps from noise to chunks."""
    x = np.asarray(z, np.float64)
    for i in range(steps):
        x = x + velocity(params, s, x, np.full((*x.shape[:-1], 1), i / steps), predicts) / steps
    return np.clip(x, -1, 1)
