"""What the town shows, under the names by which policies take it, and the town's own driver."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from chunkwise.envs.collect import Draw
from chunkwise.envs.environment import Observation
from chunkwise.policies.policy import Policy
from driving.data.episodes import ROUTE_COMMANDS


def named(policy: Policy[Any], seen: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns observations of the town, a row a moment, with the names under which a policy takes them.

    A camera that the town does not show (driving/eval/routes.py:spec_of) is off.
    """
    given: dict[str, Any] = {}
    for name in policy.spec.observation:
        kind, _, camera = name.partition("/")
        if name == "route_command":
            given[name] = [ROUTE_COMMANDS[int(word)] for word in seen[name]]
        elif camera:
            given.setdefault(kind, {})[camera] = seen.get(camera if kind == "image" else name)
        else:
            given[name] = seen[name].astype(np.float64)
    return given


@dataclasses.dataclass
class TownDriver:
    """The town's own driver, by whose way others' progress is measured; an Actor of the collector."""

    step: int = 0
    weights: str = ""

    def __call__(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> Float32[np.ndarray, "b t a"]:
        plans = observations["expert_waypoints"]
        return plans.reshape(len(plans), 1, -1)
