"""What a folder brings is not run, and its links lead nowhere else."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from chunkwise.errors import ConfigError, DataError, StorageError
from chunkwise.files.trust import require_own_files, require_plain_name


def test_links_inside_a_folder_are_its_own(tmp_path: Path):
    run = tmp_path / "run"
    (run / "checkpoints/5").mkdir(parents=True)
    (run / "checkpoints/5/array").write_text("1")
    (run / "latest").symlink_to("checkpoints/5")
    (run / "here").symlink_to(run)
    (run / "broken").symlink_to("nothing")
    require_own_files(run)
    (tmp_path / "linked").symlink_to(run)
    require_own_files(tmp_path / "linked")
    require_own_files(tmp_path / "none")


@pytest.mark.parametrize("target", ["../secret", "../run-2", "/etc/hostname", "../nothing"])
def test_links_that_lead_out_are_refused_by_name(tmp_path: Path, target: str):
    run = tmp_path / "run"
    (run / "checkpoints/5").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run-2").mkdir()
    (run / "checkpoints/5/array").symlink_to(run / target if target.startswith("..") else target)
    with pytest.raises(DataError, match="links inside the folder alone, found checkpoints/5/array -> ") as refused:
        require_own_files(run)
    assert "move the whole folder and link to it" in str(refused.value)


def test_a_hubs_snapshot_has_its_files_in_the_blobs(tmp_path: Path):
    snapshot = tmp_path / "models--x/snapshots/0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--x/blobs").mkdir()
    (tmp_path / "models--x/blobs/abc").write_text("weights")
    (snapshot / "weights").symlink_to("../../blobs/abc")
    require_own_files(snapshot)
    (snapshot / "other").symlink_to("../../refs")
    with pytest.raises(DataError, match=r"found other -> \.\./\.\./refs\."):
        require_own_files(snapshot)


def test_many_links_are_counted(tmp_path: Path):
    for number in range(8):
        (tmp_path / str(number)).symlink_to("/")
    with pytest.raises(DataError, match="found 0 -> /, 1 -> /, 2 -> /, 3 -> /, 4 -> /, and 3 more"):
        require_own_files(tmp_path)


def test_names_that_import_are_refused():
    require_plain_name("cube-single-v0", where="env", what="a task")
    for name in ("evil:cube-single-v0", "folder/cube-v0", "a\\b"):
        with pytest.raises(ConfigError, match=r"env: expected the name of a task, found .* would import Python code"):
            require_plain_name(name, where="env", what="a task")


def test_a_folder_that_cannot_be_looked_through_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run/secret").mkdir(parents=True)
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(StorageError, match="run: cannot be looked through for links: PermissionError"):
        require_own_files(tmp_path / "run")
