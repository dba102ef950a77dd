"""Where a waypoint policy would drive in recordings, for a page that shows it (chunkwise/view)."""

import dataclasses
import threading
from typing import Any

import numpy as np

from chunkwise.errors import ConfigError
from chunkwise.files import budget
from chunkwise.view.source import Chunk, Recordings
from driving.data.window import WAYPOINTS, OpenedOnce
from driving.policies.policy import WaypointPolicy
from driving.tasks.waypoints import inputs


class WaypointChunks:
    """A policy's waypoints at the frames of episodes, as its evaluation computes them; a PolicyView."""

    def __init__(
        self, policy: WaypointPolicy, name: str, recordings: Recordings, *, path: str, links: tuple[str, ...]
    ) -> None:
        """Reads nothing yet.

        Args:
          policy: Whose config reads the episodes.
          name: Of its run.
          recordings: In which it is asked.
          path: Of the same.
          links: Folders outside of the dataset that links in it may lead to.
        """
        config = policy.config
        self.name, self._policy, self._lock = name, policy, threading.Lock()
        data = dataclasses.replace(config.data, path=path, split_file=None, allow_links_to=links, limits=budget.LIMITS)
        self._opened = OpenedOnce(dataclasses.replace(config, data=data), recordings)

    def chunk(self, episode: int, frame: int) -> Chunk:
        data, row = self._opened.row(episode, frame)
        with self._lock:
            (waypoints,) = self._policy.predict(
                inputs(data.batch(np.array([row])), data.config.anchor, self._policy.config.waypoints)
            )
        valid, recorded = data.tables.waypoint_valid[row], data.tables.waypoints[row]
        notes = ()
        if valid.any():
            apart = np.linalg.norm(waypoints - recorded, axis=-1)[valid]
            listed = data.config.waypoint_source != "poses" and not data.index.waypoints_driven[episode]
            what = "what the driver would have driven" if listed else "what was driven"
            notes = (f"Mean distance from {what}: {apart.mean():.2f} m, over {len(apart)} of {len(valid)} places.",)
        return Chunk(actions=waypoints, over=WAYPOINTS, recorded=recorded[valid], in_plane=True, notes=notes)


def policy_chunks(
    policy: Any, name: str, recordings: Recordings, *, path: str, links: tuple[str, ...]
) -> WaypointChunks:
    """Makes what a page asks. Raises ConfigError if the policy is another package's."""
    if not isinstance(policy, WaypointPolicy):
        raise ConfigError(f"--policy is {name}, a {type(policy).__name__}; expected a run of driving for these data")
    return WaypointChunks(policy, name, recordings, path=path, links=links)
