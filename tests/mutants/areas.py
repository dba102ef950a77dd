"""The areas of areas.toml: which files belong to each, and which tests should see a fault in a file."""

import dataclasses
import hashlib
import tomllib
from pathlib import Path

from tests.mutants import draw
from tests.mutants.mutant import HERE, Mutant, by_hand, distinct

DEFAULT_SEED = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Area:
    """One area."""

    name: str
    drawn: int
    """Mutants that are drawn over its files."""
    files: dict[str, list[str]]
    """Test files by source file, both from the root of the repository."""


def areas(path: Path = HERE / "areas.toml") -> dict[str, Area]:
    """All areas by name, in the order of the file; `also` is none, but files that mutants by hand may change too."""
    found = {}
    for name, entry in tomllib.loads(path.read_text()).items():
        files = {file: [_test_file(test) for test in tests] for file, tests in entry.items() if file != "drawn"}
        found[name] = Area(name=name, drawn=entry.get("drawn", 0), files=files)
    return found


def mutants_of(area: Area, root: Path, *, seed: int = DEFAULT_SEED, only: str | None = None) -> list[Mutant]:
    """An area's mutants, by hand and drawn; `only` one of the two."""
    found = [mutant for mutant in by_hand() if mutant.area == area.name] if only != "drawn" else []
    if only != "by_hand":
        found += draw.draw(area.name, list(area.files), area.drawn, seed, root)
    return distinct(found)


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """At most `count` of each area and origin; a larger count takes the same ones and more."""
    ranked = sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
    taken: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in ranked:
        taken.setdefault((mutant.area, mutant.origin), []).append(mutant)
    kept = {mutant for group in taken.values() for mutant in group[:count]}
    return [mutant for mutant in mutants if mutant in kept]


def tests_of(mutant: Mutant, table: dict[str, Area], root: Path) -> list[str]:
    """Test files that should see a mutant, those named after its file first; DataError where there is none."""
    area = table[mutant.area]
    named = _test_file(mutant.file.removesuffix(".py"))
    listed = area.files.get(mutant.file)
    if listed is None:
        elsewhere = [other.files[mutant.file] for other in table.values() if mutant.file in other.files]
        listed = elsewhere[0] if elsewhere else []
        if not elsewhere and not (root / named).exists():
            listed = [test for tests in area.files.values() for test in tests]
    tests = [test for test in dict.fromkeys([named, *listed]) if (root / test).exists()]
    if not tests:
        raise ValueError(f"{mutant.name}: no test file for {mutant.file}; name some in {HERE / 'areas.toml'}")
    return tests


def _test_file(name: str) -> str:
    """tests/chunkwise/train/test_loop.py of chunkwise/train/loop."""
    folder, _, module = name.rpartition("/")
    return "/".join(filter(None, ("tests", folder, f"test_{module}.py")))
