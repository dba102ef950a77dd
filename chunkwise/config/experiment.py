"""Config dataclasses that every package shares. No jax is imported on this path, so that `--help` answers at once."""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from chunkwise.files.budget import LIMITS, Limits

FREE_ON_RESUME: Mapping[str, Any] = MappingProxyType({"free on resume": "always"})
"""Metadata of a field that may differ when a run goes on: it changes neither weights nor batches. Of a field
that holds a config all below it are free; whether there is such a config at all is not."""
FREE_AS_A_PLACE: Mapping[str, Any] = MappingProxyType({"free on resume": "always", "place": True})
"""Metadata of a field that says where files lie, which may differ when a run goes on: what is in them may not."""
FREE_AT_A_CONSTANT_RATE: Mapping[str, Any] = MappingProxyType({"free on resume": "constant"})
"""Metadata of a field that may differ where the learning rate does not depend on it: optim.schedule is constant."""


RematPolicy = Literal["nothing", "attention", "products", "inputs_on_host"]
"""What is kept of a layer that is computed again in the backward pass (chunkwise/models/remat.py). nothing: its input
alone. attention: beside it what attention read, so that scores are not made a third time. products: all products with
weights, so that only norms, softmax and other cheap steps are computed again. inputs_on_host: not even its input stays
on the device, it waits in the memory of the host. Numbers are the same with each."""


def renamed_from(name: str) -> Mapping[str, Any]:
    """Returns metadata of a field that earlier versions called `name`: runs that they saved are read by it."""
    return MappingProxyType({"renamed from": name})


def before_it_was_there(value: Any) -> Mapping[str, Any]:
    """Returns metadata of a field whose default is not what versions without the field did: that is `value`.

    Args:
      value: A JSON value, or a function that makes it of the values of the fields beside it, by their names.
    """
    return MappingProxyType({"before it was there": value})


def none_stands_for(value: Callable[[Mapping[str, Any]], Any]) -> Mapping[str, Any]:
    """Returns metadata of a field in which None is the same as a value that earlier versions wrote out.

    Args:
      value: Makes it of the values of the fields beside it, by their names.
    """
    return MappingProxyType({"none stands for": value})


_OF_BEFORE = contextvars.ContextVar("whether what only a new run may not hold is taken", default=False)


@contextlib.contextmanager
def of_a_run_of_before() -> Iterator[None]:
    """Takes configs as a run may have been begun with them, inside the block: what `refuse_anew` says is not raised."""
    token = _OF_BEFORE.set(True)
    try:
        yield
    finally:
        _OF_BEFORE.reset(token)


def refuse_anew(reason: str) -> None:
    """Raises ValueError for a value that a config may not have, unless it is of a run of before.

    For checks that are younger than the field, of values with which training ran: a setting that nothing read. Runs
    that were begun so are loaded, act, and go on as they did.
    """
    if not _OF_BEFORE.get():
        raise ValueError(reason)


def require_positive(config: Any, *names: str) -> None:
    """Raises ValueError if a field is not above 0, naming class, field and value."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{type(config).__name__}.{name} is {getattr(config, name)}; expected a number above 0")


def require_non_negative(config: Any, *names: str) -> None:
    """Raises ValueError if a field is below 0, naming class, field and value."""
    for name in names:
        if not getattr(config, name) >= 0:
            raise ValueError(f"{type(config).__name__}.{name} is {getattr(config, name)}; expected 0 or above")


def require_fraction(config: Any, *names: str) -> None:
    """Raises ValueError if a field is outside [0, 1], naming class, field and value."""
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"{type(config).__name__}.{name} is {getattr(config, name)}; expected 0 to 1")


def require_defaults(config: Any, prefix: str, names: Collection[str], reader: str) -> None:
    """Raises ValueError if a field that `reader` does not read is not its default, naming both; as `refuse_anew`."""
    for field in dataclasses.fields(config):
        if field.name in names and (value := getattr(config, field.name)) != field.default:
            refuse_anew(
                f"{prefix}.{field.name} is {value!r}, which {reader} does not read; "
                f"expected {field.default!r}, its default"
            )


def require_remat(remat: bool, policy: RematPolicy, config: str) -> None:
    """Raises ValueError for a policy that has no effect, naming the config's fields."""
    if policy != "nothing" and not remat:
        raise ValueError(
            f"{config}.remat_policy is {policy} and {config}.remat off, so that everything is kept; expected nothing, "
            f"or {config}.remat on"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: its folder and its seed."""

    dir: str | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """Run folder. By default runs/<package>-<config>-<time>."""
    resume: bool = dataclasses.field(default=False, metadata=FREE_ON_RESUME)
    """Continue the run in `dir`. A folder that holds a run is refused without it."""
    seed: int = 0
    """Seed of weights, batches, environments: all randomness of the run."""
    dry_run: bool = dataclasses.field(default=False, metadata=FREE_ON_RESUME)
    """Open the data, build and compile, print shapes, parameters and memory, and stop before the first update; leaves
    no folder. --dry-run for short."""
    compile_cache: str | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """Folder that keeps compiled programs from one start to the next, those that took more than a second. None: each
    start compiles anew."""
    loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = dataclasses.field(
        default=(), metadata=FREE_ON_RESUME
    )
    """Where the lines of metrics.jsonl go as well: TensorBoard's files in the run folder, W&B (offline with
    WANDB_MODE=offline), trackio. Each needs an extra: tb, wandb, trackio."""
    profile: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Updates of which a trace is written into `profile` of the run folder, once the first ones are done; xprof and
    TensorBoard show it. --profile N for short. 0: none."""

    def __post_init__(self) -> None:
        require_non_negative(self, "seed", "profile")
        if self.profile and self.dry_run:
            raise ValueError(
                f"run.profile is {self.profile} and run.dry_run on, which makes no updates; expected 0, or no --dry-run"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length and rhythm of training."""

    steps: int = dataclasses.field(metadata=FREE_AT_A_CONSTANT_RATE)
    """Gradient updates in all."""
    batch_size: int
    """Rows of one update, over all devices and processes."""
    grad_accum_steps: int = dataclasses.field(default=1, metadata=renamed_from("accumulate"))
    """Parts of a batch whose gradients are summed one after another before an update: less memory, the same update."""
    ema_decay: float | None = dataclasses.field(default=None, metadata=renamed_from("ema"))
    """Share of the old value that a moving average of the trained weights keeps at each update, for example 0.999. The
    average is what is evaluated and acts, but for PPO and driving's rollouts, whose ratios are to the weights that
    train: those act there. None: no average is kept."""
    updates_per_call: int = dataclasses.field(default=1, metadata=FREE_ON_RESUME)
    """Updates per dispatch (lax.scan); the results do not depend on it."""
    log_every: int = dataclasses.field(default=100, metadata=FREE_ON_RESUME)
    """Updates between two lines of metrics.jsonl; each line is the mean since the line before."""
    eval_every: int = dataclasses.field(default=0, metadata=FREE_ON_RESUME)
    """Updates between two evaluations; 0 evaluates only at the end."""
    max_skipped: int = dataclasses.field(default=5, metadata=FREE_ON_RESUME)
    """Updates in a row whose loss or gradient may be NaN or infinite; none is applied, and at this number the run
    ends."""

    def __post_init__(self) -> None:
        require_positive(
            self, "steps", "batch_size", "grad_accum_steps", "updates_per_call", "log_every", "max_skipped"
        )
        require_non_negative(self, "eval_every")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"train.ema_decay is {self.ema_decay}; expected a number between 0 and 1, or None")
        if self.batch_size % self.grad_accum_steps:
            raise ValueError(
                f"train.batch_size is {self.batch_size} and train.grad_accum_steps {self.grad_accum_steps}; "
                "expected a divisor"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Adam, AdamW, Muon or schedule-free AdamW with a warm-up, a schedule and clipping; chunkwise/train/optimizer.py
    makes it."""

    method: Literal["adamw", "muon", "schedule_free"] = "adamw"
    """adamw: Adam, with decoupled weight decay. muon: the momentum of matrices is made orthogonal, all else by AdamW;
    one moment for a matrix in place of two. schedule_free: AdamW that averages its own weights, of which no moving
    average is kept beside it; what is evaluated, saved for use and served is that average."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """Global-norm clipping of the gradient; None switches it off."""
    beta1: float = 0.9
    """Share of its old value that the first moment keeps, Muon's momentum too; with schedule_free the share of the
    average in the weights at which gradients are taken."""
    beta2: float = 0.999
    """Share of its old value that the second moment keeps."""
    epsilon: float = 1e-8
    first_moment: Literal["float32", "bfloat16"] = "float32"
    """In which the first moment is kept, and Muon's momentum. The second one stays in float32: what an update adds to
    it is below what bfloat16 can tell apart."""

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate", "epsilon")
        require_non_negative(self, "warmup_steps", "weight_decay")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(
                f"optim.clip_norm is {self.clip_norm}; expected a finite number above 0, or None, which clips nothing"
            )
        if self.method == "schedule_free":
            self._require_schedule_free()
        names = ("beta2",) if self.method == "schedule_free" else ("beta1", "beta2")
        for name in names:
            if not 0 <= (share := getattr(self, name)) < 1:
                raise ValueError(f"optim.{name} is {share}; expected a share of an old value, 0 or above and below 1")

    def _require_schedule_free(self) -> None:
        """Raises ValueError for what contradicts optim.method schedule_free, or has no effect on it."""
        if self.schedule != "constant":
            raise ValueError(
                f"optim.schedule is {self.schedule} and optim.method schedule_free, whose average stands in for a rate "
                "that falls; expected constant, after a warm-up where one is wanted"
            )
        if not 0 < self.beta1 <= 1:
            raise ValueError(
                f"optim.beta1 is {self.beta1} and optim.method schedule_free, which finds its average by dividing by "
                "it; expected a number above 0, 1 at most"
            )
        if self.first_moment != "float32":
            raise ValueError(
                f"optim.first_moment is {self.first_moment} and optim.method schedule_free, which keeps none; expected "
                "float32"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices as a grid ('data', 'fsdp'): the batch is spread over both, large weights over fsdp."""

    data: int = -1
    """Devices along data; -1 takes all that fsdp leaves."""
    fsdp: int = 1
    """Devices that share one copy of the weights."""
    replicate_below: int = 4 * 2**20
    """Bytes below which a weight is not split: gathering it would cost more than it saves."""

    def __post_init__(self) -> None:
        require_positive(self, "fsdp")
        require_non_negative(self, "replicate_below")
        if self.data != -1 and self.data < 1:
            raise ValueError(f"mesh.data is {self.data}; expected -1 (all devices left over) or at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often a run is saved, and how many saves stay."""

    every: int = 1000
    """Updates between two saves; the last step is always saved."""
    max_to_keep: int = dataclasses.field(default=2, metadata=renamed_from("keep_last"))
    """Newest saves that stay."""
    keep_period: int | None = dataclasses.field(default=None, metadata=renamed_from("keep_every"))
    """Saves at multiples of this step stay for good."""
    keep_best: str | None = None
    """Metric of the evaluation by which the best save so far stays too, for example policy/success. Only a save at a
    step that is evaluated can be it: let train.eval_every be `every`, or a multiple."""
    best: Literal["highest", "lowest"] = "highest"
    """Which value of `keep_best` is the best."""

    def __post_init__(self) -> None:
        require_positive(self, "every", "max_to_keep")
        if self.keep_period is not None and self.keep_period < 1:
            raise ValueError(f"checkpoint.keep_period is {self.keep_period}; expected at least 1, or None")
        if self.keep_best is None:
            require_defaults(self, "checkpoint", ("best",), "a run without checkpoint.keep_best")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Where environments run; what they do does not depend on it."""

    address: str | None = None
    """None: in processes of this machine. Else on the nodes of a Ray cluster. local: one of this run's own, that
    listens on the loopback alone. auto: the one that this machine is a node of. ray://host:port or host:port: that one.
    Needs the extra `fleet`."""
    silence: float = 300.0
    """Seconds after which an environment or a node that does not answer counts as dead, and its rollouts are played
    again; the first answer waits for numba to compile."""

    def __post_init__(self) -> None:
        require_positive(self, "silence")
        if self.address is not None and self.address not in ("auto", "local") and ":" not in self.address:
            raise ValueError(f"fleet.address is {self.address!r}; expected auto, local, ray://host:port, or host:port")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesConfig:
    """What every package's data config says of a dataset's files; chunkwise/files/identity.py."""

    verify: Literal["sample", "full"] = dataclasses.field(default="sample", metadata=FREE_ON_RESUME)
    """What is read of files above 256 MiB to tell whether they changed: a fixed sample, or every byte. Smaller ones are
    read whole either way."""
    allow_links_to: tuple[str, ...] = dataclasses.field(default=(), metadata=FREE_ON_RESUME)
    """Folders outside of the dataset that links in it may lead to; the blobs of a hub snapshot need not be named."""
    limits: Limits = dataclasses.field(default=LIMITS, metadata=FREE_ON_RESUME)
    """What one file may cost, by --data.limits.NAME; a file above a limit is refused."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """What every package's config holds; `launch.py` trains the package in which the subclass is defined."""

    run: RunConfig = RunConfig()
    train: TrainConfig
    optim: OptimConfig = OptimConfig()
    mesh: MeshConfig = dataclasses.field(default=MeshConfig(), metadata=FREE_ON_RESUME)
    checkpoint: CheckpointConfig = dataclasses.field(default=CheckpointConfig(), metadata=FREE_ON_RESUME)

    def __post_init__(self) -> None:
        if self.optim.method == "schedule_free" and self.train.ema_decay is not None:
            raise ValueError(
                f"train.ema_decay is {self.train.ema_decay} and optim.method schedule_free, which averages the weights "
                "itself: a second average would be kept and never looked at; expected None"
            )

    @property
    def package(self) -> str:
        """Top-level package of the config's class: qchunk, openpi_ript or driving."""
        return type(self).__module__.split(".")[0]

    @property
    def unread(self) -> dict[str, str]:
        """Fields that have no effect beside the others of this config, by dotted name, with what would read them.

        A flag that sets one is refused (chunkwise/config/load.py). A config file may: another flag may bring in what
        reads it.
        """
        return {}
