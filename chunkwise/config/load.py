"""Config of a command line `--config FILE [--field value ...]`. No jax here, so that `--help` answers at once."""

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from chunkwise.config.experiment import ExperimentConfig, of_a_run_of_before
from chunkwise.config.names import find
from chunkwise.config.optional_parts import restored, switchable, with_parts
from chunkwise.config.saved import CONFIG, flatten, resume_rules, with_fitting_values
from chunkwise.errors import ConfigError

Config = TypeVar("Config", bound=ExperimentConfig)
DEBUG = "configs/qchunk/debug.py"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SHORT = {"--dry-run": "--run.dry-run", "--profile": "--run.profile"}


def load(
    argv: Sequence[str], *, program: str = "python launch.py --config FILE", trains: bool = True
) -> tuple[ExperimentConfig, Path]:
    """Config of a command line `--config FILE [--field value ...]`, and the file it came from.

    Args:
      argv: Arguments after the program's name.
      program: How the command line begins, for the usage.
      trains: Whether a flag is refused that has no effect on training, where none is resumed.

    Raises:
      ConfigError: The file is missing or broken, a field is misspelt, or a value is refused; the message names it.
      SystemExit: With code 0 after `--help` and `--print-config`.
    """
    example = program.replace("NAME_OR_FILE", "qchunk/debug").replace("FILE", DEBUG)
    usage = (
        f"usage: {program} [--help] [--field value ...]\n\n"
        f"Trains what a config describes; example: {example} (seconds on a laptop).\n"
        f"'{program} --help' lists every field of that config with its value;\n"
        "--print-config prints the config as it would be, as JSON; --dry-run opens the data, compiles, says what a\n"
        "run would take, and trains nothing; --profile N traces N updates for xprof.\n"
        "FILE is Python and is executed: run only files that you trust.\n\n"
        "Exit codes: 0 done, 64 usage or config, 65 data or every checkpoint bad, 70 not finite, 73 run folder busy,\n"
        "74 storage failed, 75 stopped and saved, 76 another process ended, 78 not the config of the checkpoint."
    )
    parts = [argument.partition("=") for argument in argv]  # `--profile 3` or `--profile=3`
    arguments = [f"{SHORT.get(name, name)}{equals}{value}" for name, equals, value in parts]
    show = "--print-config" in arguments
    arguments = [argument for argument in arguments if argument != "--print-config"]
    path = _take_config(arguments)
    if path is None:
        if "--help" in arguments or "-h" in arguments:
            print(usage)
            raise SystemExit(0)
        raise ConfigError("--config is missing.", "", *usage.split("\n"))
    resumes = [word for word in arguments if word in ("--run.resume", "--run.no-resume")][-1:] == ["--run.resume"]
    with of_a_run_of_before() if resumes else contextlib.nullcontext():  # else RunFolder asks, where there is none
        config = _override(_read_file(path), arguments, program)
    if trains and not _goes_on(config):  # a run of before may have been begun with such a flag, and is compared by it
        _require_read(config, arguments)
    if show:
        print(json.dumps(flatten(config), indent=1))
        raise SystemExit(0)
    return config, path


def load_for_data(
    kind: type[Config],
    name: str,
    path: Path,
    fields: Sequence[str] = (),
    *,
    allow_links_to: Sequence[str] = (),
    program: str,
) -> Config:
    """Reads a config as training does, for a dataset that is only looked at.

    Args:
      kind: Class of the package that reads the dataset.
      name: A file, or a shipped config's name.
      path: Of the dataset, in place of data.path.
      fields: `--field value ...`, as of training.
      allow_links_to: Folders outside of the dataset that links in it may lead to.
      program: As in `load`.

    Raises:
      ConfigError: There is no such config, it is another package's, or a field is wrong.
    """
    more = ["--data.allow-links-to", *allow_links_to] if allow_links_to else []
    words = ["--config", str(find(name)), "--data.path", str(path), *more, *fields]
    config, _ = load(words, program=program, trains=False)
    if not isinstance(config, kind):
        raise ConfigError(f"--config is {name}, a {type(config).__name__}; expected a {kind.__name__} for these data")
    return config


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


def get_config(name: str) -> ExperimentConfig:
    """Returns a shipped config, for a config file that changes some of it: in a checkout and in an installed wheel.

    Args:
      name: As `chunkwise list configs` has it, such as qchunk/debug; or a file.

    Raises:
      ConfigError: There is none, with the nearest name; or the file is broken.
    """
    return _read_file(find(name), module_name="chunkwise_config_begun_with")


def _read_file(path: Path, module_name: str = "chunkwise_config_file") -> ExperimentConfig:
    """The config that `get_config()` of a file returns."""
    if not path.is_file():
        found = sorted(str(p) for p in Path("configs").glob("*/*.py") if p.name != "__init__.py")
        near = difflib.get_close_matches(str(path), found, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(found)}" if found else ""
        raise ConfigError(f"config file {path} does not exist{hint}")
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"config file {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for what annotations name
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except Exception as error:  # whatever a user's file raises is the user's to mend: name file, line and reason
        where = f"config file {path}{_line_in(path, error)}"
        raise ConfigError(f"{where}: {type(error).__name__}: {error}{_suggestion(error, module)}") from error
    if not isinstance(config, ExperimentConfig):
        raise ConfigError(f"config file {path}: get_config() returned {type(config).__name__}, expected a config")
    return with_fitting_values(config, f"config file {path}")


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
    fields = [field for one in classes for field in dataclasses.fields(one)]
    if now := {field.metadata.get("renamed from"): field.name for field in fields}.get(wrong[1]):
        return f"; it is called '{now}' now"
    names = sorted({field.name for field in fields})
    near = difflib.get_close_matches(wrong[1], names, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; the fields of this file's configs are {', '.join(names)}"


def _override(config: ExperimentConfig, arguments: list[str], program: str) -> ExperimentConfig:
    """`config` with the fields that `arguments` name replaced."""
    import tyro

    if not arguments:
        return config
    _require_names_of_today(type(config), arguments)
    _require_each_once(config, arguments)
    kind, default, arguments = with_parts(config, arguments, missing=tyro.MISSING)
    found = parsed(
        kind,
        default=default,
        args=arguments,
        prog=program,
        description=_description(config),
        config=(tyro.conf.AvoidSubcommands,),
    )
    try:
        config = restored(found)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return with_fitting_values(config, "command line")


def _require_names_of_today(kind: type, arguments: Sequence[str]) -> None:
    """Raises ConfigError for a flag by the name that an earlier version had for its field, with the one of today."""
    renamed = {name.replace("_", "-"): now.replace("_", "-") for name, now in resume_rules(kind).renamed.items()}
    for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
        if now := renamed.get(flag.removeprefix("--").replace("_", "-")):
            raise ConfigError(f"{flag} is called --{now} now; write that")


def _require_each_once(config: ExperimentConfig, arguments: Sequence[str]) -> None:
    """Raises ConfigError for a name that the pairs after a flag have twice, of which the last alone would count."""
    flags = [k for k, argument in enumerate(arguments) if argument.startswith("--")]
    for start, end in itertools.pairwise([*flags, len(arguments)]):
        value: Any = config
        for part in arguments[start].removeprefix("--").replace("-", "_").split("."):
            value = getattr(value, part, None)
        names = arguments[start + 1 : end : 2]
        if isinstance(value, dict) and (twice := [name for name, count in Counter(names).items() if count > 1]):
            raise ConfigError(f"{arguments[start]} names {', '.join(twice)} more than once; expected each name once")


def _goes_on(config: ExperimentConfig) -> bool:
    """Whether a run goes on; one that is told to is a new one where its folder holds none, as a scheduler's first.

    What lies there is what chunkwise/train/run_dir.py asks for: a run that failed before its first update is none.
    """
    run = config.run
    if not run.resume or run.dir is None:
        return False
    folder = os.path.expanduser(run.dir)
    there = {name for name in ("metrics.jsonl", "done.json", "checkpoints", "rollouts") if _holds(folder, name)}
    return _holds(folder, CONFIG) and bool(there)


def _holds(folder: str, name: str) -> bool:
    """Whether a folder has a file or folder of this name that is not empty."""
    path = os.path.join(folder, name)
    try:
        return bool(os.listdir(path)) if os.path.isdir(path) else os.path.getsize(path) > 0
    except (OSError, ValueError):
        return False


def _require_read(config: ExperimentConfig, arguments: Sequence[str]) -> None:
    """Raises ConfigError if a flag sets what this config gives no effect."""
    unread = config.unread
    for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
        parts, dot, field = flag.removeprefix("--").rpartition(".")
        if reader := unread.get(f"{parts}{dot}{field.removeprefix('no-')}".replace("-", "_")):
            raise ConfigError(f"{flag} has no effect here; leave it out, or set {reader}, which reads it")


def parsed(kind: Any, **settings: Any) -> Any:
    """Returns what tyro.cli does.

    Raises:
      ConfigError: With what tyro has to say about the arguments, and the class about a value.
      SystemExit: With code 0 after `--help`.
    """
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, **settings)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(*_plain(said.getvalue()), *_switches(settings.get("args") or ())) from None


def _switches(arguments: Sequence[str]) -> list[str]:
    """Says of each `--part.field True` or `False`, which tyro takes for a flag and a word too much, how it is set."""
    pairs = [(*argument.partition("=")[::2], argument) for argument in arguments if argument.startswith("--")]
    pairs += [(name, value, f"{name} {value}") for name, value in itertools.pairwise(arguments) if name[:2] == "--"]
    said = []
    for name, value, given in pairs:
        if value.lower() in ("true", "false"):
            parts, _, field = name.removeprefix("--").rpartition(".")
            plain = field.removeprefix("no-")
            negated = (value.lower() == "false") != (plain != field)
            right = f"--{parts}{'.' if parts else ''}{'no-' if negated else ''}{plain}"
            said.append(f"{given}: if that is to be true or false, write {right}")
    return said


def _plain(box: str) -> list[str]:
    """What tyro says in a box, as lines without it, and without the colours that it has in a terminal."""
    rows = [line.strip() for line in _COLOUR.sub("", box).splitlines()]
    inside = [row.strip("│").rstrip() for row in rows if row.startswith("│")]
    said = [row[1:] for row in inside if row.strip(" ─") and "full helptext" not in row and not row.endswith(" --help")]
    return said or rows or ["the command line was refused"]


def _description(config: ExperimentConfig) -> str:
    """What stands above the fields in --help."""
    words = {there: [name for name, is_there in switchable(config) if is_there is there] for there in (True, False)}
    text = f"Every field with its value; '--field value' replaces it. {_summary(config)}"
    if words[False]:
        text += f" Parts that are None here: {', '.join(words[False])}; a flag for a field of one switches it on, and "
        text += "--help after that lists its fields."
    if words[True]:
        text += f" '--part None' switches off: {', '.join(words[True])}."
    return text


def _summary(config: ExperimentConfig) -> str:
    """First line of the config class's docstring."""
    return (type(config).__doc__ or "").split("\n")[0]
