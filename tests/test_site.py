"""The site's pages, the notebooks' code and what lies around them; `make site` builds it, in .ci/full."""

import ast
import dataclasses
import importlib
import importlib.util
import json
import re
import sys
import tomllib
import typing
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import chunkwise
from chunkwise import errors
from chunkwise.config.load import load
from chunkwise.config.packages import PACKAGES, config_class
from chunkwise.config.saved import members
from openpi_ript.config import OpenpiRiptConfig
from openpi_ript.train import _require_effect
from tests.page_commands import PAGES, ROOT

OURS = ("chunkwise", "qchunk", "openpi_ript", "driving", "configs")
INDEX = "docs/index.md"
TUTORIALS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/tutorials/*.md"))
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|data):: ([\w.]+)$", re.MULTILINE)
DOCUMENTED = {name: page for page, text in PAGES.items() for name in DIRECTIVE.findall(text)}
"""Public names, and the page of each."""


def settings() -> ModuleType:
    """Imports docs/conf.py, which needs no Sphinx to be read."""
    spec = importlib.util.spec_from_file_location("site_settings", ROOT / "docs/conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(page: str) -> list[str]:
    """Returns the pages that the tables of contents of a page name, relative to the repository."""
    pages = []
    for body in re.findall(r"^```{toctree}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL):
        lines = [line for line in body.splitlines() if line and not line.startswith(":")]
        names = [re.sub(r"^.+ <(.+)>$", r"\1", line) for line in lines]
        folder = (ROOT / page).parent
        pages += [(folder / f"{name}.md").resolve().relative_to(ROOT.resolve()).as_posix() for name in names]
    return pages


def found(name: str) -> object:
    """Imports what a dotted name means: an attribute of a module, or a module."""
    module, _, attribute = name.rpartition(".")
    holder = importlib.import_module(module)
    return getattr(holder, attribute) if hasattr(holder, attribute) else importlib.import_module(name)


def imports(code: str) -> set[str]:
    """Returns the dotted names that Python code takes from our packages, from the config modules a module each."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def shown(page: str) -> list[str]:
    """Returns the Python code that a page shows: fenced blocks and cells, without those of bash and without magics."""
    text = PAGES[page]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^```{code-cell} ipython3\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return blocks + [re.sub(r"^%%writefile.*\n", "", cell) for cell in cells if not cell.startswith("%%bash")]


SHOWN = {page: code for page in PAGES if (code := shown(page))}


def test_every_page_is_in_one_table_of_contents():
    pages = [INDEX]
    for page in pages:
        pages += listed(page)
    assert sorted(pages) == sorted(PAGES)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_exists_and_says_what_it_is(name: str):
    thing = found(name)
    assert getattr(thing, "__doc__", None), name


def parts(kind: type) -> set[type]:
    """Returns a config's class and the classes of all its parts."""
    kinds = {kind}
    for hint in typing.get_type_hints(kind).values():
        for member in members(hint):
            kinds |= parts(member) if dataclasses.is_dataclass(member) and isinstance(member, type) else set()
    return kinds


@pytest.mark.parametrize("package", PACKAGES)
def test_every_part_of_a_config_is_on_a_page(package: str):
    documented = {found(name) for name in DOCUMENTED if isinstance(found(name), type)}
    assert {kind.__name__ for kind in parts(config_class(package)) - documented} == set()


@pytest.mark.parametrize("page", SHOWN)
def test_code_that_a_page_shows_takes_what_exists(page: str):
    for code in SHOWN[page]:
        for name in imports(code):
            assert found(name) is not None, name


def test_what_pages_import_is_public():
    taken = {name for blocks in SHOWN.values() for code in blocks for name in imports(code)}
    classes = {name for name in taken if not name.startswith("configs.")}
    # RobotConfigs by name are values, which have no page of their own.
    assert {name for name in classes if name not in DOCUMENTED} <= {"openpi_ript.weights", "openpi_ript.policies.saved"}


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_is_a_notebook_that_can_fail(page: str):
    head = yaml.safe_load(PAGES[page].split("---")[1])
    assert head["jupytext"]["text_representation"]["format_name"] == "myst"
    cells = re.findall(r"^```{code-cell} ipython3\n(%%bash.*)$", PAGES[page], re.MULTILINE)
    assert cells
    assert set(cells) == {"%%bash -e"}, "without -e a command that fails is passed over"
    assert "raises-exception" not in PAGES[page]


@pytest.mark.parametrize("page", TUTORIALS)
def test_configs_that_a_notebook_writes_are_taken(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whole notebooks are executed in .ci/full alone."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    written = re.findall(r"^%%writefile (\S+)\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    for name, text in written:
        (tmp_path / name).write_text(text)
    try:
        for name, text in written:
            if "def get_config" in text:
                config, _ = load(["--config", str(tmp_path / name)])
                if isinstance(config, OpenpiRiptConfig):
                    _require_effect(config)
    finally:
        for name, _ in written:
            sys.modules.pop(Path(name).stem, None)


def test_figures_of_the_summary_stand_on_their_pages():
    rows = re.findall(r"^\| .*\]\(([^)#]+)(?:#[\w-]+)?\) \|$", PAGES["docs/results.md"], re.MULTILINE)
    assert len(rows) >= 10
    for line in PAGES["docs/results.md"].splitlines():
        link = re.search(r"\]\(([^)#]+)(?:#[\w-]+)?\) \|$", line)
        if link is not None:
            page = (ROOT / "docs" / link[1]).read_text()
            for interval in re.findall(r"\(([\d.]+ to [\d.]+)\)", line):
                assert interval in page, f"{link[1]} has no {interval}"


def test_exit_codes_are_those_of_the_classes():
    for code, name in re.findall(r"^\| (\d+) \|.*\[(\w+)\]", PAGES["docs/commands.md"], re.MULTILINE):
        assert getattr(errors, name).exit_code == int(code)


@pytest.mark.parametrize(
    ("written", "made"),
    [
        (["the mean of |x| * y, of x_ and *args"], [r"the mean of \|x\| \* y, of x\_ and \*args"]),
        (["`a | b*` stays, a_b too"], ["``a | b*`` stays, a_b too"]),
        (["one ` alone"], [r"one \` alone"]),
        (["y is", "    r + d * v", "", "with d"], ["y is", "", "::", "", "    r + d * v", "", "", "with d"]),
        (["Args:", "  x: Of |x|."], ["Args:", r"  x: Of \|x\|."]),
        (["- one", "  goes on"], ["- one", "  goes on"]),
        (["Ends with its own line.", "    "], ["Ends with its own line.", "    "]),
    ],
)
def test_docstrings_are_read_as_they_are_written(written: list[str], made: list[str]):
    assert settings().as_restructured_text(written) == made


def test_the_settings_have_all_verbs():
    from chunkwise.cli.verbs import VERBS

    table = settings().myst_substitutions["verbs"]
    assert all(f"| `{name}` |" in table for name in VERBS)
    assert "{{ verbs }}" in PAGES["docs/commands.md"]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == chunkwise.__version__
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert re.search(rf"^## {re.escape(chunkwise.__version__)}\b", PAGES["CHANGELOG.md"], re.MULTILINE)


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ]", one)[0].lower() for one in requirements}


def locked(file: str) -> dict[str, str]:
    """Returns the version of each package of a lock."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / file).read_text(), re.MULTILINE))


def test_every_dependency_is_in_the_notices():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = names_of(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        wanted |= names_of(requirements) if extra not in ("cuda", "cuda12", "tpu") else set()
    notices = {word.lower() for row in PAGES["THIRD_PARTY.md"].splitlines() for word in re.split(r"[|, ]+", row)}
    assert wanted - notices == set()


def test_the_site_s_lock_agrees_with_the_project_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    site, whole = locked("requirements-docs.lock"), locked("requirements.lock")
    assert names_of(project["optional-dependencies"]["docs"]) <= set(site)
    assert {name: (site[name], whole[name]) for name in site.keys() & whole.keys() if site[name] != whole[name]} == {}


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_issue_templates_ask(path: Path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form["contact_links"]
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(
        field["type"] in ("textarea", "input", "dropdown") and field["attributes"]["label"] for field in form["body"]
    )


def test_the_image_names_what_exists():
    lines = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+) \./?$", lines, re.MULTILINE)
    assert [name for line in copied for name in line.split() if name != "." and not list(ROOT.glob(name))] == []
    made = re.findall(r"^RUN make (\w+)(?: (\w+)=\S+)?$", lines, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert made
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target, _ in made)
    assert all(re.search(rf"^{variable} \?=", makefile, re.MULTILINE) for _, variable in made if variable)
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).exists()
    ready = re.search(r"^\$\(ENV\)/\.ready: (.+)$", makefile, re.MULTILINE)
    assert ready is not None
    alone = re.search(r"^COPY (Makefile.*) \./$", lines, re.MULTILINE)
    assert alone is not None
    there = {path.name for name in alone[1].split() for path in ROOT.glob(name)}
    assert set(ready[1].split()) <= there, "make env would find no lock in the image"
