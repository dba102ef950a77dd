"""The verbs: which program each is, what is said of a wrong one, and that nothing heavy is imported on the way."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import chunkwise
from chunkwise.cli import kinds, listing, verbs
from chunkwise.cli.train import with_name
from chunkwise.config import names
from chunkwise.config.packages import PACKAGES, config_class, package_of
from chunkwise.config.saved import flatten
from chunkwise.errors import ConfigError, DataError
from configs.driving import debug as driving_debug
from configs.openpi_ript import debug_ript
from configs.qchunk import debug as qchunk_debug

CONFIGS = {"qchunk": qchunk_debug, "openpi_ript": debug_ript, "driving": driving_debug}
EXAMPLES = {
    "openpi_ript": "meta/info.json",
    "qchunk": "score_5/episode_0.hdf5",
    "driving": "drive_0.json",
}


def make_run(folder: Path, package: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(flatten(CONFIGS[package].get_config())))
    return folder


@pytest.mark.parametrize("name", verbs.VERBS)
def test_every_verb_is_a_program_that_is_there(name: str):
    for package, module in verbs.VERBS[name].modules.items():
        assert package in ("", *PACKAGES)
        found = importlib.util.find_spec(module)
        assert found is not None
        file = Path(found.origin or "")
        file = file.with_name("__main__.py") if file.stem == "__init__" else file
        assert '__name__ == "__main__"' in file.read_text(), f"{module} does nothing when it is run"


@pytest.mark.parametrize("package", EXAMPLES)
def test_inspect_looks_at_what_the_dataset_is(package: str, tmp_path: Path):
    file = tmp_path / EXAMPLES[package]
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    module = verbs.VERBS["inspect"].modules[package]
    assert verbs.resolve(["inspect", "--json", str(tmp_path)]) == (module, ["--json", str(tmp_path)])
    assert verbs.resolve(["inspect", "driving", str(tmp_path)]) == ("driving.validate", [str(tmp_path)])


def test_packs_are_told_by_their_manifest(tmp_path: Path):
    for form, package in (("chunkwise-driving-pack-1", "driving"), ("chunkwise-pack-1", "openpi_ript")):
        (tmp_path / "manifest.json").write_text(json.dumps({"format": form}))
        assert kinds.package_of_data(tmp_path, "inspect") == package
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json"):
        kinds.package_of_data(tmp_path, "inspect")


@pytest.mark.parametrize("folders", range(4))
def test_files_are_looked_for_two_folders_down(folders: int, tmp_path: Path):
    place = tmp_path.joinpath(*"abc"[:folders])
    place.mkdir(parents=True, exist_ok=True)
    (place / "episode.hdf5").touch()
    if folders < 3:
        assert kinds.package_of_data(tmp_path, "inspect") == "qchunk"
    else:
        with pytest.raises(ConfigError, match="cannot tell whose data"):
            kinds.package_of_data(tmp_path, "inspect")


def test_a_config_says_who_reads_a_dataset_that_two_packages_read(tmp_path: Path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").touch()
    assert verbs.resolve(["inspect", str(tmp_path)])[0] == "openpi_ript.inspect"
    words = [str(tmp_path), "--config", "qchunk/own_data", "--data.format", "lerobot"]
    assert verbs.resolve(["inspect", *words]) == ("qchunk.inspect", words)
    assert verbs.resolve(["inspect", str(tmp_path), "--config", "mine.py"])[0] == "openpi_ript.inspect"


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["evaluat", "x"], ConfigError, "chunkwise has no verb evaluat; did you mean evaluate"),
        (["xyz"], ConfigError, "chunkwise has no verb xyz; there are: train, compile, list"),
        (["record"], ConfigError, r"chunkwise record: expected qchunk\|driving first, such as: chunkwise record"),
        (["record", "openpi_ript"], ConfigError, "there is none for openpi_ript; there is for qchunk, driving"),
        (["inspect"], ConfigError, r"expected qchunk\|openpi_ript\|driving first"),
        (["inspect", "EMPTY"], ConfigError, r"cannot tell whose data these are; say it: chunkwise inspect qchunk\|"),
        (["pack", "EMPTY"], ConfigError, r"say it: chunkwise pack openpi_ript\|driving /"),
        (["inspect", "EMPTY/none"], DataError, "expected a dataset, found nothing"),
        (["evaluate", "EMPTY"], ConfigError, r"expected the folder of a run, found no config\.json in it"),
        (["evaluate", "nowhere"], ConfigError, r"^nowhere: expected the folder of a run, found nothing \(in /"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], error: type[Exception], message: str, tmp_path: Path):
    with pytest.raises(error, match=message):
        verbs.resolve([word.replace("EMPTY", str(tmp_path)) for word in words])


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["RUN", "--manifest", "FILE"], "RUN"),
        (["typo", "--manifest", "FILE"], "typo"),
        (["--manifest", "FILE", "RUN"], "RUN"),
        (["--episodes", "1", "RUN"], "RUN"),
        (["--episodes=1", "RUN"], "RUN"),
        (["--json", "RUN"], "RUN"),
        (["--json", "RUN", "--episodes", "1"], "RUN"),
        (["--config", "FILE", "RUN"], "RUN"),
        (["--json", "typo"], "typo"),
        (["--json"], None),
    ],
)
def test_the_path_is_told_from_the_values_of_options(words: list[str], path: str | None, tmp_path: Path):
    (tmp_path / "RUN").mkdir()
    (tmp_path / "FILE").touch()
    there = {name: str(tmp_path / name) for name in ("RUN", "FILE")}
    found = verbs._first_path([there.get(word, word) for word in words])
    assert found == (None if path is None else Path(there.get(path, path)))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_run_is_of_the_package_whose_fields_it_has(package: str, tmp_path: Path):
    run = make_run(tmp_path / "run", package)
    assert package_of(run) == package
    assert type(CONFIGS[package].get_config()) is config_class(package)
    if package in verbs.VERBS["evaluate"].modules:
        module, rest = verbs.resolve(["evaluate", str(run), "--x"])
        assert (module, rest[-2:]) == (f"{package}.evaluate", [str(run), "--x"])
        words = ["--episodes", "1", str(run)]
        module, rest = verbs.resolve(["evaluate", *words])
        assert (module, rest[-3:]) == (f"{package}.evaluate", words), "the value of an option is no path"
    (run / "config.json").write_text('{"color": 1}')
    with pytest.raises(ConfigError, match="expected the config of a run of qchunk, openpi_ript, driving"):
        package_of(run)


def test_exit_codes_and_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert verbs.main(["--version"]) == 0
    assert capsys.readouterr().out == f"chunkwise {chunkwise.__version__}\n"
    assert verbs.main([]) == 64
    assert "usage: chunkwise VERB" in capsys.readouterr().err
    assert verbs.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in verbs.VERBS)
    assert verbs.main(["tarin"]) == 64
    assert "did you mean train?" in capsys.readouterr().err
    assert verbs.main(["inspect", str(tmp_path / "none")]) == 65
    for name, verb in verbs.VERBS.items():
        if "" not in verb.modules:
            assert verbs.main([name, "--help"]) == 0
            assert f"example: {verb.example}" in capsys.readouterr().out


def test_configs_are_found_by_name_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "configs/qchunk").mkdir(parents=True)
    (tmp_path / "configs/qchunk/debug.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    assert names.find("qchunk/debug").samefile(Path(qchunk_debug.__file__ or ""))
    assert with_name(["qchunk/debug", "--train.steps", "3"])[2:] == ["--train.steps", "3"]
    assert with_name(["--config", "x.py"]) == ["--config", "x.py"]
    assert names.find("own.py") == Path("own.py")
    with pytest.raises(ConfigError, match="no config is named qchunk/cube_singel, and no file; did you mean"):
        names.find("qchunk/cube_singel")
    assert names.first_line("qchunk/debug").startswith("The whole way in seconds on a CPU")


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]):
    assert listing.main(["--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(found) == {"configs", "studies", "verbs", "envs", "readers"}
    assert set(found["configs"]) == set(names.names())
    assert all(found["configs"].values()), "a config without a first line"
    files = (Path(__file__).parents[3] / "configs/studies").glob("[!_]*.py")
    assert set(found["studies"]) == {file.stem for file in files} >= {"debug", "quickstart"}
    assert found["studies"]["quickstart"].startswith("The quickstart three times over")
    assert set(found["verbs"]) == set(verbs.VERBS)
    assert found["envs"]["metaworld/reach-v3"] == "move the hand to the goal"
    assert {"robosuite/Lift", "point/red", "gymnasium/ID", "module:factory"} <= set(found["envs"])
    assert "nuscenes" in found["readers"]["driving convert"]
    assert found["readers"]["qchunk data.format"].startswith("aloha_hdf5, ogbench_npz, lerobot, module:function")
    assert listing.main(["configs"]) == 0
    assert "  qchunk/debug " in capsys.readouterr().out


def test_import_and_help_load_no_jax():
    for code in ("import chunkwise; chunkwise.__version__", "from chunkwise.cli import verbs; verbs.main(['--help'])"):
        program = f"import sys; {code}; sys.exit('jax' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0
    found = subprocess.run([sys.executable, "-m", "chunkwise", "checkpoint", "--help"], capture_output=True, text=True)
    assert (found.returncode, "usage:" in found.stdout) == (0, True), found.stderr
    wrong = subprocess.run([sys.executable, "-m", "chunkwise", "serve", "--prot", "1"], capture_output=True, text=True)
    assert (wrong.returncode, "RUN" in wrong.stderr) == (64, True)
    with pytest.raises(AttributeError, match="no attribute 'load'"):
        chunkwise.load  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_two_evaluations_are_compared_whatever_made_them():
    assert verbs.resolve(["compare", "a.json", "b.json"]) == ("chunkwise.envs.compare", ["a.json", "b.json"])


def test_the_help_of_evaluate_names_the_ways_to_execute(capsys: pytest.CaptureFixture[str]):
    assert verbs.main(["evaluate", "--help"]) == 0
    said = capsys.readouterr().out
    for name in ("--how", "--execute", "--delay", "--max-steps", "--episodes"):
        assert name in said
    assert verbs.main(["--help"]) == 0
    assert "ls, verify or prune" in capsys.readouterr().out, "the words of chunkwise checkpoint"


def test_a_reader_who_has_read_enough_ends_a_command_without_a_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    long, short = ("list",), ("list studies", "record driving --help", "--help", "record --help")
    for words in (*(f"-u -m chunkwise {one}" for one in long), *(f"-m chunkwise {one}" for one in long + short)):
        command = [sys.executable, *words.split()]
        found = subprocess.run(command, env=buffered, stdout=writer, stderr=subprocess.PIPE, text=True)
        assert (words, found.returncode, found.stderr) == (words, 141, "")
    os.close(writer)


def test_a_pipe_that_breaks_elsewhere_is_told():
    lines = (
        "from chunkwise.cli import command",
        "def main(): raise BrokenPipeError('of a worker')",
        "command.run(main)",
    )
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert found.returncode == 1
    assert "BrokenPipeError: of a worker" in found.stderr
