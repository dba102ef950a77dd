"""What the town shows, under the names by which policies take it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
