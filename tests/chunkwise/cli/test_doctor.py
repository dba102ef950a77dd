"""What the doctor finds on a machine that lacks something, one thing at a time."""

import collections
import fcntl
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkwise.cli import doctor
from chunkwise.cli.doctor import Finding
from chunkwise.config.installed import pip_install


def found(probe: Callable[[], Iterator[Finding]], name: str) -> Finding:
    return {finding.name: finding for finding in probe()}[name]


def shown(**device: object) -> str:
    """A program that answers as jax would with one device."""
    return f"print({json.dumps(json.dumps([device]))})"


def test_this_machine_holds_what_the_tests_run_with(tmp_path: Path):
    command = [sys.executable, "-m", "chunkwise", "doctor", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = {one["name"]: one for one in json.loads(done.stdout)}
    assert not [one for one in findings.values() if one["state"] == "bad"]
    assert f"jax {importlib.metadata.version('jax')}" in findings["packages"]["found"]
    assert findings["devices"]["found"] == "1 cpu, because JAX_PLATFORMS says so"
    assert findings["mujoco"]["found"] == importlib.metadata.version("mujoco")
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_people_are_told_what_to_do_and_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(doctor, "PROBES", (doctor.optional,))
    monkeypatch.setattr(doctor, "SIMULATORS", {"no-such-simulator": "sim"})
    monkeypatch.setattr(doctor, "LOGGERS", {"numpy": "tb"})
    assert doctor.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["absent", "no-such-simulator", "not", "installed"]
    assert lines[1].strip() == f"-> {pip_install('sim', locked=True)}"
    assert lines[2].split() == ["ok", "numpy", importlib.metadata.version("numpy")]
    monkeypatch.setattr(doctor, "version_of", lambda package: None)
    advice = {one.name: one.advice for one in doctor.optional()}
    assert advice == {"no-such-simulator": pip_install("sim", locked=True), "numpy": pip_install("tb")}
    assert lines[-2].endswith("1 absent, 0 bad")
    assert lines[-1].startswith("next: chunkwise train qchunk/debug")


@pytest.mark.parametrize(
    ("needed", "wrong"),
    [
        ("numpy>=999", "numpy>=999, found "),
        ("no-such-package>=1", "no-such-package>=1, found none"),
        ("no-such-package>=1; extra == 'sim'", None),
        ("no-such-package>=1; python_version < '3'", None),
        ("numpy>=2", None),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_bad(needed: str, wrong: str | None, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(doctor, "_required", lambda: [needed])
    packages = found(doctor.packages, "packages")
    assert packages.state == ("ok" if wrong is None else "bad")
    if wrong is not None:
        assert wrong in packages.found
        assert packages.advice == "make env"
        monkeypatch.setattr(doctor, "clone", lambda: None)
        assert found(doctor.packages, "packages").advice.endswith(f"pip install '{needed}'")
        monkeypatch.setattr(doctor, "PROBES", (doctor.packages,))
        assert doctor.main([str(tmp_path)]) == 64


def test_a_checkout_that_is_not_installed_requires_what_its_pyproject_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "DISTRIBUTION", "no-such-distribution")
    required = {text.partition(">")[0] for text in doctor._required()}
    assert {"jax", "flax", "optax", "grain", "numpy", "h5py", "orbax-checkpoint"} <= required


@pytest.mark.parametrize(
    ("program", "state", "text", "advice"),
    [
        ("raise SystemExit('error: no driver')", "bad", "jax cannot open them: error: no driver", "JAX_PLATFORMS=cpu"),
        ("import os; os.abort()", "bad", "jax cannot open them: ended with -6", "JAX_PLATFORMS=cpu"),
        ('print(\'[{"kind": "H100", "platform": "gpu", "stats": 1073741824}]\')', "ok", "1 H100, 1.0 GiB", ""),
        ('print(\'[{"kind": "cpu", "platform": "cpu", "stats": null}]\')', "absent", "1 cpu", "[cuda]"),
    ],
)
def test_devices_are_what_jax_answers(program: str, state: str, text: str, advice: str, monkeypatch):
    monkeypatch.setattr(doctor, "DEVICES", program)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(doctor.shutil, "which", lambda tool: f"/usr/bin/{tool}")  # an NVIDIA driver is there
    devices = found(doctor.devices, "devices")
    assert devices.state == state
    assert devices.found.startswith(text)
    assert advice in devices.advice
    assert bool(advice) == bool(devices.advice)


def test_one_way_of_rendering_is_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    fails = "import os, sys; sys.exit('broken' if os.environ['MUJOCO_GL'] in %r else 0)"
    monkeypatch.setattr(doctor, "RENDER", fails % ["egl"])
    rendering = found(doctor.rendering, "rendering")
    assert (rendering.state, rendering.found, rendering.advice) == ("ok", "by osmesa", "set MUJOCO_GL=osmesa")
    monkeypatch.setattr(doctor, "RENDER", fails % ["egl", "osmesa"])
    rendering = found(doctor.rendering, "rendering")
    assert (rendering.state, rendering.found) == ("absent", "egl: broken; osmesa: broken")
    assert "libegl1" in rendering.advice


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "SECONDS", 0.2)
    monkeypatch.setattr(doctor, "DEVICES", "import time; time.sleep(600)")
    assert found(doctor.devices, "devices").found == "jax cannot open them: no answer after 0.2 s"


def test_a_folder_that_cannot_be_written_to_ends_with_74(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(doctor, "PROBES", ())
    assert doctor.main([str(tmp_path / "nowhere")]) == 74
    said = capsys.readouterr().out
    assert "No such file or directory" in said
    assert said.splitlines()[-1] == "next: mend what is BAD, and ask again"


def test_locks_that_keep_nobody_out_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert doctor._locks(tmp_path / "lock")
    monkeypatch.setattr(doctor, "PROBES", ())
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    assert found(lambda: doctor.storage(tmp_path), "locks").state == "bad"
    assert doctor.main([str(tmp_path)]) == 74


def test_little_room_and_slow_disks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(0, 0, 3 * 2**30))
    monkeypatch.setattr(doctor, "SLOW_SYNC", 0.0)
    findings = {finding.name: finding for finding in doctor.storage(tmp_path)}
    assert findings["room"].state == "absent"
    assert findings["room"].found.startswith("3.0 GiB free at ")
    assert "exit code 74" in findings["room"].advice
    assert findings["fsync"].advice.startswith("a save of some 30 files takes ")
    assert doctor.exit_code(list(findings.values())) == 0


@pytest.mark.parametrize(
    ("folder", "kind"), [("/", "ext4"), ("/data/runs", "nfs4"), ("/database", "ext4"), ("/with space/x", "tmpfs")]
)
def test_a_folder_is_on_the_file_system_mounted_nearest(folder: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    mounts = "dev / ext4 rw 0 0\nhost:/x /data nfs4 rw 0 0\ntmpfs /with\\040space tmpfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda self: mounts)
    monkeypatch.setattr(Path, "resolve", lambda self: self)
    assert doctor._file_system(Path(folder)) == kind


def test_a_disk_in_memory_and_one_of_another_host_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_file_system", lambda folder: "tmpfs")
    assert "lost with the next start" in found(lambda: doctor.storage(tmp_path), "room").advice
    assert found(lambda: doctor.storage(tmp_path), "locks").advice == ""
    monkeypatch.setattr(doctor, "_file_system", lambda folder: "nfs4")
    assert "on one of them only" in found(lambda: doctor.storage(tmp_path), "locks").advice
    monkeypatch.setattr(doctor, "_file_system", lambda folder: "ext4")
    assert found(lambda: doctor.storage(tmp_path), "locks").advice == ""


def test_a_container_may_use_less_memory_than_there_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_limit_of_container", lambda: 3 * 2**28)
    assert "0.8 GiB of memory (this container's, of " in found(doctor.host, "host").found
    monkeypatch.setattr(doctor, "_limit_of_container", lambda: None)
    assert "container" not in found(doctor.host, "host").found


def test_codecs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch):
    from av import codec

    assert found(doctor.codecs, "codecs").state == "ok"
    real = codec.Codec
    monkeypatch.setattr(codec, "Codec", lambda name, mode: real("no-such" if name == "libdav1d" else name, mode))
    codecs = found(doctor.codecs, "codecs")
    assert (codecs.state, codecs.found) == ("absent", "PyAV lacks libdav1d, which reads AV1, which LeRobot writes")
