"""What can be said of a policy and its critic without a simulator: on episodes that training never saw.

How far sampled chunks are from the recorded ones, by step and by dimension, and whether the critic's values are the
returns that the recorded episodes went on to have.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64

from chunkwise.data import norm_stats
from chunkwise.data.holdout import spaced
from chunkwise.data.sampling import EpisodeDraw
from qchunk.config import QChunkConfig
from qchunk.data.dataset import Dataset, load_episode
from qchunk.data.holdout import measured, open_measured
from qchunk.data.pool import Pool
from qchunk.policies.policy import QChunkPolicy


class OfflineMetrics:
    """Measures policies on the same starts at every evaluation and with the same draws, so that curves are smooth."""

    def __init__(self, config: QChunkConfig, dataset: Dataset) -> None:
        """Loads the episodes held out that are measured, their images in the way that takes less memory.

        Raises:
          DataError: There are none, or an episode could not be read.
          ConfigError: Their images need more than data.memory_gib.
        """
        source = dataset.source
        indices = measured(config.data, source)
        self.episodes = len(indices)
        starts = spaced(int(source.lengths[indices].sum()), config.train.batch_size)
        self._rows = starts.shape[1]
        self._starts = starts.ravel()
        # As recorded: what a policy is asked, and what it answers, in the robot's units.
        widths = {"action_norm": dataset.action_norm, "observation_norm": dataset.observation_norm}
        plain = {name: norm_stats.identity(len(norm.offset)) for name, norm in widths.items()}
        self._pool = Pool(
            config,
            epoch=0,
            shard=0,
            dataset=dataclasses.replace(dataset, **plain),
            store=open_measured(config, source),
            episodes=EpisodeDraw(indices=indices, notes=()),
        )
        returns = [
            returns_to_go(episode.reward, episode.terminated, config.agent.discount)
            for episode in (load_episode(source, int(index)) for index in indices)
        ]
        self._steps, self._critic_steps = config.agent.action_horizon, config.agent.critic_steps
        self._returns = np.concatenate(returns)[self._starts]

    def measure(self, policies: Mapping[str, QChunkPolicy]) -> dict[str, float]:
        """Returns metrics by name; errors are mean absolute differences of actions, in recorded units.

        `holdout/<policy>/error`, and of each step of the chunk and each dimension `error_step_<k>`, `error_dim_<k>`:
        of one sampled chunk a start, over real actions. `holdout/<policy>/q` and `holdout/recorded/q`: the critic's
        mean value of the sampled and of the recorded chunks. `holdout/critic_bias`, `critic_rmse` and
        `critic_correlation`: of its values of recorded chunks against the discounted returns that followed, over the
        starts after which the episode terminated (`holdout/critic_starts`, a share); left out where there are none.
        Starts and actions are those that training learns from: without the last action of an episode that time cut off
        and whose state after it was not recorded, and with agent.partial_chunks "drop" the critic is asked of those
        alone whose chunk is whole.

        Args:
          policies: By name, "policy" among them.
        """
        values: dict[str, list[np.ndarray]] = {name: [] for name in ("recorded", *policies)}
        errors = {name: _Errors() for name in policies}
        learnt: list[np.ndarray] = []
        for first in range(0, len(self._starts), self._rows):
            starts = self._starts[first : first + self._rows]
            batch = self._pool.training(self._pool.batch(starts), self._pool.locate(starts)[1])
            seen = {name: array for name, array in batch["observations"].items() if isinstance(array, np.ndarray)}
            seeds = np.arange(first, first + self._rows, dtype=np.uint32)
            recorded, real = batch["actions"][:, : self._steps], batch["valid"][:, : self._steps] > 0
            learnt.append(batch["valid"][:, self._critic_steps - 1] > 0)
            values["recorded"].append(policies["policy"].values(seen, recorded))
            for name, policy in policies.items():
                chunks = policy.chunks(seen, seeds)
                errors[name].add(chunks - recorded, real)
                values[name].append(policy.values(seen, chunks))
        q = {name: np.concatenate(parts).astype(np.float64) for name, parts in values.items()}
        asked = np.concatenate(learnt)
        metrics = {f"holdout/{name}/q": float(found[asked].mean()) for name, found in q.items() if asked.any()}
        for name, found in errors.items():
            metrics |= found.metrics(f"holdout/{name}")
        return metrics | calibration(q["recorded"], np.where(asked, self._returns, np.nan))


class _Errors:
    """Sums of absolute errors over the real steps of chunks, by step and dimension."""

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._steps: Any = 0

    def add(self, error: Float[np.ndarray, "b t a"], real: Bool[np.ndarray, "b t"]) -> None:
        self._sum = self._sum + np.where(real[..., None], np.abs(error), 0).sum(axis=0, dtype=np.float64)
        self._steps = self._steps + real.sum(axis=0)

    def metrics(self, name: str) -> dict[str, float]:
        """Means by name; a step of the chunk that no start has is left out, and all where there is none."""
        if not np.any(self._steps):
            return {}
        total = {f"{name}/error": self._sum.mean(axis=1).sum() / self._steps.sum()}
        by_step = {f"{name}/error_step_{k}": self._sum[k].mean() / n for k, n in enumerate(self._steps) if n}
        by_dim = {f"{name}/error_dim_{d}": x / self._steps.sum() for d, x in enumerate(self._sum.sum(axis=0))}
        return {key: float(value) for key, value in (total | by_step | by_dim).items()}


def calibration(q: Float64[np.ndarray, " n"], returns: Float64[np.ndarray, " n"]) -> dict[str, float]:
    """Compares a critic's values with the returns that followed, where they are known (not NaN).

    The correlation is Pearson's, and left out where either side is constant.
    """
    known = ~np.isnan(returns)
    metrics = {"holdout/critic_starts": float(known.mean())}
    if not known.any():
        return metrics
    error = q[known] - returns[known]
    metrics |= {"holdout/critic_bias": float(error.mean()), "holdout/critic_rmse": float(np.sqrt((error**2).mean()))}
    if q[known].std() and returns[known].std():
        metrics["holdout/critic_correlation"] = float(np.corrcoef(q[known], returns[known])[0, 1])
    return metrics


def returns_to_go(
    reward: Float64[np.ndarray, " T"], terminated: Bool[np.ndarray, " T"], discount: float
) -> Float64[np.ndarray, " T"]:
    """Returns sum over j of discount^j r_(s + j) from each frame s to the next termination; NaN where none follows."""
    out = np.full(len(reward), np.nan)
    after = np.nan
    for s in reversed(range(len(reward))):
        after = reward[s] if terminated[s] else reward[s] + discount * after
        out[s] = after
    return out


def summary(metrics: Mapping[str, float], episodes: int) -> str:
    """Returns the line that a run prints."""
    errors = {name.split("/")[1]: value for name, value in metrics.items() if name.endswith("/error")}
    parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in errors.items()]
    found = ", ".join(parts) or "not known, no frame of theirs has one after it"
    line = f"held out, {episodes} episodes: error of an action: {found}"
    if "holdout/critic_bias" in metrics:
        line += f"; critic less return {metrics['holdout/critic_bias']:+.3g}"
    if "holdout/critic_correlation" in metrics:
        line += f", correlation {metrics['holdout/critic_correlation']:.2f}"
    return line
