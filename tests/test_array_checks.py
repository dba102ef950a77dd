"""The flag --typecheck sees a wrong shape or dtype wherever an array is annotated, and looks at nothing else."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAMPLE = """
import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal
import numpy as np
from jaxtyping import Float32, Int64

Row = Float32[np.ndarray, "n"]

def same(a: Float32[np.ndarray, "n"], b: Float32[np.ndarray, "n"]) -> None: ...
def keyword(*, a: Mapping[str, Float32[np.ndarray, "n 2"]] | None = None) -> None: ...
def several(*rows: Float32[np.ndarray, "2"]) -> None: ...
def aliased(a: Row) -> None: ...
def result(n: int) -> Float32[np.ndarray, "3"]:
    return np.zeros(n, np.float32)
def plain(a: str, how: Literal["one", "two"]) -> int:
    return a
def outer(n: int) -> None:
    def inner(a: Int64[np.ndarray, "2"]) -> None: ...
    inner(np.zeros(n, np.int64))

class Object:
    def method(self, a: Float32[np.ndarray, "2"]) -> None: ...

@dataclasses.dataclass(frozen=True)
class Held:
    a: Float32[np.ndarray, "2"]
    name: str = ""
"""
USE = """
import sys, numpy as np
sys.path.insert(0, {folder!r})
from tests import array_checks
array_checks.install(["sample"])
import sample
f = lambda *shape: np.zeros(shape, np.float32)
calls = dict(
    same=lambda wrong: sample.same(f(2), f(3 if wrong else 2)),
    dtype=lambda wrong: sample.same(f(2).astype(np.float64) if wrong else f(2), f(2)),
    keyword=lambda wrong: sample.keyword(a={{"x": f(4, 3 if wrong else 2)}}),
    several=lambda wrong: sample.several(f(2), f(3 if wrong else 2)),
    aliased=lambda wrong: sample.aliased(f(2, 2) if wrong else f(2)),
    result=lambda wrong: sample.result(4 if wrong else 3),
    inner=lambda wrong: sample.outer(3 if wrong else 2),
    method=lambda wrong: sample.Object().method(f(3 if wrong else 2)),
    held=lambda wrong: sample.Held(f(3 if wrong else 2)),
)
for name, call in calls.items():
    call(False)
    try:
        call(True)
    except Exception as error:
        print(name, type(error).__name__)
    else:
        print(name, "passed")
assert sample.plain(3, "three") == 3
print("plain", hasattr(sample.plain, "__wrapped__"), "same", hasattr(sample.same, "__wrapped__"))
"""


def test_wrong_arrays_are_seen_and_other_types_left_alone(tmp_path: Path):
    (tmp_path / "sample.py").write_text(SAMPLE)
    command = [sys.executable, "-c", USE.format(folder=str(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *found, functions = done.stdout.splitlines()
    names = ["same", "dtype", "keyword", "several", "aliased", "result", "inner", "method", "held"]
    assert found == [f"{name} TypeCheckError" for name in names]
    assert functions == "plain False same True"
