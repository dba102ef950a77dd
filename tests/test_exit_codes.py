"""What a scheduler reads: the exit code of every kind of end, of launch.py and of the tools."""

import builtins
import json
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driving.convert
import driving.evaluate
import driving.validate
import launch
import openpi_ript.evaluate
import qchunk.inspect
import qchunk.record
from chunkwise import errors
from chunkwise.checkpoint.tool import main as checkpoint_tool
from chunkwise.cli import command
from chunkwise.distributed import processes
from chunkwise.envs import recorder
from chunkwise.envs.evaluate import Evaluation
from chunkwise.files.new_folder import new_folder
from tests.chunkwise.toy import toy_config

# As docs/reliability.md and the README have them, written out: scripts outside of this repository rely on these.
CODES = {
    "RunError": 70,
    "ConfigError": 64,
    "DataError": 65,
    "NonFiniteError": 70,
    "BusyError": 73,
    "StorageError": 74,
    "PreemptedError": 75,
    "PeerError": 76,
    "MismatchError": 78,
}


def test_every_error_has_its_documented_code():
    found = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.RunError)
    }
    assert found == CODES
    assert errors.StopRequested.exit_code == 75, "asked to stop, before there was anything to save"


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def function(*_: object, **__: object) -> Any:
        raise error

    return function


@pytest.mark.parametrize("name", [*CODES, "KeyboardInterrupt"])
def test_training_ends_with_the_code_of_its_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    error = KeyboardInterrupt() if name == "KeyboardInterrupt" else getattr(errors, name)("what happened")
    monkeypatch.setitem(sys.modules, "tests.train", types.SimpleNamespace(main=raising(error)))
    assert launch.train(toy_config(tmp_path), "toy") == CODES.get(name, 130)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert ("stopped by the keyboard" if name == "KeyboardInterrupt" else "error: what happened") in said


@pytest.mark.parametrize("name", [*CODES, "StopRequested", "KeyboardInterrupt", "an end", "ZeroDivisionError"])
def test_a_command_leaves_with_its_code_and_waits_for_the_others_only_after_an_orderly_end(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    left: list[tuple[int, bool]] = []

    def leave(code: int, *, together: bool) -> None:
        left.append((code, together))
        raise SystemExit

    monkeypatch.setattr(processes, "leave", leave)
    error = getattr(errors, name, getattr(builtins, name, None))
    with pytest.raises(SystemExit):
        command.run((lambda: None) if error is None else raising(error("x")))
    expected = {"an end": 0, "StopRequested": 75, "KeyboardInterrupt": 130, "ZeroDivisionError": 1} | CODES
    assert left[0] == (expected[name], name in ("an end", "PreemptedError"))
    assert ("Traceback" in capsys.readouterr().err) == (name == "ZeroDivisionError")


@pytest.mark.parametrize("code", [65, 75, 1])
def test_a_command_leaves_with_the_code_that_it_returns(code: int, monkeypatch: pytest.MonkeyPatch):
    left: list[tuple[int, bool]] = []

    def leave(code: int, *, together: bool) -> None:
        left.append((code, together))
        raise SystemExit

    monkeypatch.setattr(processes, "leave", leave)
    with pytest.raises(SystemExit):
        command.run(lambda: code)
    assert left == [(code, code == 75)]


def test_an_end_in_words_is_no_success(capsys: pytest.CaptureFixture[str]):
    assert [processes.report(SystemExit(code)) for code in (None, 0, 64, "no such flag")] == [0, 0, 64, 1]
    assert capsys.readouterr().err == "no such flag\n"


def test_the_loss_of_another_process_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from jax._src import distributed
    from jax.errors import JaxRuntimeError

    monkeypatch.setattr(distributed.global_state, "num_processes", 2)
    assert processes.report(JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [::1]")) == 76
    said = capsys.readouterr().err
    assert "another process of this run ended" in said
    assert "Traceback" not in said


def test_a_bug_is_a_traceback_and_an_end_is_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tests.train", types.SimpleNamespace(main=raising(ZeroDivisionError())))
    with pytest.raises(ZeroDivisionError):
        launch.train(toy_config(tmp_path), "toy")
    monkeypatch.setitem(sys.modules, "tests.train", types.SimpleNamespace(main=lambda *_: None))
    assert launch.train(toy_config(tmp_path), "toy") == 0


def test_a_wrong_command_line_is_64(capsys: pytest.CaptureFixture[str]):
    assert launch.main(["--config", "configs/qchunk/debug.py", "--train.stepz", "3"]) == 64
    assert launch.main(["--config", "configs/qchunk/no_such.py"]) == 64
    for wrong in (["--train.steps", "-1"], ["--agent.encoder.blocks", "0"]):
        assert launch.main(["--config", "configs/qchunk/debug.py", *wrong]) == 64
        assert "Traceback" not in (said := capsys.readouterr().err)
        assert wrong[0].rpartition(".")[2] in said
    for tool in (checkpoint_tool, qchunk.inspect.main, driving.validate.main, driving.convert.main):
        with pytest.raises(SystemExit) as end:
            tool(["--no-such-option"])
        assert end.value.code == 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--path", "somewhere", "--env", "cube-single-v0", "--no-such"], "--no-such"),
        (["--path", "somewhere", "--env", "cube-single-v0", "--episodes", "many"], "many"),
        (["--path", "somewhere", "--env", "cube-single-v0", "--episodes", "0"], "episodes is 0"),
        (["--path", "somewhere"], "--env"),
    ],
)
def test_a_wrong_command_line_of_a_recorder_is_usage(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["record", *words])
    assert qchunk.record.main() == 64
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("error: ")


class Settings(types.SimpleNamespace):
    """Stands for a dataclass of settings; `command` reads its fields."""

    __dataclass_fields__: dict[str, Any] = {}  # noqa: RUF012


@pytest.mark.parametrize("name", [*CODES, "KeyboardInterrupt"])
def test_a_recording_ends_with_the_code_of_its_error(name: str):
    error = KeyboardInterrupt() if name == "KeyboardInterrupt" else getattr(errors, name)("x")
    made = types.SimpleNamespace(path="somewhere")
    assert recorder.command(Settings, made, raising(error)) == CODES.get(name, 130)
    assert recorder.command(Settings, made, lambda *_: None) == 0


def test_sigterm_ends_a_recording_as_preempted(tmp_path: Path):
    with pytest.raises(errors.PreemptedError, match="stopped by SIGTERM"), recorder.sigterm_raises(tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_folder_that_cannot_be_made_is_74(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(errors.StorageError), new_folder(tmp_path / "file" / "out"):
        pass


def test_the_checkpoint_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert checkpoint_tool(["ls", str(tmp_path / "none")]) == 65
    assert checkpoint_tool(["prune", str(tmp_path), "--max-to-keep", "0"]) == 64


@pytest.mark.parametrize("name", CODES)
def test_tools_end_with_the_code_of_their_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fails = raising(getattr(errors, name)("x"))
    monkeypatch.setattr(driving.convert, "convert", fails)
    assert driving.convert.main([str(tmp_path), str(tmp_path / "out")]) == CODES[name]
    monkeypatch.setattr(driving.evaluate, "evaluate_run", fails)
    monkeypatch.setattr(sys, "argv", ["evaluate", str(tmp_path)])
    assert driving.evaluate.main() == CODES[name]
    monkeypatch.setattr(Evaluation, "load", fails)
    assert openpi_ript.evaluate.main(["compare", "a", "b"]) == CODES[name]


def test_what_training_would_refuse_is_65(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(driving.validate, "validate", lambda *_, **__: {"refused": True})
    assert driving.validate.main([str(tmp_path), "--json"]) == 65
    monkeypatch.setattr(driving.validate, "validate", lambda *_, **__: {"refused": False})
    assert driving.validate.main([str(tmp_path), "--json"]) == 0
    for refused, bad in ((True, []), (False, ["an episode that is skipped"])):
        monkeypatch.setattr(qchunk.inspect, "read", lambda *_: None)
        monkeypatch.setattr(
            qchunk.inspect, "describe", lambda *_, refused=refused, bad=bad: {"refused": refused, "bad_episodes": bad}
        )
        capsys.readouterr()
        assert qchunk.inspect.main([str(tmp_path), "--json"]) == (65 if refused else 0)
        assert json.loads(capsys.readouterr().out)["refused"] is refused


def test_a_device_without_memory_is_told_with_what_to_change(capsys: pytest.CaptureFixture[str]):
    from jax.errors import JaxRuntimeError

    error = JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 127647713776 bytes.\nbuffers: ...")
    assert processes.report(error) == 70
    said = capsys.readouterr().err
    assert "error: the device has no memory left: RESOURCE_EXHAUSTED: Out of memory allocating 127647713776" in said
    assert "train.grad_accum_steps" in said
    assert "Traceback" not in said
    assert "buffers" not in said
    assert processes.report(JaxRuntimeError("INTERNAL: RESOURCE_")) == 1
    assert "JaxRuntimeError: INTERNAL" in capsys.readouterr().err
