"""What README and the pages of docs name exists: links and their headings, flags, verbs, modules and paths."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from chunkwise.cli.verbs import VERBS
from chunkwise.config.packages import PACKAGES, config_class
from chunkwise.config.saved import members
from driving.config import RecordConfig as DrivesConfig
from qchunk.config import RecordConfig
from tests.page_commands import PAGES, ROOT

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
    "--xla_gpu_exclude_nondeterministic_ops": "XLA's",
}
"""Flags that the pages name and no program here spells out, and whose they are."""
IN_THE_WHEEL = "README.md: chunkwise/configs"


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
