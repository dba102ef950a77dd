"""Decoupled Q-chunking (DQC, arXiv:2512.10926): a long chunk for the backup, a short one for the policy.

Three values are learned. Q_h(s, a_1..h) backs up over h steps. Q(s, a_1..k), k = policy_horizon, is distilled from it
towards the best way to go on after k actions. V(s) is drawn towards the best of the data's chunks, and is what Q_h
bootstraps from: no policy enters the target. The policy takes the best of N samples of the flow, by Q.

The paper's code has values in [0, 1] (goals, rewards 0 and 1), passes them through a sigmoid, and regresses logits by
cross-entropy. Here values are the returns themselves and errors are squared or absolute, as in the other agents, so
that any reward serves; expectiles and quantiles are of the values.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from chunkwise.arrays import PyTree
from chunkwise.train.metrics import Mean, mean_of
from qchunk.agents.base import Batch, Metrics, chunk_td_target, kept_rows
from qchunk.agents.qc import QCAgent
from qchunk.config import DecoupledConfig
from qchunk.models.networks import Critic, Value, apply


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQCAgent(QCAgent):
    """`critic` is that of the policy's chunk, and has a target; the two other values have none, as in the paper."""

    chunk_critic: Critic
    value: Value

    @property
    def _settings(self) -> DecoupledConfig:
        assert self.config.agent.decoupled is not None
        return self.config.agent.decoupled

    def _init_networks(self, key: Key[Array, ""]) -> dict[str, Any]:
        chunk_key, value_key, rest = jax.random.split(key, 3)
        s, _, _ = self._examples()
        long = jnp.zeros((1, self.config.agent.horizon * self.dims.action))
        return {
            **super()._init_networks(rest),
            "chunk_critic": self.chunk_critic.init(chunk_key, s, long)["params"],
            "value": self.value.init(value_key, s)["params"],
        }

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses of the three values and of the flow."""
        return dict.fromkeys(("chunk_loss", "critic_loss", "value_loss", "flow_loss"), 1.0)

    def losses(self, params: PyTree, target: PyTree, batch: Batch, key: Key[Array, ""]) -> Metrics:
        """Returns the losses of the three values and of the flow."""
        chunk = self.chunk_loss(params, batch)
        distilled, q = self.distilled_loss(params, batch)
        value, v = self.value_loss(params, target, batch)
        metrics = {"chunk_loss": chunk, "critic_loss": distilled, "value_loss": value, "q": q, "v": v}
        return metrics | self.flow_loss(params, batch, key)[1]

    def chunk_loss(self, params: PyTree, batch: Batch) -> Mean:
        """Returns the mean of (Q_h(s, a_1..h) - y)^2, y = sum_k discount^k r_k + discount^m alive V(s').

        Every row with a real step counts, whatever agent.partial_chunks says, as in the authors' code: Q regresses on
        Q_h in all rows whose first k actions exist.
        """
        fixed = jax.lax.stop_gradient(params)
        settings = self.config.agent
        y = chunk_td_target(batch, self._v(fixed, batch["next_observations"]), discount=settings.discount)
        q = self._q_long(params, batch)
        kept = kept_rows(batch, settings.horizon, "use")
        return mean_of((q - y[None]) ** 2, jnp.broadcast_to(kept, q.shape))

    def distilled_loss(self, params: PyTree, batch: Batch) -> tuple[Mean, Mean]:
        """Draws each critic of a_1..k towards its own one of a_1..h at level kappa_d; also the mean of Q.

        With agent.partial_chunks "drop" over the rows whose first k actions exist, as `value_loss` too.
        """
        settings = self._settings
        q = self._q(params["critic"], self.encode(params, "critic", batch["observations"]), self._chunks(batch))
        towards = self._q_long(jax.lax.stop_gradient(params), batch)
        kept = self._policy_rows(batch, q.shape)
        return mean_of(asymmetric_loss(towards - q, settings.kappa_d, settings.distillation), kept), mean_of(q, kept)

    def value_loss(self, params: PyTree, target: PyTree, batch: Batch) -> tuple[Mean, Mean]:
        """Draws V(s) towards the target critic of the recorded chunk at level kappa_b; also the mean of V."""
        settings = self._settings
        q = self._q(target["critic"], self.encode(target, "critic", batch["observations"]), self._chunks(batch))
        v = self._v(params, batch["observations"])
        kept = self._policy_rows(batch, v.shape)
        loss = asymmetric_loss(self._aggregate(q) - v, settings.kappa_b, settings.backup)
        return mean_of(loss, kept), mean_of(v, kept)

    def _policy_rows(self, batch: Batch, shape: tuple[int, ...]) -> Bool[Array, "..."]:
        return jnp.broadcast_to(kept_rows(batch, self.action_horizon, self.config.agent.partial_chunks), shape)

    def _q_long(self, params: PyTree, batch: Batch) -> Float[Array, "e b"]:
        chunks = batch["actions"].reshape(len(batch["actions"]), -1)
        return apply(
            self.chunk_critic,
            params["chunk_critic"],
            self.encode(params, "chunk_critic", batch["observations"]),
            chunks,
        )

    def _v(self, params: PyTree, observations: Any) -> Float[Array, " b"]:
        return apply(self.value, params["value"], self.encode(params, "value", observations))


def asymmetric_loss(
    error: Float[Array, "*shape"], level: float, kind: Literal["expectile", "quantile"]
) -> Float[Array, "*shape"]:
    """Returns the expectile loss (squares) or the quantile loss (absolute values) of target - prediction at a level.

    |level - 1[error < 0]| error^2, or |error|: an error above 0, where the prediction is too low, weighs `level`.
    """
    weight = jnp.where(error >= 0, level, 1 - level)
    return weight * (error**2 if kind == "expectile" else jnp.abs(error))
