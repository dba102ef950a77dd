"""The agent of a config: a QCAgent (QC, QC-FQL, FQL), an agent for RLPD, DQC or QAM, or the user's own."""

import inspect
from typing import Any

from chunkwise.errors import ConfigError
from chunkwise.files import trust
from chunkwise.train.optimizer import make_optimiser
from qchunk.agents.base import Agent
from qchunk.agents.dqc import DQCAgent
from qchunk.agents.qam import QAMAgent
from qchunk.agents.qc import QCAgent
from qchunk.agents.rlpd import RLPDAgent
from qchunk.config import QChunkConfig
from qchunk.data import Dims
from qchunk.models.networks import ChunkPolicy, Critic, GaussianPolicy, ReluCritic, Value
from qchunk.models.vision import ImageEncoder


def make_agent(config: QChunkConfig, dims: Dims, *, allow_code: bool = False) -> Agent:
    """Makes the agent of a config.

    Args:
      config: Of the run.
      dims: Widths of the observation that data.observation names, and of one action; cameras and their size.
      allow_code: Whether agent.factory may be imported: where the user wrote the config, not where a folder brought it.

    Raises:
      ConfigError: If the learning-rate schedule does not fit into train.steps, agent.factory makes no agent, or images
        that data names would reach no network.
    """
    agent = config.agent
    _require_seen(config)
    if agent.factory is not None:
        return _own_agent(agent.factory, config, dims, allow_code=allow_code)
    shared, chunk_size = shared_parts(config, dims), agent.action_horizon * dims.action
    if agent.policy == "gaussian":
        critic = ReluCritic(agent.hidden_sizes, agent.num_critics, agent.critic_layer_norm)
        actor = GaussianPolicy(agent.hidden_sizes, chunk_size, agent.actor_layer_norm)
        return RLPDAgent(**shared, critic=critic, actor=actor)
    parts = flow_parts(config, dims)
    if agent.policy == "adjoint_matching":
        return QAMAgent(**parts, tuned=parts["flow"])
    if agent.decoupled is None:
        return QCAgent(**parts)
    value = Value(agent.hidden_sizes, agent.critic_layer_norm)
    return DQCAgent(**parts, chunk_critic=parts["critic"], value=value)


def _require_seen(config: QChunkConfig) -> None:
    """Raises ConfigError for images that would be decoded and reach no network; a factory's agent may see depth."""
    data, agent = config.data, config.agent
    if data.cameras and agent.encoder is None:
        raise ConfigError(
            f"data.cameras is {list(data.cameras)}, and no network would see their images: agent.encoder is None. "
            "Switch it on by a flag such as --agent.encoder.kind impala, or leave data.cameras empty"
        )
    if data.depth_cameras and agent.factory is None:
        raise ConfigError(
            f"data.depth_cameras is {list(data.depth_cameras)}, and no agent here has a network for depth; leave it "
            "empty, or name an agent of your own in agent.factory"
        )


def shared_parts(config: QChunkConfig, dims: Dims) -> dict[str, Any]:
    """Returns what every agent is made of beside its networks: config, dims, encoder, optimiser."""
    return {
        "config": config,
        "dims": dims,
        "encoder": None if config.agent.encoder is None else ImageEncoder(config.agent.encoder, dims.cameras),
        "optimiser": make_optimiser(config.optim, config.train.steps),
    }


def flow_parts(config: QChunkConfig, dims: Dims) -> dict[str, Any]:
    """Returns what a QCAgent is made of: the shared parts, the critics, the networks of flow and one-step policy."""
    agent = config.agent
    flow = ChunkPolicy(agent.hidden_sizes, agent.action_horizon * dims.action, agent.actor_layer_norm)
    critic = Critic(agent.hidden_sizes, agent.num_critics, agent.critic_layer_norm)
    return shared_parts(config, dims) | {"critic": critic, "flow": flow, "onestep": flow}


def _own_agent(name: str, config: QChunkConfig, dims: Dims, *, allow_code: bool) -> Agent:
    """Calls the user's factory with config, dims and, by their names, the settings."""
    if not allow_code:
        trust.refuse_code(f"agent.factory is {name!r}, which would import Python code")
    factory = trust.import_named(name, what="a factory of agents")
    try:
        inspect.signature(factory).bind(config, dims, **config.agent.settings)
    except TypeError as error:
        raise ConfigError(
            f"agent.factory {name} does not take agent.settings {config.agent.settings}: {error}; it is called with "
            "config, dims and each setting by its name"
        ) from error
    agent = factory(config, dims, **config.agent.settings)
    if not isinstance(agent, Agent):
        raise ConfigError(f"agent.factory {name}: expected a qchunk.agents.base.Agent, found {type(agent).__name__}")
    return agent
