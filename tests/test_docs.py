"""What README and the pages of docs name exists: links and their headings, flags, commands, configs and paths."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkwise.cli.verbs import VERBS
from chunkwise.config import names
from chunkwise.config.load import load
from chunkwise.config.packages import PACKAGES, config_class
from chunkwise.config.saved import members
from driving.config import RecordConfig as DrivesConfig
from qchunk.config import RecordConfig

ROOT = Path(__file__).parent.parent
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
FOREIGN = {
    "--account": "sbatch's",
    "--address": "ray's",
    "--build-arg": "docker's",
    "--export": "sbatch's",
    "--generate": "ray's",
    "--head": "ray's",
    "--include": "debootstrap's",
    "--isolation": "buildah's",
    "--logdir": "xprof's",
    "--no-deps": "pip's",
    "--rm": "docker's",
    "--signal": "sbatch's",
    "--sparse": "that of Q-chunking's official code",
    "--tag": "docker's",
    "--to": "jupytext's",
    "--torch": "one of benchmarks/__main__.py, which makes them of the peers' names",
    "--variant": "debootstrap's",
    "--xla_cpu_multi_thread_eigen": "XLA's",
    "--xla_dump_to": "XLA's",
}
"""Flags that the pages name and no program here spells out, and whose they are."""
IN_THE_WHEEL = "README.md: chunkwise/configs"


def commands() -> list[tuple[str, list[str]]]:
    """Returns page and words of each command that a page gives on lines of its own; `\\` joins lines, `#` ends them.

    They are indented, or stand in a cell of a notebook that bash executes.
    """
    found = []
    for name, page in PAGES.items():
        joined = re.sub(r"\\\n\s*", " ", page)
        cells = re.findall(r"^%%bash.*\n((?:(?!```).*\n)*)", joined, re.MULTILINE)
        lines = [*joined.splitlines(), *(f"    {line}" for cell in cells for line in cell.splitlines())]
        for line in lines:
            words = re.split(r"\s#|[|&>]", line)[0].split()
            if line.startswith("    ") and words and words[0] in ("chunkwise", "python", ".venv/bin/python"):
                found.append((name, words))
    return found


def anchors(page: str) -> set[str]:
    """Returns GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def fields(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of each field of a config's class, and of the parts that may be in it."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield prefix + field.name
        for member in members(hints[field.name]):
            if dataclasses.is_dataclass(member):
                yield from fields(member, f"{prefix}{field.name}.")


def options() -> set[str]:
    """Returns the flags that argparse's programs of this repository define, by the strings of their source."""
    known = {"--help", "--field"}
    for folder in ("chunkwise", *PACKAGES, "benchmarks", "tests", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            known |= set(re.findall(r'"(--[a-z][\w.-]*)"', path.read_text())) if path.name != "test_docs.py" else set()
    return known


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            found = (ROOT / name).parent / path if path else ROOT / name
            assert found.exists(), f"{name}: {target}"
            assert not anchor or anchor in anchors(found.read_text()), f"{name}: no heading {target}"


def test_flags_exist():
    settings = {name for package in PACKAGES for name in fields(config_class(package))}
    settings |= set(fields(RecordConfig)) | set(fields(DrivesConfig))
    known = {option.replace("-", "_") for option in options()} | {f"__{name}" for name in settings}
    unknown = []
    for name, page in PAGES.items():
        for flag in re.findall(r"(?<![\w/-])--[a-z][\w.-]*\w", page):
            plain = flag.replace("-", "_")
            if not {plain, re.sub(r"(^__|\.)no_", r"\1", plain)} & known and flag not in FOREIGN:
                unknown.append(f"{name}: {flag}")
    assert unknown == []


def test_verbs_modules_and_paths_exist():
    unknown = []
    folders = "|".join(("chunkwise", *PACKAGES, "configs", "docs", "tests", "benchmarks", "examples"))
    for name, page in PAGES.items():
        for verb in re.findall(r"(?:`|-m |    )chunkwise ([a-z]+)\b", page):
            unknown += [f"{name}: chunkwise {verb}"] if verb not in VERBS else []
        for path in re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*[\w-])", page):
            known = (ROOT / path, ROOT / "configs" / path, ROOT / "configs" / f"{path}.py")
            unknown += [f"{name}: {path}"] if not any(place.exists() for place in known) else []
        for module in re.findall(rf"-m ((?:{folders})[\w.]*\w)", page):
            path = ROOT / module.replace(".", "/")
            found = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
            unknown += [] if found else [f"{name}: -m {module}"]
    assert [line for line in unknown if line != IN_THE_WHEEL] == []


def is_training(words: list[str]) -> bool:
    return "launch.py" in words[:2] or words[:2] == ["chunkwise", "train"] or words[1:4] == ["-m", "chunkwise", "train"]


def is_written(name: str, words: list[str]) -> bool:
    """Whether a page's command takes a config that a cell of the page writes first."""
    return any(f"%%writefile {word}\n" in PAGES[name] for word in words)


TRAININGS = [
    (name, words)
    for name, words in commands()
    if is_training(words) and "..." not in words and not is_written(name, words)
]


@pytest.mark.parametrize(("name", "words"), TRAININGS, ids=str)
def test_the_trainings_that_a_page_gives_have_a_config(name: str, words: list[str]):
    arguments = words[words.index("train") + 1 :] if "train" in words else words[words.index("launch.py") + 1 :]
    if "--config" not in arguments:
        arguments = ["--config", str(names.find(arguments[0])), *arguments[1:]]
    config, _ = load(arguments)
    assert config


def test_commands_are_found():
    assert len(TRAININGS) > 20
