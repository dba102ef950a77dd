"""Changes of datasets are noticed: the short form of `python -m tests.changed_data`."""

from pathlib import Path

import pytest

from tests import changed_data


@pytest.mark.parametrize("kind", changed_data.KINDS)
def test_a_change_is_refused_with_its_file_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert changed_data.try_kind(kind, tmp_path / "work") == len(changed_data.KINDS[kind].changes)
