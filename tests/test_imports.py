"""The arrows of the architecture, read off the syntax trees: who may import whom, and what is kept small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("qchunk", "openpi_ript", "driving") if (ROOT / name).is_dir()]
OURS = {"chunkwise", "configs", "qchunk", "openpi_ript", "driving", "launch", "benchmarks", "tests"}
DATA_CODE = [
    "chunkwise/data/episodes.py",
    "chunkwise/data/sampling.py",
    "chunkwise/data/norm_stats.py",
    "chunkwise/data/lerobot/meta.py",
    "chunkwise/data/images.py",
]

GROUND = {"arrays", "errors", "files", "printable", "state"}
"""Modules and rooms of chunkwise that every room may stand on."""
ARROWS: dict[str, set[str]] = {
    "": {"policies", "config", "reports"},
    "__main__": {"cli"},
    "config": set(),
    "distributed": {"config"},
    "cli": {"config", "distributed"},
    "checkpoint": {"config", "distributed"},
    "data": {"config", "distributed"},
    "models": {"config", "distributed"},
    "train": {"config", "distributed", "checkpoint", "cli"},
    "envs": {"config", "distributed", "checkpoint", "cli", "data", "models", "train", "reports", "policies"},
    "policies": {"config", "distributed", "checkpoint", "cli", "data", "models", "train"},
    "reports": {"config", "distributed", "checkpoint", "cli", "data", "models", "train"},
    "view": {"config", "cli", "checkpoint", "data", "policies"},
}
"""Rooms of chunkwise, and which of the others each may import."""
AGAINST_THE_ARROWS = {
    ("chunkwise.checkpoint.tool", "cli"): "a command, which lies beside what it shows",
    ("chunkwise.checkpoint.__main__", "cli"): "starts that command",
    ("chunkwise.data.convert", "cli"): "the command of every converter",
    ("chunkwise.data.packing", "cli"): "the command of every pack",
}
"""Module and room that it imports: why."""


def sources(*folders: str) -> list[Path]:
    """Python files below folders, tests left out."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names of the modules that a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(names: set[str]) -> set[str]:
    """Top-level packages of dotted names."""
    return {name.split(".")[0] for name in names}


def module_name(path: Path, root: Path = ROOT) -> str:
    """Dotted name of a file; of an __init__.py that of its folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(paths: list[Path], root: Path = ROOT) -> dict[str, set[str]]:
    """Modules that each file imports of these files, wherever in it.

    `from a import b` is the module a.b where that is a file, else a. The folders above an imported module count only
    where they are named: Python runs their __init__.py, which would else close a circle with all that it lists.
    """
    files = {module_name(path, root): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        graph[name] = found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
                    above = package[: len(package) - node.level + 1]
                    base = ".".join([*above, *filter(None, [base])])
                whole = {f"{base}.{alias.name}" for alias in node.names}
                found |= whole & set(files) | ({base} if whole - set(files) else set())
        graph[name] = found & set(files) - {name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A shortest circle through the first module that lies in one, with that module at its end too; empty if none."""
    for start in sorted(graph):
        ways, seen = [[start]], {start}
        for way in ways:  # which grows while it is gone through: breadth first
            for name in sorted(graph[way[-1]]):
                if name == start:
                    return [*way, name]
                if name not in seen:
                    seen.add(name)
                    ways.append([*way, name])
    return []


def test_no_file_imports_in_a_circle():
    graph = import_graph(sources("chunkwise", *PACKAGES))
    assert len(graph) > 100
    assert not circle(graph), " -> ".join(circle(graph))


def test_circles_are_found_wherever_the_imports_stand(tmp_path: Path):
    """Of three files: a function imports the second, a relative import the third, an `if` the first again."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p/__init__.py").write_text("from p.a import f\n")
    files = {
        "a": "def f():\n    from p import b\n    return b\n",
        "b": "from . import c\nfrom p.d import x\n",
        "c": "if True:\n    import p.a\n",
        "d": "import os\nx = 1\n",
    }
    for name, text in files.items():
        (tmp_path / f"p/{name}.py").write_text(text)
    paths = sorted(tmp_path.rglob("*.py"))
    graph = import_graph(paths, tmp_path)
    assert graph == {"p": {"p.a"}, "p.a": {"p.b"}, "p.b": {"p.c", "p.d"}, "p.c": {"p.a"}, "p.d": set()}
    assert circle(graph) == ["p.a", "p.b", "p.c", "p.a"]
    (tmp_path / "p/c.py").write_text("import p.d\n")
    assert not circle(import_graph(paths, tmp_path))


def test_the_rooms_of_chunkwise_import_along_the_arrows():
    graph = import_graph(sources("chunkwise"))
    against = set()
    for name, others in graph.items():
        room = name.split(".")[1] if "." in name else ""
        assert room in {"", *ARROWS, *GROUND}, f"{name}: a room that ARROWS does not know"
        allowed = GROUND | ARROWS.get(room, set()) | {room, ""}
        against |= {(name, to) for to in (f"{other}.".split(".")[1] for other in others) if to not in allowed}
    assert against == set(AGAINST_THE_ARROWS), "an import against the arrows, or an exception that is none any more"


@pytest.mark.parametrize("path", sources("chunkwise"), ids=str)
def test_the_spine_imports_third_parties_only(path: Path):
    assert tops(imported(path)) & OURS <= {"chunkwise"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_do_not_import_one_another(package: str):
    others = set(PACKAGES) - {package} | {"configs", "launch", "tests", "benchmarks"}
    for path in sources(package):
        assert not tops(imported(path)) & others, path


@pytest.mark.parametrize("path", sources("configs"), ids=str)
def test_configs_import_config_modules_only(path: Path):
    allowed = {"chunkwise.config"} | {f"{package}.config" for package in PACKAGES}
    ours = {name for name in imported(path) if name.split(".")[0] in OURS}
    assert {".".join(name.split(".")[:2]) for name in ours} <= allowed
    assert len(path.read_text().splitlines()) <= 60


def test_data_code_does_not_import_jax():
    files = [ROOT / name for name in DATA_CODE if (ROOT / name).exists()]
    for package in PACKAGES:
        files += [path for path in sources(package) if "sources" in path.parts or path.name == "data.py"]
    for path in files:
        assert not tops(imported(path)) & {"jax", "flax", "optax", "orbax"}, path


def test_the_way_to_help_imports_no_jax():
    load = "launch.load(['--config', 'configs/qchunk/debug.py'])"
    code = f"import sys, launch; {load}; print('jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("path", sources("chunkwise", *PACKAGES, "configs", "tests", "benchmarks"), ids=str)
def test_files_stay_small_and_named(path: Path):
    assert len(path.read_text().splitlines()) <= 500
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


def test_linen_only_where_modules_are():
    for path in sources("chunkwise", *PACKAGES):
        if any(name.startswith("flax.linen") for name in imported(path)):
            assert path.stem in {"networks", "layers", "vision"} or {"model", "models"} & set(path.parts), path


def test_torch_is_nobodys_dependency():
    for path in sources("chunkwise", *PACKAGES):
        assert "torch" not in tops(imported(path)), path
