"""From episodes on disk to batches: opened and checked once, then batch i is a function of (seed, i).

    episodes (or a pack) -> Index -> split -> anchors -> Batch          (a Grain source, one record a batch)

Epoch e goes through all anchors in the order of a permutation drawn from (seed, e); row j of step n of shard p of P is
sample n B + p B / P + j. So the stream does not depend on how many processes read it, and resuming is a jump to a step.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt8

from chunkwise.data.episodes import manifest_hash
from chunkwise.data.shards import add_pack, is_pack
from chunkwise.data.stream import StreamConfig, batches_of_run, require_shares
from chunkwise.distributed.cores import cores
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget
from chunkwise.files.identity import Check, Files, any_files, open_files
from driving.config import BRAKING_M, BRAKING_S, DataConfig, Split
from driving.data.augment import Draws, augment, kept_cameras, mirror_order, sideless_note
from driving.data.batch import Batch, Sample, collate
from driving.data.calibration import Calibration, make_calibration
from driving.data.images import CachedImages, FileImages, ImageSource, by_camera, columns
from driving.data.index import INDEX_FILE, PRESENT, Index
from driving.data.scan import scan
from driving.data.shards import open_pack
from driving.data.split import SPLIT_FILE
from driving.data.tables import Tables, fills_headings, judged, lacks_places, make_tables, masked_plans, plans_to_stand
from driving.data.targets import bridged_s, relative_pose, wrap
from driving.data.validation import check_absent, members, scored, scored_note, shown_note, without_bad

DERIVED = "motion_that_no_file_records"
"""Entry of a run's fingerprint. A checkpoint without it, of data where this version has one, is of a version that
derived the motion from the frame after as well: it goes on with that version, or anew with this one."""

SLOW = "gaps_of_slow_recordings"
"""As DERIVED: where it stands, earlier versions masked waypoints that this one knows."""

PLANS = "plans_that_were_not_driven"
"""As DERIVED: where it stands, earlier versions masked the ends of plans to stand as padding."""

HEADED = "frames_with_a_place_and_no_yaw"
"""As DERIVED: where it stands, earlier versions masked waypoints, or poses, for which these frames are needed."""

BETWEEN = "frames_between_poses"
"""As DERIVED: where it stands, earlier versions masked waypoints and poses of these frames, and motion after them."""

JUDGED = "motion_and_plans_as_drives_leave_them"
"""As DERIVED: where it stands, earlier versions took these otherwise."""

__all__ = ["Batch", "DrivingData", "Sample", "collate", "make_batches", "open_data"]


@runtime_checkable
class BatchesConfig(StreamConfig, Protocol):
    """What `make_batches` reads of a run's config."""

    @property
    def data(self) -> DataConfig: ...


def make_batches(config: BatchesConfig, *, start_step: int = 0, shard: int = 0, num_shards: int = 1) -> Iterator[Batch]:
    """Opens the training split of config.data and gives its batches; see `open_data` and `DrivingData.batches`."""
    return batches_of_run(open_data(config.data), config, start_step=start_step, shard=shard, num_shards=num_shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivingData:
    """One split of a dataset that was opened, checked, and found fit for training; `open_data` makes it."""

    config: DataConfig
    split: Split
    index: Index
    """All episodes of the dataset, whatever their split."""
    tables: Tables
    calibration: Calibration
    files: Files
    """That it was read from."""
    images: ImageSource
    seen: Bool[np.ndarray, "F k"]
    """Whether there is an image, by frame and camera of the config."""
    episodes: Int64[np.ndarray, " m"]
    """Those of the split."""
    anchors: Int64[np.ndarray, " a"]
    """Frames (rows of the index) that samples may be anchored at."""
    mirror: tuple[int, ...]
    """For each camera its partner on the other side; empty if nothing is mirrored."""
    notes: tuple[str, ...]
    """What a user should know: what is missing, masked or left out, with counts."""
    on_device: bool = False
    """Whether augmented batches leave their images as they were read, and say how the train step is to change them
    (driving.data.augment.CHANGES, entries beside those of Batch)."""

    @property
    def drawn(self) -> Int64[np.ndarray, " d"]:
        """Anchors as often as an epoch draws them: those at which the driver brakes data.braking_repeats times."""
        more = self.config.braking_repeats - 1
        if not more:
            return self.anchors
        return np.concatenate([self.anchors, np.tile(self.anchors[self.brakes(self.anchors)], more)])

    def brakes(self, rows: Int64[np.ndarray, " b"]) -> Bool[np.ndarray, " b"]:
        """Returns whether the driver brakes at some frames; false where speed or waypoints are not known so far."""
        steps = round(BRAKING_S / self.config.waypoint_dt_s)
        path = self.tables.waypoints[rows][:, :steps].astype(np.float64)
        way = np.linalg.norm(np.diff(path, axis=1, prepend=0.0), axis=-1).sum(axis=1)
        known = self.tables.speed_valid[rows] & self.tables.waypoint_valid[rows, :steps].all(axis=1)
        seconds = steps * self.config.waypoint_dt_s  # the whole steps nearest to BRAKING_S
        return known & (self.tables.speed_mps[rows] * seconds - way > BRAKING_M)

    def shown(self) -> dict[float, float]:
        """Returns the share of the anchors with an image of any camera at each of data.offsets_s."""
        tables, seen = self.tables, self.seen.sum(axis=1) > 0
        there = tables.time_valid[self.anchors] & seen[tables.rows[self.anchors]]
        return dict(zip(self.config.offsets_s, there.mean(axis=0).tolist(), strict=True))

    def moved(self) -> float:
        """Returns the share of the anchors whose pose is known at the first and the last of data.offsets_s."""
        tables, ends = self.tables, [0, -1]
        known = tables.time_valid[self.anchors] & tables.pose_valid[tables.rows[self.anchors]]
        return float((known[:, ends].all(axis=1) & tables.pose_valid[self.anchors]).mean())

    def calibrated(self) -> dict[str, float]:
        """Returns the share of each camera's images at the anchors whose intrinsics and extrinsics are known."""
        seen = self.seen[self.anchors]
        known = seen & (self.calibration.row[self.anchors] >= 0)
        shares = known.sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
        return dict(zip(self.config.cameras, shares.tolist(), strict=True))

    def image_step_s(self) -> float | None:
        """Returns the usual seconds from a frame with an image to the next of its drive; None where there are none."""
        seen, t = self.seen.sum(axis=1) > 0, self.index.t
        drives = [self.index.rows(episode) for episode in self.episodes.tolist()]
        steps = np.concatenate([np.diff(t[rows][seen[rows]]) for rows in drives])
        return float(np.median(steps)) if len(steps) else None

    def batch(self, rows: Int64[np.ndarray, " b"], draws: Draws | None = None) -> Batch:
        """The samples anchored at some frames, as stored, or changed at random where `draws` says how.

        Raises:
          DataError: If an image cannot be read, with its path.
        """
        tables, index = self.tables, self.index
        frames, valid = tables.rows[rows], tables.time_valid[rows]
        images, image_valid = self._images(frames, valid, draws)
        origin = tables.pose[rows][:, None, :]
        both = valid & tables.pose_valid[frames] & tables.pose_valid[rows][:, None]
        episode = index.episode_of(rows)
        out: dict[str, Any] = {
            "images": images,
            "image_valid": image_valid,
            "time_valid": valid,
            "t": np.where(valid, index.t[frames], 0.0),
            **self.calibration.at(frames, valid, images.shape[3:5]),
            **_masked(valid, frames, "speed_mps", tables.speed_mps, "speed_valid", tables.speed_valid),
            **_masked(valid, frames, "yaw_rad", wrap(tables.yaw_rad), "yaw_valid", tables.yaw_valid),
            **_masked(valid, frames, "yaw_rate_radps", tables.yaw_rate_radps, "yaw_rate_valid", tables.yaw_rate_valid),
            "past_motion": tables.past_motion[rows],
            "past_motion_valid": tables.past_motion_valid[rows],
            "relative_pose": np.where(both[..., None], relative_pose(origin, tables.pose[frames]), 0.0).astype(
                np.float32
            ),
            "relative_pose_valid": both,
            "waypoints": tables.waypoints[rows],
            "waypoint_valid": tables.waypoint_valid[rows],
            "route_command": index.route_command[rows].astype(np.int32),
            "episode": episode.astype(np.int32),
            "frame": (rows - index.starts[episode]).astype(np.int32),
        }
        batch = cast(Batch, out)
        if draws is not None:
            changes = augment(batch, draws, self.config.augment, self.mirror, pixels=not self.on_device)
            batch = cast(Batch, {**batch, **changes})
        return batch

    def _images(
        self, frames: Int64[np.ndarray, "b n"], valid: Bool[np.ndarray, "b n"], draws: Draws | None
    ) -> tuple[UInt8[np.ndarray, "b n k h w 3"], Bool[np.ndarray, "b n k"]]:
        """Images of the frames; cameras that dropout takes away are not read."""
        wanted = self.seen[frames] & valid[..., None]
        if draws is not None:
            wanted &= kept_cameras(draws, wanted[:, self.config.anchor], self.config.augment.camera_dropout)[:, None]
        images = np.zeros((*wanted.shape, *self.config.image_size, 3), np.uint8)
        for b, n in np.argwhere(wanted.any(-1)).tolist():
            self.images.read(int(frames[b, n]), wanted[b, n], images[b, n])
        return images, wanted

    def batches(
        self, *, seed: int, batch_size: int, start_step: int = 0, shard: int = 0, num_shards: int = 1
    ) -> Iterator[Batch]:
        """Endless training batches, augmented, from step `start_step` on; each shard gets its rows of every batch.

        Args:
          seed: Of the order of the samples and of their augmentation.
          batch_size: b of the global batch, over all shards.
          start_step: Steps to jump over; costs nothing.
          shard: Which rows, 0 to num_shards - 1.
          num_shards: Processes that share a batch.

        Raises:
          ConfigError: If the shards do not divide the batch.
          DataError: While iterating, if an image cannot be read.
        """
        from driving.data.stream import open_stream  # Grain takes 1 s, and imports jax

        require_shares(batch_size, shard, num_shards, start=start_step)
        return open_stream(self, seed=seed, batch_size=batch_size, start=start_step, shard=shard, shards=num_shards)

    def sample(self, row: int, *, decode: bool = True) -> Sample:
        """One frame for `collate`. Paths lead to the files, or name them where the data are a pack."""
        index, config, base = self.index, self.config, Path(self.config.path)
        base = base.parent if base.is_file() else base
        paths: dict[str, str | None] = {}
        for k, column in enumerate(columns(index, config.cameras)):
            there = index.path(row, column) if self.seen[row, k] else None
            paths[config.cameras[k]] = None if there is None else str(base / there)
        tables = self.tables
        sample: Sample = {
            "image_paths_by_cam": paths,
            "state": {
                "speed_mps": float(tables.speed_mps[row]) if tables.speed_valid[row] else None,
                "yaw_rad": float(wrap(tables.yaw_rad[row])) if tables.yaw_valid[row] else None,
            },
            "meta": {
                "episode_id": index.ids[int(index.episode_of(np.array([row]))[0])],
                "t": float(index.t[row]),
            },
        }
        if decode:
            out = np.zeros((len(config.cameras), *config.image_size, 3), np.uint8)
            self.images.read(row, self.seen[row], out)
            seen = self.seen[row]
            sample["images_by_cam"] = {name: out[k] if seen[k] else None for k, name in enumerate(config.cameras)}
        return sample

    def fingerprint(self) -> dict[str, Any]:
        """JSON values that identify the split's content, wherever the folder lies."""
        index = self.index
        rows = [(index.ids[i], int(index.lengths[i]), index.content_hashes[i]) for i in self.episodes.tolist()]
        return {
            "split": self.split,
            "manifest": manifest_hash(rows),
            "frames": len(self.anchors),
            "files": self.files.digest(),
            **self.images.identity,
        }

    def derived(self) -> dict[str, str]:
        """JSON values that say what was derived where the split's episodes do not record it; empty if all of it is.

        Beside `fingerprint` in that of a run that learns waypoints: earlier versions derived these otherwise.
        """
        index, tables = self.index, self.tables
        rows = np.concatenate([np.arange(index.frames)[index.rows(episode)] for episode in self.episodes.tolist()])
        kinds = {
            "speed_mps": (index.speed_mps, tables.speed_valid),
            "yaw_rate_radps": (index.yaw_rate_radps, tables.yaw_rate_valid),
        }
        names = [name for name, (recorded, known) in kinds.items() if (np.isnan(recorded) & known)[rows].any()]
        found = {DERIVED: f"{' and '.join(names)}, from the frames before alone"} if names else {}
        gap = self.config.max_gap_s
        slow = [bridged_s(index.t[index.rows(episode)], gap) > gap for episode in self.episodes.tolist()]
        found |= {SLOW: "bridged by their own rhythm"} if any(slow) else {}
        plans = [plans_to_stand(index, episode, tables, self.config) for episode in self.episodes.tolist()]
        found |= {PLANS: "believed where they end in a stand"} if any(plans) else {}
        new = set[str]().union(*(judged(index, episode, tables, self.config) for episode in self.episodes.tolist()))
        return found | ({JUDGED: "; ".join(sorted(new))} if new else {}) | self.headed("waypoints")

    def headed(self, what: Literal["waypoints", "poses"]) -> dict[str, str]:
        """As `derived`, of the headings and places that waypoints, or relative poses, were taken from."""
        fills = [fills_headings(self.index, episode, self.tables, self.config) for episode in self.episodes.tolist()]
        filled = any(waypoints if what == "waypoints" else poses for waypoints, poses in fills)
        placed = any(lacks_places(self.index, episode) for episode in self.episodes.tolist())
        return ({HEADED: "read, with the heading of those around"} if filled else {}) | (
            {BETWEEN: "have the place between them, and motion is taken over them"} if placed else {}
        )


def _masked(
    valid: Bool[np.ndarray, "b n"],
    frames: Int64[np.ndarray, "b n"],
    key: str,
    values: Shaped[np.ndarray, " F"],
    mask_key: str,
    mask: Bool[np.ndarray, " F"],
) -> dict[str, Any]:
    known = valid & mask[frames]
    return {key: np.where(known, values[frames], 0).astype(np.float32), mask_key: known}


def open_data(
    config: DataConfig, split: Split = "train", *, check: Check = any_files, keep_split: bool = True
) -> DrivingData:
    """Opens one split of a dataset or a pack: index, checks, manifest of the split, targets.

    Args:
      config: Which dataset, and how to take it.
      split: Which part of it.
      check: Told which files the dataset is made of, before any of them is judged.
      keep_split: Whether a split that is drawn, where the dataset has none, is written beside it.

    Raises:
      DataError: If episodes are bad (all problems in one error), named files are absent and data.missing_files is
        "refuse", the split's manifest does not fit or leaks, or no frame is left to draw.
      ConfigError: If there is no such split, a pack's image size is not the config's, or a camera's mirror partner is
        missing or not told by its name.
    """
    if split not in get_args(Split):
        raise ConfigError(f"split is {split!r}; expected one of {', '.join(get_args(Split))}")
    budget.use(config.limits)
    path, notes = Path(config.path), []
    mirror = tuple(mirror_order(config.cameras)) if config.augment.flip else ()
    files = open_files(path, config)
    if is_pack(path):
        add_pack(files, INDEX_FILE)
        check(files)
        index, images = open_pack(path, config, files)
    else:
        index, problems = scan(path, files, Hands(workers=config.index_processes or len(cores())))
        check(files)
        index = without_bad(index, problems, config, notes)
        images = FileImages(files.bounds.root, index, config.cameras, files)
        if (files.bounds.root / INDEX_FILE).exists():
            notes.append(f"{files.bounds.root / INDEX_FILE} is ignored, and may be removed: indexes lie in the cache")
    if config.cache_mb:
        images = CachedImages(images, config.cache_mb * 1_000_000)
    absent = [name for name in config.cameras if name not in index.cameras]
    if len(absent) == len(config.cameras) and config.min_cameras:
        raise DataError(
            f"{path}: expected images of {list(config.cameras)}, found cameras {list(index.cameras)}. Name those in "
            "data.cameras; for waypoints without any (waypoints.use_cameras false), set data.min_cameras 0"
        )
    if absent:
        notes.append(f"data.cameras: no episode has {absent}, masked in every sample; found {list(index.cameras)}")
    check_absent(index, config, notes)
    episodes = members(index, config, split, notes, keep=keep_split)
    tables = make_tables(index, config)
    seen = by_camera(index, index.image_status == PRESENT, config.cameras, False)
    inside = np.zeros(index.frames, bool)
    for episode in episodes.tolist():
        inside[index.rows(episode)] = True
    enough = seen.sum(1) >= config.min_cameras
    # Where images are asked for, a moment without any lacks what the sample is drawn for.
    there = tables.time_valid & ((seen.sum(1) > 0)[tables.rows] | (config.min_cameras == 0))
    complete = there.all(1) | (config.incomplete == "mask")
    anchors = np.flatnonzero(inside & enough & complete)
    notes.append(
        f"{split}: {len(episodes)} of {len(index.ids)} episodes, {len(anchors)} samples; left out: "
        f"{int((inside & ~enough).sum())} frames with fewer than {config.min_cameras} image(s), "
        f"{int((inside & enough & ~complete).sum())} that lack a frame, or its images, at some offset"
    )
    if not len(anchors):
        none = f". {SPLIT_FILE} and source.split say which episodes are of it; name another split in data.split_file"
        raise DataError(f"{path}: no frame is left to draw. {notes[-1]}{'' if len(episodes) else none}")
    calibration = make_calibration(index, tables, config)
    if sideless := sideless_note(config.cameras, mirror, calibration.row, calibration.extrinsics):
        notes.append(sideless)
    notes.append(f"{split}: {scored_note(scored(tables.waypoint_valid[anchors], config.waypoint_dt_s))}")
    if masked := sum(masked_plans(index, episode, tables, config) for episode in episodes.tolist()):
        notes.append(
            f"{split}: {masked} frames list no waypoints, of drives whose waypoint_spec.driven is false: masked, since "
            "where the car went is no plan; set data.waypoint_source poses to take that of all frames"
        )
    opened = DrivingData(
        config=config,
        split=split,
        index=index,
        files=files,
        tables=tables,
        calibration=calibration,
        images=images,
        seen=seen,
        episodes=episodes,
        anchors=anchors,
        mirror=mirror,
        notes=(),
    )
    if len(config.offsets_s) > 1:
        notes.append(f"{split}: {shown_note(opened.shown())}")
    if config.braking_repeats > 1:
        braking = f"{int(opened.brakes(anchors).sum())} frames at which the driver brakes"
        notes.append(f"{split}: {braking} are drawn {config.braking_repeats} times an epoch")
    return dataclasses.replace(opened, notes=tuple(notes))
