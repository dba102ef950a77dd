"""Runs tests against mutants: copies of the tree, one for each worker, in which one fault at a time is put."""

import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.mutants.mutant import HERE, Mutant

PHASES = ("not slow", "slow")
"""Tests marked slow come last: most faults are seen before. Those marked long are left out."""
QUICK = 1.0
"""Seconds; slower tests come after the quick ones of all files."""
UNKNOWN = 60.0
"""Seconds that are taken for a file of which nothing is known."""
PASSED, NOT_FOUND, NO_TESTS = 0, 4, 5  # pytest's exit codes
SOURCES = ("chunkwise", "qchunk", "openpi_ript", "driving", "configs", "launch.py", "tests")


@dataclasses.dataclass(frozen=True)
class Timing:
    """What a test file does on the unchanged program."""

    seconds: float
    slow: bool
    """Whether it has tests marked slow."""
    tests: dict[str, float]
    """Seconds of each test."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the tests said to a mutant."""

    killed: bool
    by: str
    """The first test that failed, or "timeout"; of one that survived the files that passed."""
    seconds: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """What pytest did."""

    code: int | str
    """Its exit code, or "timeout"."""
    seconds: float
    tests: dict[str, float]
    """Seconds of each test that ran."""
    log: str
    """What it printed."""


class Tree:
    """A copy of the files of a repository, and a worker that runs pytest in it."""

    def __init__(self, root: Path, files: list[str], folder: Path, programs: Path, preload: bool) -> None:
        """Copies and starts; `programs` are compiled programs to begin with."""
        self.root, self.folder, self._changes = root, folder / "tree", 0
        for file in files:
            goal = self.folder / file
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / file, goal, follow_symlinks=False)
        self.programs = folder / "programs"
        self._seed, self._log, self._temporary = programs, folder / "log", folder / "tmp"
        self._refill()
        self._marked = bool(re.search(r'"slow\b', (root / "pyproject.toml").read_text()))
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "OPENBLAS_NUM_THREADS": "1",  # its threads would not live through a fork
        }
        command = [sys.executable, str(HERE / "worker.py"), *(["--preload"] if preload else [])]
        pipe = subprocess.PIPE
        self._worker = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def _refill(self) -> None:
        """Begins with the compiled programs that are known to be whole; a worker has a folder of its own, since jax
        writes there without a lock."""
        shutil.rmtree(self.programs, ignore_errors=True)
        _share(self._seed, self.programs)

    def pytest(self, files: Iterable[str], phase: str, limit: float, order: dict[str, tuple[int, float]]) -> Answer:
        """Runs files until the first failure, by group of `order`, then file, then seconds."""
        if phase == "slow" and not self._marked:
            return Answer(NO_TESTS, 0.0, {}, "")
        arguments = ["--typecheck", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
        arguments += ["-m", f"{phase} and not long"] if self._marked else []
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # jaxtyping is there before pytest
        arguments += [f"--basetemp={self._temporary}", *files]
        request = {"arguments": arguments, "log": str(self._log), "limit": limit, "order": order}
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker of {self.folder} ended with {self._worker.wait()}")
        found = json.loads(answer)
        if found["code"] == "timeout":  # perhaps in the middle of writing a program
            self._refill()
        return Answer(**found, log=self._log.read_text(errors="replace"))

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The mutant's file with its fault. Its time differs from all before, so that no stale bytecode is read."""
        path = self.folder / mutant.file
        before = path.read_text()
        self._changes += 1
        try:
            path.write_text(mutant.applied(before))
            _set_time(path, self._changes)
            yield
        finally:
            path.write_text(before)
            self._changes += 1
            _set_time(path, self._changes)

    def close(self) -> None:
        """Ends the worker and what it runs."""
        self._worker.terminate()
        self._worker.communicate()


class Runner:
    """Workers, and what is known from earlier runs."""

    def __init__(
        self,
        root: Path,
        cache: Path,
        workers: int,
        say: Callable[[str], None] = print,
        *,
        files: list[str] | None = None,
        preload: bool = True,
    ) -> None:
        """Copies the tree for each worker.

        Args:
          root: Of the repository that is tested.
          cache: Keeps verdicts, times and compiled programs between runs, in `mutants` and `programs`.
          workers: Mutants that are tested at once.
          say: Gets a line for each result.
          files: What to copy; what git knows or does not ignore, if it is not given.
          preload: Whether tests run in forks of a process that has imported jax.
        """
        self.root, self._say = root, say
        self._programs = cache / "programs"
        self._programs.mkdir(parents=True, exist_ok=True)
        (cache / "mutants").mkdir(exist_ok=True)
        self._known = _Log(cache / "mutants" / "verdicts.jsonl")
        self._times = _Log(cache / "mutants" / "times.jsonl")
        self._files = _files_of(root) if files is None else files
        self._digests = {file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in self._files}
        self._temporary = tempfile.TemporaryDirectory(prefix="mutants-")
        self._sound: set[str] = set()
        self._pool = ThreadPoolExecutor(workers)
        self._trees: queue.Queue[Tree] = queue.Queue()
        self._all: list[Tree] = []
        for i in range(workers):
            self._all.append(Tree(root, self._files, Path(self._temporary.name) / str(i), self._programs, preload))
            self._trees.put(self._all[-1])

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        for tree in self._all:
            tree.close()
        self._pool.shutdown(cancel_futures=True)
        self._temporary.cleanup()

    def baseline(self, tests: Iterable[str], *, trusted: bool = False) -> dict[str, Timing]:
        """Times of test files on the unchanged program; SystemExit if one of them fails.

        Args:
          tests: Test files.
          trusted: Run none, and believe that they pass; for times take those of an earlier version of the program.
        """
        program = self._hash(*(file for file in self._files if file.startswith(SOURCES) and "/test_" not in file))
        timings, failures = {}, []

        def measure(test: str) -> None:
            key, loose = f"{test} {program} {self._hash(test)}", f"{test} {self._hash(test)}"
            if found := self._times.get(loose if trusted else key):
                timings[test] = Timing(**found)
                return
            if trusted:
                timings[test] = Timing(UNKNOWN, True, {})
                return
            with self._tree() as tree:
                answers = [tree.pytest([test], phase, 1200, {}) for phase in PHASES]
            for phase, answer in zip(PHASES, answers, strict=True):
                if answer.code not in (PASSED, NO_TESTS):
                    failures.append(f"{test} ({phase}, {answer.code}):\n{answer.log[-3000:]}")
                    return
            seconds = sum(answer.seconds for answer in answers)
            tests = answers[0].tests | answers[1].tests
            timings[test] = Timing(seconds, answers[1].code == PASSED, tests)
            self._say(f"{seconds:6.1f} s  {test} passes on the unchanged program")
            for name in (key, loose):
                self._times.put(name, dataclasses.asdict(timings[test]))

        list(self._pool.map(measure, tests))
        if failures:
            raise SystemExit("\n".join([*failures, "nothing can be said of mutants before the tests pass without"]))
        for tree in self._all:  # each begins with what all have compiled
            _share(tree.programs, self._programs)
        for tree in self._all:
            _share(self._programs, tree.programs)
        return timings

    def judge(
        self,
        work: list[tuple[Mutant, list[str]]],
        timings: dict[str, Timing],
        *,
        fresh: bool = False,
        spare: float = 30,
    ) -> dict[Mutant, Verdict]:
        """The verdict on each mutant, given the test files that should see it.

        Tests that take four times as long as without it and `spare` seconds more have noticed it too.
        """
        verdicts = {}

        def one(task: tuple[Mutant, list[str]]) -> None:
            mutant, tests = task
            known = None if fresh else self._lookup(mutant, tests)
            verdicts[mutant] = verdict = known or self._run(mutant, tests, timings, spare)
            if known is None:
                self._keep(mutant, tests, verdict)
                said = f"{'killed  ' if verdict.killed else 'SURVIVED'} {verdict.seconds:5.1f} s"
                self._say(f"{len(verdicts):4d}/{len(work)} {said}  {mutant.name}  {verdict.by}")

        list(self._pool.map(one, work))
        return verdicts

    def _run(self, mutant: Mutant, tests: list[str], timings: dict[str, Timing], spare: float) -> Verdict:
        """Runs the files that should see a mutant, the one named after its file and quick ones first."""
        first = tests[0]
        order = sorted(tests, key=lambda test: timings[test].seconds / (4 if test == first else 1))
        limit = 4 * sum(timings[test].seconds for test in tests) + spare
        seconds_of = {test: seconds for file in tests for test, seconds in timings[file].tests.items()}
        ranks = {test: (int(seconds > QUICK), seconds) for test, seconds in seconds_of.items()}
        total = 0.0
        for phase in PHASES:
            files = order if phase == "not slow" else [test for test in order if timings[test].slow]
            if not files:
                continue
            with self._tree() as tree:
                with tree.changed(mutant):
                    answer = tree.pytest(files, phase, limit, ranks)
                total += answer.seconds
                if answer.code == "timeout":
                    return Verdict(True, "timeout", total)
                if answer.code not in (PASSED, NO_TESTS):
                    by = _first_failure(answer.log) or f"exit code {answer.code}"
                    self._require_sound(tree, by, phase)
                    return Verdict(True, by, total)
        return Verdict(False, " ".join(order), total)

    def _require_sound(self, tree: Tree, test: str, phase: str) -> None:
        """SystemExit if a test that saw a fault fails by itself without one: it may need what tests before it leave,
        and mutants are given the quick ones first."""
        if "::" not in test or test in self._sound:
            return
        answer = tree.pytest([test], phase, 1200, {})
        if answer.code == NOT_FOUND:  # the name of its parameters holds a bracket
            answer = tree.pytest([test.partition("[")[0]], phase, 1200, {})
        if answer.code not in (PASSED, NO_TESTS):
            raise SystemExit(
                f"{test} fails by itself on the unchanged program, so it cannot judge:\n{answer.log[-3000:]}"
            )
        self._sound.add(test)

    @contextlib.contextmanager
    def _tree(self) -> Iterator[Tree]:
        """A tree that nobody else uses."""
        tree = self._trees.get()
        try:
            yield tree
        finally:
            self._trees.put(tree)

    def _hash(self, *files: str) -> str:
        """Of the contents of files."""
        return hashlib.sha256(repr([(file, self._digests.get(file)) for file in files]).encode()).hexdigest()[:16]

    def _key(self, mutant: Mutant, tests: Iterable[str]) -> str:
        """Of a verdict: the change, the file, the tests."""
        change = hashlib.sha256(repr(mutant.change).encode()).hexdigest()[:16]
        return f"{change} {self._hash(mutant.file, 'tests/conftest.py', *tests)}"

    def _lookup(self, mutant: Mutant, tests: list[str]) -> Verdict | None:
        """What is known of a mutant: a kill as long as the killing file is the same, a survival as long as all are."""
        for subset in [[test] for test in tests] + [tests]:
            found = self._known.get(self._key(mutant, subset))
            if found and (found["killed"] or subset == tests):
                return Verdict(**found)
        return None

    def _keep(self, mutant: Mutant, tests: list[str], verdict: Verdict) -> None:
        """Remembers a verdict."""
        killer = verdict.by.split("::")[0]
        subset = [killer] if verdict.killed and killer in tests else tests
        self._known.put(self._key(mutant, subset), dataclasses.asdict(verdict))


class _Log:
    """JSON values by key in a file to which lines are added, so that a run that was broken off goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._values: dict[str, Any] = dict(json.loads(line) for line in lines)

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        self._values[key] = value
        with self._path.open("a") as file:
            file.write(json.dumps([key, value]) + "\n")


def _share(source: Path, goal: Path) -> None:
    """Puts the files of one folder into another that lack there; as links where that can be, since none is changed."""
    goal.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in goal.iterdir()}
    for path in source.iterdir():
        if path.name not in there:
            try:
                os.link(path, goal / path.name)
            except OSError:  # another file system
                shutil.copy2(path, goal / path.name)


def _files_of(root: Path) -> list[str]:
    """The files of a checkout, those that are not committed yet too."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [file for file in found if (root / file).is_file()]


def _set_time(path: Path, number: int) -> None:
    """Gives a file the time `number` minutes after some moment."""
    os.utime(path, (1_000_000_000 + 60 * number, 1_000_000_000 + 60 * number))


def _first_failure(log: str) -> str | None:
    """The test that failed first, or the file that could not be collected."""
    found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\])?)", log, re.MULTILINE)
    return found[1] if found else None
