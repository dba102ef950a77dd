import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openpi_ript import parity
from openpi_ript.parity import Difference, compare
from tests import xla
from tests.openpi_ript.toy_policy import PARITY


@pytest.mark.parametrize(
    "fixture",
    [PARITY[0], *(pytest.param(path, marks=pytest.mark.long) for path in PARITY[1:])],
    ids=lambda path: path.stem,
)
def test_everything_recorded_from_openpi_agrees(fixture: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "openpi_ript.parity", str(fixture)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.flags(xla.QUICK)},  # it computes little
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = [line.split(" ") for line in run.stdout.splitlines()]
    names = [name for name, _, _ in lines]
    with np.load(fixture) as recorded:
        skipped = ("/params/", "/aug_key7/", "inputs/", "loss_noise", "loss_time", "meta")
        expected = [name for name in recorded.files if not any(part in name for part in skipped)]
    assert sorted(names) == sorted(expected)
    for name, _, relative in lines:
        assert float(relative) <= (5e-2 if "/bf16/" in name else 1e-5), name


def test_difference_is_relative_to_the_largest_expected_entry() -> None:
    expected = np.array([4.0, -8.0, 0.0], np.float32)
    difference = compare("x", np.array([4.0, -8.0, 0.25]), expected, 0.01)
    assert str(difference) == "x 2.500e-01 3.125e-02"
    assert not difference.passed
    assert compare("x", np.array([4.0, -8.0, 0.25]), expected, 0.01, floor=100.0).relative == 0.0025
    assert compare("zero", np.zeros(2), np.zeros(2, np.float32), 1e-5).passed
    assert not compare("nan", np.array([np.nan]), np.ones(1, np.float32), 1e-5).passed


def test_exit_code_tells_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "empty.npz", meta=np.zeros(1))
    good = Difference(name="a", max_abs=1e-7, relative=1e-6, bound=1e-5)
    bad = Difference(name="b", max_abs=1.0, relative=0.5, bound=1e-5)
    for found, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(parity, "differences", lambda _, found=found: iter(found))
        assert parity.main([str(tmp_path / "empty.npz")]) == code
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["a 1.000e-07 1.000e-06"] * 2 + ["b 1.000e+00 5.000e-01"]
    assert "over its bound of 1e-05: b" in printed.err


def test_unusable_fixture_is_bad_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(tmp_path / "missing.npz")]) == 65
    np.savez(tmp_path / "empty.npz", other=np.zeros(1))
    assert parity.main([str(tmp_path / "empty.npz")]) == 65
    (tmp_path / "text.npz").write_text("{}")
    assert parity.main([str(tmp_path / "text.npz")]) == 65
    errors = capsys.readouterr().err
    assert "missing.npz: expected a parity fixture, an .npz of plain arrays, found no such file" in errors
    assert (
        "text.npz: expected a parity fixture, an .npz of plain arrays, found expected a whole .npz file, found File is"
        in errors
    )
    assert "pi0/params/: expected the names and shapes of the model" in errors
    for meta in (b"{", b'{"sizes": {}}', b'{"sizes": {"language": {"width": 4}, "expert": {}}}'):
        np.savez(tmp_path / "meta.npz", meta=np.frombuffer(meta, np.uint8))
        assert parity.main([str(tmp_path / "meta.npz")]) == 65
        assert "meta: expected the sizes of the models in JSON, found" in capsys.readouterr().err
