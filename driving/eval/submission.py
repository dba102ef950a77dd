"""What Waymo's end-to-end challenge takes: an `E2EDChallengeSubmission` message in a .tar.gz.

Source: protos/end_to_end_driving_submission.proto of github.com/waymo-research/waymo-open-dataset, whose field numbers
stand where they are used, and the end of its tutorial_vision_based_e2e_driving.ipynb for the archive.
"""

import dataclasses
import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

E2ED_SUBMISSION = 1
"""E2EDChallengeSubmission.SubmissionType."""
PLACES = 20
"""At 4 Hz: 5 s."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What the challenge asks of whoever submits."""

    account_name: str
    """Address with which one is registered at waymo.com/open."""
    unique_method_name: str
    authors: Sequence[str] = ()
    affiliation: str = ""
    description: str = ""
    method_link: str = ""
    public_model_names: Sequence[str] = ()
    """Public language or vision models that were pretrained with; none: the field that asks for them says false."""


def submission(predictions: Mapping[str, Float[np.ndarray, "_ 2"]], about: About, *, parameters: int) -> bytes:
    """Returns the message.

    Args:
      predictions: By name of the frame, places at 0.25, 0.5, ... 5 s: x forward, y left, metres.
      about: Who submits what.
      parameters: Of the model.

    Raises:
      ValueError: A prediction has another number of places, or NaN or Inf.
    """
    parts: list[bytes] = []
    for name, places in predictions.items():
        if places.shape != (PLACES, 2) or not np.isfinite(places).all():
            raise ValueError(f"{name}: expected {PLACES} finite places, found {places.shape}")
        trajectory = b"".join(_bytes(1 + axis, places[:, axis].astype("<f4").tobytes()) for axis in (0, 1))
        parts.append(_bytes(1, _bytes(1, name.encode()) + _bytes(2, trajectory)))
    parts.append(_integer(2, E2ED_SUBMISSION))
    texts = {3: about.account_name, 4: about.unique_method_name, 6: about.affiliation}
    texts |= {7: about.description, 8: about.method_link, 12: rounded(parameters)}
    parts += [_bytes(5, name.encode()) for name in about.authors]
    parts += [_bytes(number, text.encode()) for number, text in texts.items()]
    parts.append(_integer(11, bool(about.public_model_names)))
    parts += [_bytes(13, name.encode()) for name in about.public_model_names]
    return b"".join(parts)


def archive(message: bytes, folder: str) -> bytes:
    """Returns the .tar.gz to upload: the message as folder/part0; the same message gives the same bytes."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        entry = tarfile.TarInfo(f"{folder}/part0")
        entry.size = len(message)
        tar.addfile(entry, io.BytesIO(message))
    return out.getvalue()


def rounded(parameters: int) -> str:
    """Returns a number of parameters as the challenge writes it: a whole number and K, M or B, at least 1K."""
    for letter, size in (("B", 10**9), ("M", 10**6)):
        if parameters >= 10 * size:
            return f"{round(parameters / size)}{letter}"
    return f"{max(1, round(parameters / 1000))}K"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: bytes) -> bytes:
    """Text, packed numbers, or a message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value
