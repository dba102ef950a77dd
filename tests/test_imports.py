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


@pytest.mark.parametrize("path", sources("chunkwise"), ids=str)
def test_the_spine_imports_third_parties_only(path: Path):
    assert tops(imported(path)) & OURS <= {"chunkwise"}


@pytest.mark.slow
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
    load = "launch.config_lib.load(['--config', 'configs/qchunk/debug.py'])"
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
