"""What a wheel installs, that it is built alike twice, and that it works from another folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("chunkwise", "qchunk", "openpi_ript", "driving")
SHIPPED = (*PACKAGES, "configs", "pyproject.toml", "setup.py", "README.md", "LICENSE")
EPOCH = "1700000000"


def build(source: Path, out: Path) -> Path:
    """Builds a wheel of a copy: what a build leaves in its folder must not reach the checkout, nor the next wheel."""
    source.mkdir(parents=True)
    listing = ["git", "ls-files", "-co", "--exclude-standard", *SHIPPED]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), "."]
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run([sys.executable, *command], cwd=source, env=environment, check=True, capture_output=True)
    (found,) = out.glob("chunkwise-*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build(folder / "source", folder / "out")


def test_it_installs_four_packages_and_nothing_else(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    ours = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    expected = {path.relative_to(ROOT).as_posix() for path in ours}
    expected |= {f"chunkwise/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == expected
    assert {f"chunkwise/view/{name}" for name in ("view.html", "view.js", "view.css", "chunk.js")} <= set(names)
    assert {"driving/data/episode.schema.json", "driving/converters/waymo_cameras.json"} <= set(names)
    assert (
        "chunkwise = chunkwise.cli.verbs:main"
        in zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    )


def test_it_is_built_alike_twice(wheel: Path, tmp_path: Path):
    assert build(tmp_path / "elsewhere/source", tmp_path / "out").read_bytes() == wheel.read_bytes()


@pytest.mark.long
def test_it_works_from_a_folder_with_names_of_its_own(wheel: Path, tmp_path: Path):
    """Installed apart from the checkout; the working folder has a `core`, `configs` and `launch` of another project."""
    site, work = tmp_path / "site", tmp_path / "work"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    for name in ("core", "configs"):
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text("raise ImportError('not ours')\n")
    (work / "launch.py").write_text("raise ImportError('not ours')\n")
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*words: str) -> str:
        found = subprocess.run([sys.executable, *words], cwd=work, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    assert Path(run("-c", "import chunkwise; print(chunkwise.__file__)").strip()).is_relative_to(site)
    script = str(site / "bin/chunkwise")
    assert run(script, "--version").startswith("chunkwise ")
    assert "qchunk/cube_single" in run(script, "list", "configs")
    short = ["--train.steps", "4", "--record.processes", "1", "--record.episodes", "2", "--eval.env", "None"]
    said = run(script, "train", "qchunk/debug", "--run.dir", "first", "--checkpoint.every", "4", *short)
    assert "done step=4 digest=" in said
    loaded = "import chunkwise; p = chunkwise.load_policy('first'); print(p.infer(p.example())['actions'].shape)"
    assert run("-c", loaded).strip().endswith("(5, 5)")
    assert '"state"' in run(script, "serve", "first", "--spec")
