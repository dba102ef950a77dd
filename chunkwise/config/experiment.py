"""Config dataclasses that every package shares, and `load`, which turns a command line into one of them.

No jax is imported on this path, so that `--help` answers at once.
"""

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from chunkwise.errors import ConfigError
from chunkwise.files.budget import LIMITS, Limits

FREE_ON_RESUME: Mapping[str, Any] = MappingProxyType({"free on resume": "always"})
"""Metadata of a field that may differ when a run goes on: it changes neither weights nor batches. Where data lie is
one: what is in their files is in the fingerprint. Of a field that holds a config all below it are free; whether
there is such a config at all is not."""
FREE_AT_A_CONSTANT_RATE: Mapping[str, Any] = MappingProxyType({"free on resume": "constant"})
"""Metadata of a field that may differ where the learning rate does not depend on it: optim.schedule is constant."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: its folder and its seed."""

    dir: str | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """Run folder. By default runs/<package>-<config>-<time>."""
    resume: bool = dataclasses.field(default=False, metadata=FREE_ON_RESUME)
    """Continue the run in `dir`. A folder that holds a run is refused without it."""
    seed: int = 0
    """Seed of weights, batches, environments: all randomness of the run."""
    compile_cache: str | None = dataclasses.field(default=None, metadata=FREE_ON_RESUME)
    """Folder that keeps compiled programs from one start to the next, those that took more than a second. None: each
    start compiles anew."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length and rhythm of training."""

    steps: int = dataclasses.field(metadata=FREE_AT_A_CONSTANT_RATE)
    """Gradient updates in all."""
    batch_size: int
    """Rows of one update, over all devices and processes."""
    accumulate: int = 1
    """Parts of a batch whose gradients are summed one after another before an update: less memory, the same update."""
    ema: float | None = None
    """Share of the old value that a moving average of the trained weights keeps at each update, for example 0.999. The
    average is what is evaluated and acts. None: no average is kept."""
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
        require_positive(self, "steps", "batch_size", "accumulate", "updates_per_call", "log_every", "max_skipped")
        require_non_negative(self, "eval_every")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"train.ema is {self.ema}; expected a number between 0 and 1, or None")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"train.batch_size is {self.batch_size} and train.accumulate {self.accumulate}; expected a divisor"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Adam or AdamW with a warm-up, a schedule and clipping; chunkwise/train/optimizer.py makes it."""

    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """Global-norm clipping of the gradient; None switches it off."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate", "epsilon")
        require_non_negative(self, "warmup_steps", "weight_decay")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"optim.clip_norm is {self.clip_norm}; expected a number above 0, or None")


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
    keep_last: int = 2
    """Newest saves that stay."""
    keep_every: int | None = None
    """Saves at multiples of this step stay for good."""
    keep_best: str | None = None
    """Metric of the evaluation by which the best save so far stays too, for example policy/success. Only a save at a
    step that is evaluated can be it: let train.eval_every be `every`, or a multiple."""
    best: Literal["highest", "lowest"] = "highest"
    """Which value of `keep_best` is the best."""

    def __post_init__(self) -> None:
        require_positive(self, "every", "keep_last")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"checkpoint.keep_every is {self.keep_every}; expected at least 1, or None")


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

    @property
    def package(self) -> str:
        """Top-level package of the config's class: qchunk, openpi_ript or driving."""
        return type(self).__module__.split(".")[0]


def load(argv: Sequence[str], *, program: str = "launch.py") -> tuple[ExperimentConfig, Path]:
    """Config of a command line `--config FILE [--field value ...]`, and the file it came from.

    Args:
      argv: Arguments after the program's name.
      program: Name shown in the usage.

    Raises:
      ConfigError: The file is missing or broken, a field is misspelt, or a value is refused; the message names it.
      SystemExit: With code 0 after `--help`.
    """
    usage = (
        f"usage: python {program} --config FILE [--help] [--field value ...]\n\n"
        "Trains what FILE describes, for example configs/qchunk/debug.py (seconds on a laptop).\n"
        f"'python {program} --config FILE --help' lists every field of that config with its value.\n"
        "FILE is Python and is executed: run only files that you trust."
    )
    arguments = list(argv)
    path = _take_config(arguments)
    if path is None:
        if "--help" in arguments or "-h" in arguments:
            print(usage)
            raise SystemExit(0)
        raise ConfigError("--config is missing.", "", *usage.split("\n"))
    return _override(_read_file(path), arguments, program), path


def flatten(config: Any) -> dict[str, Any]:
    """Leaves of a nested config by dotted name, as JSON values: {"agent.discount": 0.99, ...}."""

    def walk(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield from walk(f"{prefix}.{field.name}" if prefix else field.name, getattr(value, field.name))
        else:
            yield prefix, json.loads(json.dumps(value))

    return dict(walk("", config))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreeFields:
    """Dotted names of the fields that may differ when a run goes on; one that ends in a dot stands for all below it."""

    always: tuple[str, ...] = ()
    at_a_constant_rate: tuple[str, ...] = ()


NOTHING_FREE = FreeFields()


def free_fields(kind: type) -> FreeFields:
    """What the metadata of a config class, and of the classes nested in it, say of their fields."""

    def walk(prefix: str, kind: type) -> Iterator[tuple[str, str]]:
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            name = f"{prefix}{field.name}"
            parts = [part for part in members(hints[field.name]) if isinstance(part, type)]
            nested = [part for part in parts if dataclasses.is_dataclass(part)]
            if when := field.metadata.get("free on resume"):
                yield f"{name}." if nested else name, when
            else:
                for part in nested:
                    yield from walk(f"{name}.", part)

    found = list(walk("", kind))
    always, constant = (tuple(name for name, when in found if when == one) for one in ("always", "constant"))
    return FreeFields(always=always, at_a_constant_rate=constant)


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union; of another type, itself."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def fingerprint(flat: dict[str, Any], free: FreeFields) -> dict[str, Any]:
    """Returns the part of a flattened config that must be the same when a run goes on."""
    names = free.always + (free.at_a_constant_rate if flat.get("optim.schedule") == "constant" else ())
    below = tuple(name for name in names if name.endswith("."))
    return {name: value for name, value in flat.items() if name not in names and not name.startswith(below)}


# Entries of a checkpoint's fingerprint that earlier versions did not write.
YOUNGER = ("dataset.files",)


def comparable(
    saved: dict[str, Any], current: dict[str, Any], free: FreeFields
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The parts of a checkpoint's fingerprint and of a run's that both versions of the code know, and a note.

    Args:
      saved: Of the checkpoint, which an earlier version may have written.
      current: Of the run.
      free: Of the run's config class: what this version lets differ, an earlier one may have saved.

    Returns:
      Both, to be compared, and what to say of entries that are in `current` alone; empty where there are none.
    """
    new = [name for name in YOUNGER if name in current and name not in saved]
    note = ""
    if new:
        note = (
            "the checkpoint is an earlier version's, which kept no list of the dataset's files: whether pictures or "
            "videos changed since cannot be told; from the next save on it can. (Files above 256 MiB were hashed in "
            "another way then: if nothing but dataset.manifest differs, go on with that version, or start anew)"
        )
    return fingerprint(saved, free), {name: value for name, value in current.items() if name not in new}, note


def _take_config(arguments: list[str]) -> Path | None:
    """Removes `--config FILE` or `--config=FILE` from the arguments and returns FILE."""
    for i, argument in enumerate(arguments):
        if argument == "--config":
            if i + 1 == len(arguments):
                raise ConfigError("--config needs a file, for example configs/qchunk/debug.py")
            del arguments[i]
            return Path(arguments.pop(i))
        if argument.startswith("--config="):
            return Path(arguments.pop(i).removeprefix("--config="))
    return None


def _read_file(path: Path) -> ExperimentConfig:
    """The config that `get_config()` of a file returns."""
    if not path.is_file():
        found = sorted(str(p) for p in Path("configs").glob("*/*.py") if p.name != "__init__.py")
        near = difflib.get_close_matches(str(path), found, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(found)}" if found else ""
        raise ConfigError(f"config file {path} does not exist{hint}")
    spec = importlib.util.spec_from_file_location("chunkwise_config_file", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"config file {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except Exception as error:  # whatever a user's file raises is the user's to mend: name file, line and reason
        where = f"config file {path}{_line_in(path, error)}"
        raise ConfigError(f"{where}: {type(error).__name__}: {error}{_suggestion(error, module)}") from error
    if not isinstance(config, ExperimentConfig):
        raise ConfigError(f"config file {path}: get_config() returned {type(config).__name__}, expected a config")
    return config


def _line_in(path: Path, error: BaseException) -> str:
    """', line N' of the innermost frame of `error` that lies in `path`."""
    lines = []
    if isinstance(error, SyntaxError) and error.lineno is not None:
        lines.append(error.lineno)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f", line {lines[-1]}" if lines else ""


def _suggestion(error: BaseException, module: Any) -> str:
    """'; did you mean ...?' for a misspelt field of one of the config classes that a file imports."""
    wrong = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
    if wrong is None:
        return ""
    classes = [value for value in vars(module).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]
    names = sorted({field.name for one in classes for field in dataclasses.fields(one)})
    near = difflib.get_close_matches(wrong[1], names, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; the fields of this file's configs are {', '.join(names)}"


def _override(config: ExperimentConfig, arguments: list[str], program: str) -> ExperimentConfig:
    """`config` with the fields that `arguments` name replaced; tyro's own messages become a ConfigError."""
    import tyro

    if not arguments:
        return config
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                type(config),
                default=config,
                args=arguments,
                prog=program,
                description=f"Every field with its value; '--field value' replaces it. {_summary(config)}",
                config=(tyro.conf.AvoidSubcommands,),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(said.getvalue().strip() or "the command line was refused") from None
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _summary(config: ExperimentConfig) -> str:
    """First line of the config class's docstring."""
    return (type(config).__doc__ or "").split("\n")[0]
