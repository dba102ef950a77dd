"""What a wheel installs, that it is built alike twice, and that it works from another folder."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
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


SERVED = """
import sys, chunkwise
from openpi_client.websocket_client_policy import WebsocketClientPolicy
policy = chunkwise.load_policy(sys.argv[1])
print(WebsocketClientPolicy("127.0.0.1", int(sys.argv[2])).infer(policy.example())["actions"].shape)
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_user_s_way_in_a_fresh_environment(wheel: Path, tmp_path: Path):
    """From an empty folder, with `chunkwise` of the wheel alone; the other packages are this environment's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env/bin/python")
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", purelib], check=True, capture_output=True, text=True).stdout.strip()
    (Path(site) / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = ["-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    work = tmp_path / "work"
    work.mkdir()
    environment = os.environ | {"PATH": f"{tmp_path / 'env/bin'}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)

    def run(*words: str) -> str:
        found = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, f"{words}: {found.stdout}{found.stderr}"
        return found.stdout

    assert Path(run("python", "-c", "import chunkwise; print(chunkwise.__file__)").strip()).is_relative_to(site)
    assert " 0 bad" in run("chunkwise", "doctor")
    assert "usage" in run("chunkwise", "view", "--help")
    few = "--train.steps 10 --train.log-every 5 --train.updates-per-call 5 --train.eval-every 0 --checkpoint.every 5"
    for package in ("qchunk", "openpi_ript", "driving"):
        folder = f"runs/{package}"
        assert "done step=10" in run("chunkwise", "train", f"{package}/debug", "--run.dir", folder, *few.split())
        if package != "openpi_ript":  # whose debug config has no environment
            run("chunkwise", "evaluate", folder, *(("--episodes", "1") if package == "qchunk" else ()))
        run("chunkwise", "report", folder)
        assert "chunkwise" in (work / folder / "report.html").read_text()
        run("chunkwise", "export", folder, f"exported_{package}")
        run("chunkwise", "view", package, "--help")
        assert served(folder, run, work, environment).startswith("(")
    run("chunkwise", "compare", "runs/qchunk", "runs/driving", "--html", "both.html")
    assert (work / "both.html").exists()


def served(run_folder: str, run: Callable[..., str], work: Path, environment: dict[str, str]) -> str:
    """Serves a run, asks it once as openpi's client does; returns the shape of what it said."""
    command = ["chunkwise", "serve", run_folder, "--port", "0", "--batch-sizes", "1"]
    with subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "ws://" in line)
            port = re.search(r":(\d+)", address.partition("ws://")[2])
            assert port is not None
            return run("python", "-c", SERVED, run_folder, port[1])
        finally:
            server.terminate()
