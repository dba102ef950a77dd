"""Episodes on disk and the pool that is drawn from them."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import (
    FREE_AS_A_PLACE,
    FREE_ON_RESUME,
    FilesConfig,
    refuse_anew,
    require_fraction,
    require_non_negative,
    require_positive,
)

Normalization = Literal["none", "mean_std", "quantile", "min_max"]
FORMATS = ("aloha_hdf5", "ogbench_npz", "lerobot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(FilesConfig):
    """Episodes on disk and the pool that is drawn from them (specification: the pool loader)."""

    path: str = dataclasses.field(metadata=FREE_AS_A_PLACE)
    """Folder of ALOHA-layout HDF5 episodes, an OGBench .npz file or a folder of several, or a LeRobot folder; of a
    reader of your own, its files."""
    format: str = "aloha_hdf5"
    """aloha_hdf5, ogbench_npz, lerobot (v2.1 or v3.0, without images), or `module:function` of your own: it makes an
    Episode of a file (docs/extend.md)."""
    mixture: dict[str, float] = dataclasses.field(default_factory=dict)
    """Folders below `path`, each a dataset, by their weights: of the frames in pools a folder's expected share is its
    weight over the sum, and of the rows drawn about that (qchunk/data/mixture.py). Empty: all episodes alike."""
    task: str | None = None
    """OGBench single-task environment whose reward replaces the file's, e.g. cube-single-play-singletask-task2-v0."""
    sparse: bool = False
    """Reward of data.task: -1 until all of its objects are at their goals, then 0, as the papers have it for scene and
    puzzle-3x3; otherwise minus the number that are not. eval.env and online.env earn it too, and must be OGBench's."""
    success_timing: Literal["pre", "post"] = "pre"
    """When OGBench's environments in eval.env and online.env judge reward and success: before an action, as from
    ogbench 1.2 on, or after it, as in 1.1.2, which the papers used. Recordings are labelled before it by both."""
    observation: Literal["qpos", "state"] = "qpos"
    """Array of /observations that the networks see."""
    action: Literal["action", "qpos"] = "action"
    """Array that holds the actions; the original loader took qpos of the same step."""
    cameras: tuple[str, ...] = ()
    """Cameras whose images enter a batch, in this order: names of /observations/images/<name>."""
    depth_cameras: tuple[str, ...] = ()
    """Cameras whose depth maps enter a batch: names of /observations/images_depth/<name>,
    or of /observations/depth_images/<name>."""
    image_size: tuple[int, int] | None = None
    """Height and width of images in a batch; None keeps the recorded size, which all cameras must share."""
    jpeg_channels: Literal["rgb", "bgr"] = "rgb"
    """bgr: the recorder handed RGB to OpenCV's encoder, as ALOHA's does, so that its JPEGs show red as blue."""
    base_action: bool = False
    """Appends /base_action (a mobile base's velocities) to the actions."""
    frames: Literal["auto", "decoded", "recorded"] = dataclasses.field(default="auto", metadata=FREE_ON_RESUME)
    """How the pool keeps images: decoded and resized once, while it loads; or as recorded (JPEG, raw), decoded when
    drawn. auto: decoded, if that fits memory_gib."""
    memory_gib: float = dataclasses.field(default=16.0, metadata=FREE_ON_RESUME)
    """Memory for images: of the pool in use, of what loads behind it, and of batches (GiB, per process)."""
    decode_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that decode and copy images; 0 takes one a core."""
    missing_reward: Literal["label", "refuse"] = "label"
    """File without /reward: 1 at the last frame of a positive episode, 0 elsewhere, ending terminated; or an error."""
    positive_scores: tuple[int, ...] = (4, 5)
    """Folders score_<n> whose episodes are positive."""
    negative_scores: tuple[int, ...] = (1, 2)
    """Folders score_<n> whose episodes are negative; other scores are left out, and counted."""
    on_bad: Literal["refuse", "skip"] = "refuse"
    """Bad episodes: refuse all with one report, or skip up to 1 % of them with the list printed."""
    episodes_per_epoch: int = 32
    """Whole episodes that the pool holds, per shard."""
    steps_per_epoch: int = 5000
    """Updates in which the whole pool is replaced once."""
    refresh: Literal["epoch", "rolling"] = "epoch"
    """epoch: all episodes at once; rolling: in refresh_parts, one after another, evenly over the epoch."""
    refresh_parts: int = 8
    """Parts of a rolling refresh; memory then holds one pool and a part, where epoch holds two pools."""
    refresh_ahead: int | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """Updates before a refresh at which the next pool begins to load, and the one in use lets go of all images but
    those that these updates draw; None: it loads from the start, beside a whole pool."""
    positive_ratio: float = 0.6
    """Share of positive episodes in the pool."""
    holdout: float = 0.0
    """Share of the episodes of each label that no pool draws, at least one; evaluations measure policy and critic on
    them (qchunk/policies/offline_metrics.py). 0: none, as the specification has it."""
    shards: int = 1
    """Pools that are drawn independently, a fixed number whatever the number of processes."""
    action_norm: Normalization = "none"
    """Policies give out -1 .. 1 of it: min_max alone reaches every recorded action (docs/data_formats.md)."""
    observation_norm: Normalization = "none"
    norm_stats: str | None = dataclasses.field(default=None, metadata=FREE_AS_A_PLACE)
    """JSON of statistics to use; None computes them in a streaming pass and keeps them beside the run."""
    read_threads: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Threads that build batches ahead; 0 builds them where they are used, best for state-only batches."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes_per_epoch", "steps_per_epoch", "shards", "refresh_parts", "memory_gib")
        require_fraction(self, "positive_ratio")
        if not 0 <= self.holdout < 1:
            raise ValueError(f"data.holdout is {self.holdout}; expected 0 or above, and below 1")
        require_non_negative(self, "read_threads", "decode_threads")
        for name in ("cameras", "depth_cameras"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"data.{name} is {getattr(self, name)}; expected each camera once")
        if self.format not in FORMATS and ":" not in self.format:
            raise ValueError(
                f"data.format is {self.format!r}; expected {', '.join(FORMATS)}, or module:function of your own"
            )
        if self.sparse and self.task is None:
            raise ValueError("data.sparse is True, and data.task, whose reward it makes sparse, is None; set data.task")
        if ":" in self.format and (self.task is not None or self.missing_reward != "label"):
            raise ValueError(
                f"data.task is {self.task!r} and data.missing_reward {self.missing_reward!r}; expected None and "
                "'label', since the reader of your own that data.format names gives the rewards"
            )
        both = sorted(set(self.positive_scores) & set(self.negative_scores))
        if both:
            refuse_anew(
                f"data.positive_scores is {self.positive_scores} and data.negative_scores {self.negative_scores}; "
                f"expected each score in one of them, found {both} in both"
            )
        self._check_mixture()
        if self.format == "lerobot" and self.task is not None:
            raise ValueError(
                f"data.task is {self.task!r}: its rewards are computed from the simulator's state, which a LeRobot "
                "dataset does not have; expected None"
            )
        if (self.cameras or self.depth_cameras) and self.format == "lerobot":
            raise ValueError(
                "data.format is lerobot, of which training takes no images; convert the dataset for cameras: "
                f"python -m qchunk.convert {self.path} OUT, and set --data.path OUT --data.format aloha_hdf5"
            )
        if (self.cameras or self.depth_cameras) and self.format != "aloha_hdf5":
            raise ValueError(f"data.format is {self.format}, which holds no images; expected aloha_hdf5 for cameras")
        if self.base_action and self.format != "aloha_hdf5":
            raise ValueError(f"data.base_action: data.format {self.format} has none; expected aloha_hdf5")
        if self.image_size is not None and min(self.image_size) < 1:
            raise ValueError(f"data.image_size is {self.image_size}; expected height and width above 0, or None")
        most = min(self.episodes_per_epoch, self.steps_per_epoch)
        if self.refresh == "rolling" and self.refresh_parts > most:
            raise ValueError(
                f"data.refresh_parts is {self.refresh_parts}; expected at most {most}, an episode and a step each"
            )
        self._check_ahead()

    def _check_ahead(self) -> None:
        if self.refresh_ahead is None:
            return
        if not self.cameras and not self.depth_cameras:
            raise ValueError(
                f"data.refresh_ahead is {self.refresh_ahead}, and there are no images to let go of; expected None, or "
                "data.cameras"
            )
        shortest = self.steps_per_epoch // (self.refresh_parts if self.refresh == "rolling" else 1)
        if not 1 <= self.refresh_ahead <= shortest:
            raise ValueError(
                f"data.refresh_ahead is {self.refresh_ahead}; expected 1 to {shortest}, the updates from one refresh "
                "to the next"
            )

    def _check_mixture(self) -> None:
        """Folders that are below `path`, apart from one another, and weights that are shares of something."""
        if not self.mixture:
            return
        if self.format in ("ogbench_npz", "lerobot"):
            raise ValueError(
                f"data.mixture: data.format {self.format} is one dataset; expected folders of HDF5 episodes "
                "(python -m qchunk.convert makes them), or of a reader of your own"
            )
        if len(self.mixture) < 2 or not all(0 < weight < float("inf") for weight in self.mixture.values()):
            raise ValueError(f"data.mixture is {self.mixture}; expected two folders or more with weights above 0")
        if sum(self.mixture.values()) == float("inf"):
            raise ValueError(f"data.mixture is {self.mixture}; expected weights whose sum is finite")
        outside = [name for name in self.mixture if {"", ".", ".."} & set(name.split("/"))]
        nested = [a for a in self.mixture for b in self.mixture if a.startswith(f"{b}/")]
        if outside or nested:
            raise ValueError(
                f"data.mixture names {outside + nested}; expected folders below data.path, written as dirA or dir/A, "
                "none of them inside another"
            )
