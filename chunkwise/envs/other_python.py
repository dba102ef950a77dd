"""An environment in another Python: one whose simulator needs versions that this one cannot have.

`env.python` is the path of an interpreter that has numpy and the simulator. A process of it makes the environment of
`module:factory` (other_python_worker.py); actions and observations cross as arrays. PYTHONPATH counts there too.
"""

import collections
import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.other_python_worker import BrokenMessageError, read, write
from chunkwise.errors import ConfigError, DataError, RunError, exit_reason
from chunkwise.files.npz import parse_npz
from chunkwise.files.strict_json import parse_json

OLDEST = (3, 8)
"""Python that the worker's side runs on."""
PATIENCE = 5.0
"""Seconds that a process has to end after its stdin was closed."""
SHOWN = 8
"""Last lines of a dead process that its error repeats."""
_WORKER = Path(__file__).with_name("other_python_worker.py")
# The folder of a script that is run by its path would be the first that imports look in, and this folder has an
# inspect.py. Python 2 must be able to parse it.
_BEGIN = (
    "import sys; sys.path[:1] = []; "
    f"sys.version_info >= {OLDEST} or sys.exit('Python %s.%s is too old' % sys.version_info[:2]); "
    "import runpy; runpy.run_path(sys.argv[1])['main']()"
)
_TOLD = ("suite", "task", "cameras", "image_size", "render_size", "rendering", "video")


class SimulatorDiedError(RunError):
    """The process of an environment is gone; its episode is lost, and a new one can be made."""


class OtherPythonEnv:
    """An environment as `Environment` lists it, whose calls are answered by a process of its own."""

    def __init__(self, spec: EnvSpec) -> None:
        """Starts the process, and has it make the environment.

        Raises:
          ConfigError: There is no such interpreter, it is too old, lacks numpy, or cannot import the environment.
          RunError: The factory raised something else.
        """
        self.cpu_s = 0.0
        """Seconds of processors that its process has used."""
        self._looks = bool(spec.cameras)
        self._name = f"{spec.suite} in {spec.python}"
        self._last: collections.deque[str] = collections.deque(maxlen=SHOWN)
        self._process, self._echo = self._start(spec.python)
        try:
            found, _ = self._ask({"spec": {name: getattr(spec, name) for name in _TOLD}})
        except SimulatorDiedError as error:
            raise ConfigError(
                f"env.python is {spec.python!r}; expected an interpreter of Python {_dotted(OLDEST)} or newer, with "
                "numpy and the simulator",
                *error.args,
            ) from error
        except BaseException:
            self.close()
            raise
        self.fps, self.action_dim = float(found["fps"]), int(found["action_dim"])
        if "video_size" in found:
            self.video_size = tuple(found["video_size"])
        self._has_expert = bool(found["expert"])

    @property
    def expert(self) -> Callable[[], Callable[[Observation], np.ndarray]]:
        """The environment's own `expert()`, for demonstrations. Raises AttributeError where it has none."""
        if not self._has_expert:
            raise AttributeError("expert")
        return self._script

    def reset(self, seed: int) -> Observation:
        return self._ask({"call": "reset", "seed": int(seed)})[1]

    def state(self) -> Float64[np.ndarray, " q"]:
        return np.asarray(self._ask({"call": "state"})[1]["state"], np.float64)

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return self._ask({"call": "clip"}, {"action": np.asarray(action)})[1]["action"].astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        found, observation = self._ask({"call": "step"}, {"action": action})
        ends = {name: found[name] for name in ("success", "terminated", "truncated")}
        return Step(observation, reward=found["reward"], **ends)

    def images(self) -> Observation:
        return self._ask({"call": "images"})[1] if self._looks else {}

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        return self._ask({"call": "render", "height": height, "width": width})[1]["image"]

    def close(self) -> None:
        """Ends the process."""
        process = self._process
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._echo.join(PATIENCE)
        process.stdout.close()
        process.stderr.close()

    def _start(self, python: str) -> tuple[Any, threading.Thread]:
        path = shutil.which(Path(python).expanduser())
        if path is None:
            raise ConfigError(
                f"env.python is {python!r}; expected the path of a Python interpreter, found no program there"
            )
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen([path, "-c", _BEGIN, str(_WORKER)], stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise ConfigError(f"env.python is {python!r}, which does not start: {error}") from error
        echo = threading.Thread(target=self._repeat, args=(process.stderr,), daemon=True)
        echo.start()
        return process, echo

    def _repeat(self, said: Any) -> None:
        """Shows what the process prints, and keeps the last lines for an error."""
        for line in said:
            text = line.decode(errors="replace")
            self._last.append(text.rstrip())
            sys.stderr.write(text)

    def _ask(self, words: dict[str, Any], arrays: Observation | None = None) -> tuple[dict[str, Any], Observation]:
        """Asks the process for something. Raises RunError with what it raised, SimulatorDiedError if it is gone."""
        try:
            with contextlib.suppress(BrokenPipeError):  # what it said before it ended tells more
                write(self._process.stdin, words, arrays)
            text, content = read(self._process.stdout)
        except (EOFError, BrokenMessageError, OSError, ValueError) as error:
            raise self._died(error) from error
        source = f"the answer of {self._name}"
        found = parse_json(text, source=source, finite=False)
        if "error" in found:
            raise self._raised(found)
        self.cpu_s = float(found["cpu_s"])
        try:
            return found, parse_npz(content, source=source) if content else {}
        except DataError as error:
            raise RunError(*error.args) from error

    def _died(self, error: BaseException) -> SimulatorDiedError:
        self.close()
        odd = f": {error}" if isinstance(error, BrokenMessageError) else ""
        lines = [f"  {line}" for line in self._last]
        return SimulatorDiedError(
            f"{self._name}: its process ended ({exit_reason(self._process.returncode)}){odd}", *lines
        )

    def _raised(self, found: dict[str, Any]) -> RunError:
        said = f"{found['error']}: {found['said']}" if found["said"] else found["error"]
        where = f"{self._name} (Python {found['python']})"
        if found["error"] in ("ImportError", "ModuleNotFoundError"):
            return ConfigError(
                f"{where}: {said}. Install what is missing there, with that interpreter's `-m pip install`, or put the "
                "folder of your own file on PYTHONPATH",
                *found["lines"],
            )
        return RunError(f"{where}: {said}", *found["lines"])

    def _script(self) -> Callable[[Observation], np.ndarray]:
        self._ask({"call": "expert"})
        return lambda seen: self._ask({"call": "act"}, seen)[1]["action"].astype(np.float64)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
