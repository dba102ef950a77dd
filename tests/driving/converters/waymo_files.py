"""Writes small Waymo datasets in exactly their formats: parquet by pyarrow, TFRecord by encoders of this file's own.

A car drives a circle; six frames at 10 Hz, five cameras that fire one after another around the front one.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg

SPEED, TURN, RADIUS = 8.0, 0.4, 20.0
START = 1_550_083_467_000_000  # microseconds
SIZE = (32, 48)  # height, width
NUMBERS = {"FRONT": 1, "FRONT_LEFT": 2, "FRONT_RIGHT": 3, "SIDE_LEFT": 4, "SIDE_RIGHT": 5}
DELAYS = {"FRONT": 0.05, "FRONT_LEFT": 0.04, "FRONT_RIGHT": 0.06, "SIDE_LEFT": 0.025, "SIDE_RIGHT": 0.075}
"""Seconds from a frame's timestamp to each image's time: -25 to +25 ms around FRONT, as in real records."""
INTRINSICS = (50.0, 51.0, 24.0, 16.0, 0.1, -0.2, 0.001, 0.002, 0.05)
SEGMENT = "10017090168044687777_6380_000_6400_000"


def pose_at(seconds: float) -> tuple[float, float, float]:
    """x, y, yaw of the car, far from the origin as Waymo's worlds are."""
    yaw = TURN * seconds
    return 1e4 + RADIUS * math.sin(yaw), -2e4 + RADIUS * (1 - math.cos(yaw)), yaw


def transform(x: float, y: float, yaw: float) -> list[float]:
    """4 x 4 row by row."""
    cos, sin = math.cos(yaw), math.sin(yaw)
    return [cos, -sin, 0, x, sin, cos, 0, y, 0, 0, 1, 2.5, 0, 0, 0, 1]


def camera_to_vehicle(camera: str) -> list[float]:
    """Waymo's extrinsic: its camera frame has x ahead, y left, z up."""
    yaw = {"FRONT": 0.0, "FRONT_LEFT": 0.8, "FRONT_RIGHT": -0.8, "SIDE_LEFT": 1.6, "SIDE_RIGHT": -1.6}[camera]
    cos, sin = math.cos(yaw), math.sin(yaw)
    return [cos, -sin, 0, 1.5 * cos, sin, cos, 0, 1.5 * sin, 0, 0, 1, 2.1, 0, 0, 0, 1]


def jpeg(frame: int, camera: int, size: tuple[int, int] = SIZE) -> bytes:
    image = np.full((*size, 3), (40 * camera, 20 * frame, 90), np.uint8)
    return simplejpeg.encode_jpeg(image, quality=95, colorspace="RGB")


def times(frame: int, camera: str) -> tuple[float, float, float]:
    """Seconds since the start of the image, and absolute trigger and end of read-out."""
    at = 0.1 * frame + DELAYS[camera]
    return at, START * 1e-6 + at - 0.01, START * 1e-6 + at + 0.01


def velocity(seconds: float) -> tuple[float, float, float]:
    yaw = TURN * seconds
    return SPEED * math.cos(yaw), SPEED * math.sin(yaw), TURN


def write_v2(
    root: Path,
    *,
    frames: int = 6,
    names: Any = None,
    drop: Sequence[tuple[int, str]] = (),
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """A split folder with one segment.

    Args:
      root: Folder of the split.
      frames: How many.
      names: Type of the camera column; by default its numbers as int8.
      drop: (frame, camera) rows that are missing.
      changes: Columns of camera_image to replace, or to leave out by None.
    """
    image = "[CameraImageComponent]"
    rows = [(f, c) for f in range(frames) for c in NUMBERS if (f, c) not in drop]
    at = [times(f, c) for f, c in rows]
    moving = [velocity(seconds) for seconds, _, _ in at]
    numbers = pa.array([NUMBERS[c] for _, c in rows], pa.int8())
    columns: dict[str, Any] = {
        "key.segment_context_name": [SEGMENT] * len(rows),
        "key.frame_timestamp_micros": pa.array([START + 100_000 * f for f, _ in rows], pa.int64()),
        "key.camera_name": numbers if names is None else [names(c) for _, c in rows],
        f"{image}.image": pa.array([jpeg(f, NUMBERS[c]) for f, c in rows], pa.binary()),
        f"{image}.pose.transform": [transform(*pose_at(seconds)) for seconds, _, _ in at],
        f"{image}.velocity.linear_velocity.x": pa.array([v[0] for v in moving], pa.float32()),
        f"{image}.velocity.linear_velocity.y": pa.array([v[1] for v in moving], pa.float32()),
        f"{image}.velocity.linear_velocity.z": pa.array([0.0] * len(rows), pa.float32()),
        f"{image}.velocity.angular_velocity.x": [0.0] * len(rows),
        f"{image}.velocity.angular_velocity.y": [0.0] * len(rows),
        f"{image}.velocity.angular_velocity.z": [v[2] for v in moving],
        f"{image}.pose_timestamp": [START * 1e-6 + seconds for seconds, _, _ in at],
        f"{image}.rolling_shutter_params.shutter": [0.005] * len(rows),
        f"{image}.rolling_shutter_params.camera_trigger_time": [trigger for _, trigger, _ in at],
        f"{image}.rolling_shutter_params.camera_readout_done_time": [done for _, _, done in at],
    }
    columns = {key: x for key, x in (columns | dict(changes or {})).items() if x is not None}
    _write(root / "camera_image", columns)
    poses = [transform(*pose_at(0.1 * f + 0.05)) for f in range(frames)]
    _write(
        root / "vehicle_pose",
        {
            "key.segment_context_name": [SEGMENT] * frames,
            "key.frame_timestamp_micros": pa.array([START + 100_000 * f for f in range(frames)], pa.int64()),
            "[VehiclePoseComponent].world_from_vehicle.transform": poses,
        },
    )
    calibration = "[CameraCalibrationComponent]"
    intrinsics = dict(zip(("f_u", "f_v", "c_u", "c_v", "k1", "k2", "p1", "p2", "k3"), INTRINSICS, strict=True))
    _write(
        root / "camera_calibration",
        {
            "key.segment_context_name": [SEGMENT] * 5,
            "key.camera_name": pa.array(list(NUMBERS.values()), pa.int8()) if names is None else list(NUMBERS),
            **{f"{calibration}.intrinsic.{key}": [value] * 5 for key, value in intrinsics.items()},
            f"{calibration}.extrinsic.transform": [camera_to_vehicle(camera) for camera in NUMBERS],
            f"{calibration}.width": pa.array([SIZE[1]] * 5, pa.int32()),
            f"{calibration}.height": pa.array([SIZE[0]] * 5, pa.int32()),
        },
    )
    return root


def _write(folder: Path, columns: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), folder / f"{SEGMENT}.parquet")


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | float | bytes | str) -> bytes:
    """A varint, a double, or bytes; messages and packed numbers are bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def float32(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def doubles(number: int, values: Sequence[float]) -> bytes:
    """A repeated double as proto2 writes it: one by one."""
    return b"".join(field(number, float(value)) for value in values)


def packed(number: int, values: Sequence[float]) -> bytes:
    return field(number, struct.pack(f"<{len(values)}f", *values))


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, for the tests alone."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = (rest >> 1) ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def record(payload: bytes) -> bytes:
    def check(data: bytes) -> bytes:
        crc = slow_crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + check(length) + payload + check(payload)


def context(name: str) -> bytes:
    """Name, calibrations, and other fields that a reader steps over."""
    message = field(1, name)
    for camera, number in NUMBERS.items():
        calibration = field(1, number) + doubles(2, INTRINSICS)
        calibration += field(3, doubles(1, camera_to_vehicle(camera))) + field(4, SIZE[1]) + field(5, SIZE[0])
        message += field(2, calibration + field(6, 2))
    return message + field(4, field(2, "Day") + field(3, "location_sf"))


def v1_frame(frame: int, *, segment: str = SEGMENT, drop: Sequence[str] = (), moving: bool = True) -> bytes:
    """A `Frame`; with bulky fields (lasers) and unknown ones that a reader steps over."""
    message = field(1, context(segment)) + field(2, START + 100_000 * frame)
    message += field(3, doubles(1, transform(*pose_at(0.1 * frame + 0.05))))
    for camera, number in NUMBERS.items():
        if camera in drop:
            continue
        at, trigger, done = times(frame, camera)
        x, y, turn = velocity(at)
        image = field(1, number) + field(2, jpeg(frame, number)) + field(3, doubles(1, transform(*pose_at(at))))
        if moving:
            image += field(4, float32(1, x) + float32(2, y) + float32(3, 0.0) + field(4, 0.0) + field(6, turn))
        image += field(5, START * 1e-6 + at) + field(6, 0.005) + field(7, trigger) + field(8, done)
        message += field(4, image)
    return message + field(5, bytes(500)) + field(1234, 7)


def write_v1(path: Path, *, frames: Sequence[bytes] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    messages = [v1_frame(frame) for frame in range(6)] if frames is None else frames
    path.write_bytes(b"".join(record(message) for message in messages))
    return path


def e2e_frame(
    frame: int,
    *,
    segment: str = "a0b1c2",
    intent: int = 2,
    rated: Sequence[tuple[float, Sequence[tuple[float, float]]]] = (),
    future: int = 20,
) -> bytes:
    """An `E2EDFrame`: no poses, a history and a future in the vehicle's frame, scores and places of rated ones."""
    inner = field(1, context(f"{segment}-{frame:03d}")) + field(2, START + 100_000 * frame)
    for camera, number in NUMBERS.items():
        if camera != "SIDE_LEFT":
            inner += field(4, field(1, number) + field(2, jpeg(frame, number)))
    message = field(1, inner)
    message += field(5, packed(1, [2.0 * (i + 1) for i in range(future)]) + packed(2, [0.1 * i for i in range(future)]))
    past = packed(1, [-5 + i / 3 for i in range(16)]) + packed(2, [0.0] * 16)
    past += packed(4, [5 + 0.1 * i for i in range(16)]) + packed(5, [0.0] * 16)
    message += field(6, past + packed(6, [0.4] * 16) + packed(7, [0.0] * 16))
    message += field(7, intent)
    for score, places in rated:
        message += field(8, packed(1, [x for x, _ in places]) + packed(2, [y for _, y in places]) + float32(8, score))
    return message
