"""The numpy array in a file of `torch.save`, read without unpickling: LIBERO's published initial states are such files.

The file is a zip archive with a pickle in it. A pickle is a program for a small stack machine, and what makes one
dangerous is that it imports names and calls them. Here its opcodes are read one by one (pickletools), names stay text,
and the three calls that numpy writes for an array are worked out by hand. Whatever else a pickle asks for is refused.
"""

import dataclasses
import math
import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.errors import DataError
from chunkwise.files import budget

MEMBER = "data.pkl"
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
ENCODE = "_codecs encode"
NDARRAY = "numpy ndarray"
DTYPE = "numpy dtype"
MAX_DIMENSIONS = 8
KINDS = ("f8", "f4")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = (
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINBYTES",
    "SHORT_BINBYTES",
)
_MARK = object()


@dataclasses.dataclass(frozen=True)
class _Name:
    """A name that a pickle would import, as text."""

    text: str


@dataclasses.dataclass
class _Dtype:
    """A dtype that is being described."""

    code: Any
    order: Any = None


@dataclasses.dataclass
class _Array:
    """An array that is being described."""

    state: Any = None


class _OtherPickleError(Exception):
    """A pickle asks for something else than one array of numpy's."""


def read_torch_array(path: str | Path) -> np.ndarray:
    """Returns the array of floats that `torch.save` wrote, as float64.

    Raises:
      OSError: The file cannot be read.
      DataError: It is no such file, is damaged, holds anything else than one numpy array of floats, or costs more than
        a limit.
    """
    content = budget.read_bytes(path)
    source = str(path)
    try:
        array = _array(_pickle(path, len(content), source))
    except _OtherPickleError as error:
        raise DataError(
            f"{source}: expected one numpy array of floats, found a pickle {error}. It is not unpickled here, because "
            "that can run code. If you trust the file, turn it into an .npz where you have torch: "
            'numpy.savez("states.npz", states=numpy.asarray(torch.load(FILE, weights_only=False)))'
        ) from error
    return array


def _pickle(path: str | Path, size: int, source: str) -> bytes:
    """The bytes of the archive's pickle."""
    try:
        with budget.open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = [info for info in archive.infolist() if info.filename.rpartition("/")[2] == MEMBER]
            if len(members) != 1:
                raise DataError(f"{source}: expected one {MEMBER} in a file of torch.save, found {len(members)}")
            (info,) = members
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise DataError(f"{source}: expected a stored or deflated {MEMBER}, found another kind of compression")
            budget.Spent(source, size).add(info.file_size, MEMBER)
            with archive.open(info) as stream:
                found = stream.read(info.file_size + 1)
            if len(found) != info.file_size:
                raise DataError(f"{source}: expected {info.file_size} bytes in {MEMBER}, found {len(found)}")
            return found
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise DataError(
            f"{source}: expected a zip archive as torch.save writes it since version 1.6, found {error}"
        ) from error


def _array(pickle: bytes) -> np.ndarray:
    """The array that a pickle describes. Raises _OtherPickleError."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name == "STOP":
                break
            machine.do(opcode.name, argument)
        (found,) = machine.stack
    except _OtherPickleError:
        raise
    except Exception as error:  # genops raises ValueError, struct.error, UnicodeError, IndexError ...
        raise _OtherPickleError(f"that is broken ({type(error).__name__}: {error})") from error
    if not isinstance(found, _Array):
        raise _OtherPickleError(f"of a {type(found).__name__.strip('_')}")
    return _filled(found)


class _Machine:
    """A pickle's stack and memory."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Does what one opcode asks for, as far as an array needs it. Raises _OtherPickleError."""
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "GLOBAL":
            stack.append(_Name(argument))
        elif name == "STACK_GLOBAL":
            module, attribute = self._taken(2)
            stack.append(_Name(f"{module} {attribute}"))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._taken(int(name[-1]))))
        elif name == "TUPLE":
            at = len(stack) - 1 - next(i for i, value in enumerate(reversed(stack)) if value is _MARK)
            items = tuple(stack[at + 1 :])
            del stack[at:]
            stack.append(items)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memory[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memory[len(self._memory)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memory[argument])
        elif name == "REDUCE":
            called, arguments = self._taken(2)
            stack.append(_called(called, arguments))
        elif name == "BUILD":
            target, state = self._taken(2)
            stack.append(_built(target, state))
        else:
            raise _OtherPickleError(f"with the opcode {name}")

    def _taken(self, count: int) -> list[Any]:
        """The topmost values, off the stack."""
        if len(self.stack) < count:
            raise _OtherPickleError("that takes more from its stack than it put there")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken


def _called(called: Any, arguments: Any) -> Any:
    """What one of numpy's three calls gives. Raises _OtherPickleError for any other."""
    name = called.text if isinstance(called, _Name) else type(called).__name__
    if name == ENCODE and isinstance(arguments, tuple) and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin1")
    if name == DTYPE and isinstance(arguments, tuple) and arguments[1:] in ((False, True), (0, 1)):
        return _Dtype(arguments[0])
    if name in RECONSTRUCT and arguments == (_Name(NDARRAY), (0,), b"b"):
        return _Array()
    raise _OtherPickleError(f"that calls {name.replace(' ', '.')}")


def _built(target: Any, state: Any) -> Any:
    """A described dtype or array with its state. Raises _OtherPickleError for anything else."""
    if isinstance(target, _Dtype) and isinstance(state, tuple) and len(state) >= 2:
        target.order = state[1]
    elif isinstance(target, _Array):
        target.state = state
    else:
        raise _OtherPickleError("that sets the state of something else")
    return target


def _filled(found: _Array) -> np.ndarray:
    """The array of its state: version, shape, dtype, whether in Fortran's order, bytes."""
    state = found.state
    if not isinstance(state, tuple) or len(state) != 5:
        raise _OtherPickleError("of an array without its state")
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, _Dtype) or dtype.code not in KINDS or dtype.order not in ("<", ">"):
        raise _OtherPickleError(f"of an array of {getattr(dtype, 'code', dtype)!r} numbers")
    sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not sizes or len(shape) > MAX_DIMENSIONS or not isinstance(content, bytes):
        raise _OtherPickleError(f"of an array of shape {shape!r}")
    kind = np.dtype(dtype.order + dtype.code)
    if len(content) != math.prod(shape) * kind.itemsize:
        raise _OtherPickleError(f"of an array of shape {shape} and {len(content)} bytes")
    flat = np.frombuffer(content, kind)
    array = flat.reshape(shape[::-1]).T if fortran is True else flat.reshape(shape)
    return np.ascontiguousarray(array, np.float64)
