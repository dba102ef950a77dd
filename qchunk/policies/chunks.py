"""What a Q-chunking policy would do in recordings, for a page that shows it (chunkwise/view)."""

import functools
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from chunkwise.data.images import decode
from chunkwise.errors import ConfigError, DataError
from chunkwise.view.chunks import PolicyChunks, Sight
from chunkwise.view.images import JPEG
from chunkwise.view.source import Recordings
from qchunk.data.readers.aloha_images import COLOUR
from qchunk.data.recordings import OgbenchRecordings
from qchunk.policies.policy import QChunkPolicy


class Sights:
    """What the policy is shown of each frame, and what its critic says of a chunk."""

    def __init__(self, policy: QChunkPolicy, recordings: Recordings) -> None:
        """Reads nothing yet."""
        self._policy, self._recordings = policy, recordings
        self._content = functools.lru_cache(2)(recordings.open)

    def sight(self, episode: int, frame: int) -> Sight:
        """Returns state, images and recorded actions. Raises DataError where the recordings lack one of them."""
        content, data = self._content(episode), self._policy.config.data
        name = self._recordings.names[episode]
        # In OGBench's files the observation is `state`; the pool gives it under both names.
        shown = "state" if isinstance(self._recordings, OgbenchRecordings) else data.observation
        asked = {shown: "data.observation", data.action: "data.action"}
        asked |= {"base_action": "data.base_action"} if data.base_action else {}
        for key, field in asked.items():
            if key not in content.columns:
                there = sorted(content.columns)
                raise DataError(f"{name}: expected {key} as {field} of the policy says, found {there}")
        state = content.columns[shown]
        if frame >= len(state):
            raise DataError(f"{name}: expected a frame below {len(state)}, found {frame}")
        observation: dict[str, Any] = {"state": state[frame]}
        if self._policy.cameras:
            seen = {camera: self._image(episode, camera, frame) for camera in self._policy.cameras}
            observation["image"] = seen
        parts = [data.action, *(["base_action"] if data.base_action else [])]
        done = np.concatenate(
            [content.columns[key][frame : len(content.columns[data.action])] for key in parts], axis=1
        )
        return Sight(observation=observation, over=data.action, recorded=np.asarray(done, np.float32))

    def notes(self, sight: Sight, chunk: Float32[np.ndarray, "t a"]) -> tuple[str, ...]:
        """Returns the critic's value of the policy's chunk, and of the recorded one where all of it was recorded."""
        seen: dict[str, np.ndarray] = {self._policy.config.data.observation: sight.observation["state"][None]}
        if "image" in sight.observation:
            shown = [self._policy.resized(name, image) for name, image in sight.observation["image"].items()]
            seen["images"] = np.stack(shown)[None]
        (own,) = self._policy.values(seen, chunk[None])
        words = f"The critic's value of the policy's chunk is {own:.4g}"
        if len(sight.recorded) >= len(chunk):
            (recorded,) = self._policy.values(seen, sight.recorded[None, : len(chunk)])
            words += f", that of the recorded one {recorded:.4g}"
        return (f"{words}.",)

    def _image(self, episode: int, camera: str, frame: int) -> UInt8[np.ndarray, "h w 3"]:
        """By the name that an ALOHA file has for the camera, or its own."""
        cameras = self._content(episode).cameras
        called = next((name for name in (f"{COLOUR}/{camera}", camera) if name in cameras), None)
        if called is None:
            raise DataError(
                f"{self._recordings.names[episode]}: expected images of {camera}, which the policy sees, found cameras "
                f"{list(cameras)}"
            )
        content = self._recordings.image(episode, called, frame)
        image = decode(content, source=f"{self._recordings.names[episode]}: {called}, frame {frame}")
        # A replay's images are RGB, whatever was recorded.
        recorded = called.startswith(f"{COLOUR}/") and content.startswith(JPEG)
        exchanged = recorded and self._policy.config.data.jpeg_channels == "bgr"
        return np.ascontiguousarray(image[..., ::-1]) if exchanged else image


def policy_chunks(policy: Any, name: str, recordings: Recordings) -> PolicyChunks:
    """Makes what a page asks. Raises ConfigError if the policy is another package's."""
    if not isinstance(policy, QChunkPolicy):
        raise ConfigError(f"--policy is {name}, a {type(policy).__name__}; expected a run of qchunk for these data")
    sights = Sights(policy, recordings)
    return PolicyChunks(policy, name, sights.sight, sights.notes)
