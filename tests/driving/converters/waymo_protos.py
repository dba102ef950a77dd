"""The official messages of Waymo's End-to-End set, as classes of the protobuf library itself.

Numbers, names and types are those of protos/end_to_end_driving_data.proto, end_to_end_driving_submission.proto and of
the fields of dataset.proto that the former says are populated; github.com/waymo-research/waymo-open-dataset at 508fb26.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "waymo.open_dataset"
F = descriptor_pb2.FieldDescriptorProto
TYPES: dict[str, Any] = {
    "float": F.TYPE_FLOAT,
    "double": F.TYPE_DOUBLE,
    "string": F.TYPE_STRING,
    "bytes": F.TYPE_BYTES,
    "int64": F.TYPE_INT64,
    "int32": F.TYPE_INT32,
    "bool": F.TYPE_BOOL,
}
PACKED = {name: ("packed float", number) for number, name in enumerate(("pos_x", "pos_y", "pos_z"), start=1)}
PACKED |= {"vel_x": ("packed float", 4), "vel_y": ("packed float", 5)}
PACKED |= {"accel_x": ("packed float", 6), "accel_y": ("packed float", 7)}
MESSAGES: dict[str, dict[str, tuple[str, int]]] = {
    "Transform": {"transform": ("repeated double", 1)},
    "Velocity": {"v_x": ("float", 1), "v_y": ("float", 2), "v_z": ("float", 3), "w_z": ("double", 6)},
    "CameraImage": {
        "name": ("int32", 1),  # CameraName.Name, an enum: the same on the wire
        "image": ("bytes", 2),
        "pose": ("Transform", 3),
        "velocity": ("Velocity", 4),
        "pose_timestamp": ("double", 5),
    },
    "CameraCalibration": {
        "name": ("int32", 1),
        "intrinsic": ("repeated double", 2),
        "extrinsic": ("Transform", 3),
        "width": ("int32", 4),
        "height": ("int32", 5),
    },
    "Context": {"name": ("string", 1), "camera_calibrations": ("repeated CameraCalibration", 2)},
    "Frame": {
        "context": ("Context", 1),
        "timestamp_micros": ("int64", 2),
        "pose": ("Transform", 3),
        "images": ("repeated CameraImage", 4),
    },
    "EgoTrajectoryStates": PACKED | {"preference_score": ("float", 8)},
    "E2EDFrame": {
        "frame": ("Frame", 1),
        "future_states": ("EgoTrajectoryStates", 5),
        "past_states": ("EgoTrajectoryStates", 6),
        "intent": ("int32", 7),  # EgoIntent.Intent
        "preference_trajectories": ("repeated EgoTrajectoryStates", 8),
    },
    "TrajectoryPrediction": {"pos_x": ("packed float", 1), "pos_y": ("packed float", 2)},
    "FrameTrajectoryPredictions": {"frame_name": ("string", 1), "trajectory": ("TrajectoryPrediction", 2)},
    "E2EDChallengeSubmission": {
        "predictions": ("repeated FrameTrajectoryPredictions", 1),
        "submission_type": ("int32", 2),  # 1: E2ED_SUBMISSION
        "account_name": ("string", 3),
        "unique_method_name": ("string", 4),
        "authors": ("repeated string", 5),
        "affiliation": ("string", 6),
        "description": ("string", 7),
        "method_link": ("string", 8),
        "uses_public_model_pretraining": ("bool", 11),
        "num_model_parameters": ("string", 12),
        "public_model_names": ("repeated string", 13),
    },
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="waymo_e2e.proto", package=PACKAGE, syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (kind, number) in fields.items():
            label, _, kind = kind.rpartition(" ")
            entry = message.field.add(name=field, number=number)
            entry.label = F.LABEL_REPEATED if label else F.LABEL_OPTIONAL
            entry.type = TYPES.get(kind, F.TYPE_MESSAGE)
            if kind in MESSAGES:
                entry.type_name = f".{PACKAGE}.{kind}"
            if label == "packed":
                entry.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


OFFICIAL: dict[str, Any] = _classes()
"""Class of each message, by name."""
