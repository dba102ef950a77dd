"""Reports, comparisons and studies that are to be written where nothing can be: a line, and an exit code."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chunkwise.config.study import StudyConfig, runs_of
from chunkwise.errors import ConfigError, RunError, StorageError
from chunkwise.reports import compare, report, study, study_table
from tests.chunkwise.reports.test_page import evaluated, write_run


@pytest.mark.parametrize(("main", "option"), [(report.main, "--out"), (compare.main, "--html")])
def test_a_page_that_cannot_be_written_is_told(
    tmp_path: Path, main: Callable[[Sequence[str]], int], option: str, capsys: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path / "run", [evaluated(20, 0.5)])
    (tmp_path / "file").touch()
    cases: list[tuple[Path, type[RunError], str]] = [
        (tmp_path, ConfigError, f"{tmp_path} is a folder; expected the name of a file, as {option}"),
        (tmp_path / "file/page.html", StorageError, f"cannot write {tmp_path}/file/page.html: Not a directory"),
        (tmp_path / "file/a/page.html", StorageError, f"cannot write {tmp_path}/file/a/page.html: Not a directory"),
    ]
    for place, kind, said in cases:
        with pytest.raises(kind, match=said) as refused:
            main([str(run), option, str(place)])
        assert option in str(refused.value)
    assert not capsys.readouterr().out, "it is known before anything is done"


def test_a_report_of_no_run_makes_no_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        report.main([str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("more", [[], ["--table"], ["--only", "0"], ["--slurm"]])
def test_a_study_whose_folder_cannot_be_is_told(tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    (tmp_path / "mine.py").write_text(
        "from chunkwise.config.study import StudyConfig\n"
        "def get_study():\n    return StudyConfig(config='qchunk/debug', seeds=(0,))\n"
    )
    for place in (tmp_path / "file", tmp_path / "file/below"):
        assert study.main([str(tmp_path / "mine.py"), "--out", str(place), *more]) == StorageError.exit_code == 74
        said = capsys.readouterr().err
        assert said.startswith(f"error: cannot write {place}")
        assert said.endswith(": Not a directory. Choose another with --out\n")


def test_a_table_whose_files_cannot_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The folder of the runs is the one that cannot be written: another --out would have none of them."""
    found = StudyConfig(config="qchunk/debug", seeds=(0,))
    (tmp_path / study_table.TABLE).mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*: Is a directory"):
        study_table.write(found, runs_of(found), tmp_path, {}, {})
    assert capsys.readouterr().out.startswith("# qchunk/debug: success over seeds 0")


def test_a_log_that_cannot_be_written_fails_its_run(tmp_path: Path):
    (tmp_path / "logs").touch()
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/logs/x.txt: Not a directory"):
        study.Processes().call(["/nothing/is/started"], tmp_path / "logs/x.txt")
