"""`chunkwise VERB ...`, also `python -m chunkwise`: the verbs, and which program each one is.

A verb is a module that is run as `python -m` would run it, imported only then. Where several packages have the verb, a
word says which, `chunkwise inspect driving DIR`, or else what the argument is.
"""

import dataclasses
import difflib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from chunkwise import __version__
from chunkwise.cli import kinds
from chunkwise.config.packages import PACKAGES
from chunkwise.errors import UNREAD, ConfigError, RunError

EXIT_CODES = (
    "exit codes: 0 done, 64 usage or config, 65 data or checkpoints bad, 70 not finite, 73 folder busy, 74 storage "
    "failed,\n75 stopped and saved, 76 another process ended, 78 not the config or dataset of the checkpoint, "
    "141 nobody reads what it prints"
)

OPTIONS = (
    "",
    "qchunk and openpi_ript:",
    "  --episodes N    --max-steps N (qchunk)    --video N    --out FILE",
    "  --how open_loop|...  --execute N  --delay D    how chunks are executed",
    "driving:",
    "  --closed-loop    drive in the town, with --episodes N --seed S --workers N --video N --json",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """One of them."""

    summary: str
    example: str
    modules: Mapping[str, str]
    """By package; "" where all have the same."""
    told_by: Literal["data", "run", "word"] = "word"
    """What says which package is meant, where no word does: the dataset or run that the first path names."""
    first: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Words that a package's program takes before the user's."""
    options: tuple[str, ...] = ()
    """Those that people look for, a line each with the packages that have them."""
    of_json: str = ""
    """Module where the first path is a .json file; empty: none."""
    of_env: str = ""
    """Module where --env comes first; empty: none."""


VERBS: dict[str, Verb] = {
    "train": Verb(
        summary="train what a config describes",
        example="chunkwise train qchunk/debug --run.dir runs/first",
        modules={"": "chunkwise.cli.train"},
    ),
    "compile": Verb(
        summary="compile a run's programs for TPUs or GPUs that are not here: memory, traffic, a bound on the time",
        example="chunkwise compile openpi_ript/pi0_full --topology v5p:2x2x2",
        modules={"": "chunkwise.train.compile"},
    ),
    "list": Verb(
        summary="configs and studies with their first line, verbs, environments (envs), readers",
        example="chunkwise list configs",
        modules={"": "chunkwise.cli.listing"},
    ),
    "doctor": Verb(
        summary="check devices, rendering, codecs, simulators, a folder for runs; say how to add what is missing",
        example="chunkwise doctor runs",
        modules={"": "chunkwise.cli.doctor"},
    ),
    "serve": Verb(
        summary="serve a trained policy over openpi's websocket protocol",
        example="chunkwise serve runs/first --port 8000",
        modules={"": "chunkwise.policies.serve"},
    ),
    "export": Verb(
        summary="write a policy as StableHLO, weights and a spec that run without this project",
        example="chunkwise export runs/first exported",
        modules={"": "chunkwise.policies.export"},
    ),
    "evaluate": Verb(
        summary="evaluate the newest checkpoint of a run",
        example="chunkwise evaluate runs/qchunk-... --episodes 100",
        modules={"qchunk": "qchunk.evaluate", "openpi_ript": "openpi_ript.evaluate", "driving": "driving.evaluate"},
        told_by="run",
        first={"openpi_ript": ("run",), "driving": ("--again",)},
        options=OPTIONS,
    ),
    "report": Verb(
        summary="write a page of a run: results, curves, videos, settings, time",
        example="chunkwise report runs/first --watch",
        modules={"": "chunkwise.reports.report"},
    ),
    "compare": Verb(
        summary="compare runs, as a table and a page (--html FILE), or two evaluations (A.json B.json)",
        example="chunkwise compare runs/a runs/b --html ab.html",
        modules={"": "chunkwise.reports.compare"},
        of_json="chunkwise.envs.compare",
    ),
    "study": Verb(
        summary="train a config over a grid and seeds, and compare the runs",
        example="chunkwise study quickstart --out studies/quickstart --workers 2",
        modules={"": "chunkwise.reports.study"},
    ),
    "inspect": Verb(
        summary="summarise a dataset or an environment (--env NAME), and list its faults",
        example="chunkwise inspect path/to/episodes",
        of_env="chunkwise.envs.inspect",
        modules={"qchunk": "qchunk.inspect", "openpi_ript": "openpi_ript.inspect", "driving": "driving.validate"},
        told_by="data",
    ),
    "view": Verb(
        summary="show a dataset, or what a run did, as a page: images, plots, problems, chunks of training and policy",
        example="chunkwise view path/to/episodes",
        modules={"qchunk": "qchunk.view", "openpi_ript": "openpi_ript.view", "driving": "driving.view"},
        told_by="data",
    ),
    "record": Verb(
        summary="record episodes in a simulator",
        example="chunkwise record qchunk --help",
        modules={"qchunk": "qchunk.record", "driving": "driving.record"},
    ),
    "convert": Verb(
        summary="convert a public dataset to a package's own format, or rollouts to LeRobot's",
        example="chunkwise convert qchunk demos.hdf5 datasets/demos",
        modules={"qchunk": "qchunk.convert", "openpi_ript": "openpi_ript.convert", "driving": "driving.convert"},
        told_by="data",
    ),
    "pack": Verb(
        summary="pack a dataset into a few files that are read fast",
        example="chunkwise pack path/to/lerobot path/to/pack",
        modules={"openpi_ript": "openpi_ript.data.pack", "driving": "driving.data.pack"},
        told_by="data",
    ),
    "checkpoint": Verb(
        summary="ls, verify or prune: the checkpoints of a run",
        example="chunkwise checkpoint verify runs/first",
        modules={"": "chunkwise.checkpoint"},
    ),
}


def usage() -> str:
    """Returns what `chunkwise --help` prints."""
    lines = [f"  {name:<11}{verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: chunkwise VERB ... [--help]     chunkwise --version",
            "",
            *lines,
            "",
            "`chunkwise VERB --help` has the options and an example.",
            EXIT_CODES,
        ]
    )


def resolve(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the module that a command line names, and the words that it takes.

    Raises:
      ConfigError: There is no such verb, or it cannot be told which package is meant.
      DataError: The path that would tell is missing.
    """
    name, *rest = words
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(VERBS)}"
        raise ConfigError(f"chunkwise has no verb {name}; {hint}")
    verb = VERBS[name]
    path = _first_path(rest)
    if verb.of_json and path is not None and path.suffix == ".json":
        return verb.of_json, rest
    if "" in verb.modules:
        return verb.modules[""], rest
    if verb.of_env and rest and rest[0].partition("=")[0] == "--env":
        return verb.of_env, rest
    package, rest = _package(name, verb, rest)
    return verb.modules[package], [*verb.first.get(package, ()), *rest]


def _package(name: str, verb: Verb, rest: list[str]) -> tuple[str, list[str]]:
    """The package that is meant, and the words without the one that said so."""
    if rest and rest[0] in PACKAGES:
        package, rest = rest[0], rest[1:]
    elif verb.told_by == "word" or not (path := _first_path(rest)):
        choice = "|".join(verb.modules)
        raise ConfigError(f"chunkwise {name}: expected {choice} first, such as: {verb.example}")
    elif verb.told_by == "run":
        package = kinds.package_of_run(path)
    elif (told := _package_of_config(rest)) in PACKAGES:
        package = told
    else:
        package = kinds.package_of_data(path, name, verb.modules)
    if package not in verb.modules:
        raise ConfigError(f"chunkwise {name}: there is none for {package}; there is for {', '.join(verb.modules)}")
    return package, rest


def _package_of_config(words: Sequence[str]) -> str:
    """The word before the slash of --config, such as qchunk of qchunk/own_data; empty without one."""
    return "".join(words[k + 1].partition("/")[0] for k, word in enumerate(words[:-1]) if word == "--config")


def _first_path(words: Sequence[str]) -> Path | None:
    """The first word that is neither an option nor right behind one, whose value it may be.

    Where there is none, as of `--json RUN`, the first behind one that names what is there.
    """
    before = ["", *words]
    plain = [(last, word) for last, word in zip(before, words, strict=False) if word[:1] != "-" and last != "--config"]
    apart = [word for last, word in plain if last[:1] != "-" or "=" in last]
    behind = [word for _, word in plain]
    return next((Path(word) for word in (*apart, *filter(os.path.exists, behind), *behind)), None)


def _help(name: str, rest: Sequence[str]) -> str | None:
    """What `chunkwise VERB --help` prints where no program is meant yet; None where one answers for itself."""
    verb = VERBS.get(name)
    asked = bool(rest) and rest[0] in ("-h", "--help")
    if verb is None or "" in verb.modules or not asked:
        return None
    told = {"data": "Without PACKAGE, the dataset decides.", "run": "Without PACKAGE, the run decides.", "word": ""}
    lines = [
        f"usage: chunkwise {name} {'PACKAGE' if verb.told_by == 'word' else '[PACKAGE]'} ...",
        "",
        f"{verb.summary}",
        "",
    ]
    lines += [f"  {f'chunkwise {name} {package}':<32}python -m {module}" for package, module in verb.modules.items()]
    lines += [line for line in (told[verb.told_by],) if line]
    lines += [*verb.options, "", f"example: {verb.example}"]
    return "\n".join([*lines, f"`chunkwise {name} PACKAGE --help` lists the options.", EXIT_CODES])


def _tell(text: str) -> int:
    """Prints a text; returns the exit code, as of processes.report where nobody reads it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's own end fails at it again
        return UNREAD
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Console script `chunkwise`; returns the exit code, or leaves with that of the verb's program."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        if words:
            return _tell(usage())
        print(usage(), file=sys.stderr)
        return ConfigError.exit_code
    if words[0] == "--version":
        return _tell(f"chunkwise {__version__}")
    if text := _help(words[0], words[1:]):
        return _tell(text)
    try:
        module, rest = resolve(words)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    sys.argv = [f"chunkwise {words[0]}", *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0
