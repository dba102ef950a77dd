"""The agent of a config: a QCAgent (QC, QC-FQL, FQL), a RLPDAgent (RLPD), or a DQCAgent (DQC)."""

from typing import Any

from chunkwise.train.optimizer import make_optimiser
from qchunk.agents.base import Agent
from qchunk.agents.dqc import DQCAgent
from qchunk.agents.qc import QCAgent
from qchunk.agents.rlpd import RLPDAgent
from qchunk.config import QChunkConfig
from qchunk.data import Dims
from qchunk.models.networks import ChunkPolicy, Critic, GaussianPolicy, ReluCritic, Value
from qchunk.models.vision import ImageEncoder


def make_agent(config: QChunkConfig, dims: Dims) -> Agent:
    """Agent of a config.

    Args:
      dims: Widths of the observation that data.observation names, and of one action; cameras and their size.

    Raises:
      ConfigError: If the learning-rate schedule does not fit into train.steps.
    """
    agent = config.agent
    shared: dict[str, Any] = {
        "config": config,
        "dims": dims,
        "encoder": None if agent.encoder is None else ImageEncoder(agent.encoder, dims.cameras),
        "optimiser": make_optimiser(config.optim, config.train.steps),
    }
    chunk_size = agent.action_horizon * dims.action
    if agent.policy == "gaussian":
        critic = ReluCritic(agent.hidden_sizes, agent.num_critics, agent.critic_layer_norm)
        return RLPDAgent(**shared, critic=critic, actor=GaussianPolicy(agent.hidden_sizes, chunk_size))
    critic = Critic(agent.hidden_sizes, agent.num_critics, agent.critic_layer_norm)
    flow = ChunkPolicy(agent.hidden_sizes, chunk_size, agent.actor_layer_norm)
    if agent.decoupled is None:
        return QCAgent(**shared, critic=critic, flow=flow, onestep=flow)
    value = Value(agent.hidden_sizes, agent.critic_layer_norm)
    return DQCAgent(**shared, critic=critic, flow=flow, onestep=flow, chunk_critic=critic, value=value)
