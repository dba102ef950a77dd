"""A mutant: one passage of one file, and what stands there instead."""

import dataclasses
import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BY_HAND = HERE / "by_hand"
ACCEPTED = HERE / "accepted.toml"
REASONS = ("equivalent", "speed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault."""

    area: str
    """What the fault is in: a key of areas.toml."""
    file: str
    """Path from the root of the repository."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    """Stands there instead."""
    why: str
    """What goes wrong, or which operator drew it."""
    origin: str
    """`by_hand` or `drawn`."""

    @property
    def name(self) -> str:
        """Area and six digits of a hash of the change: the same as long as file, old and new are the same."""
        return f"{self.area}-{hashlib.sha256(repr((self.file, self.old, self.new)).encode()).hexdigest()[:6]}"

    @property
    def change(self) -> tuple[str, str, str]:
        """What two mutants must not share."""
        return self.file, self.old, self.new

    def applied(self, source: str) -> str:
        """The file's text with the fault; ValueError if it does not fit or does not compile."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: `old` occurs {count} times in {self.file}, expected once:\n{self.old}")
        changed = source.replace(self.old, self.new)
        if changed == source:
            raise ValueError(f"{self.name}: `new` is `old` ({self.file})")
        try:
            compile(changed, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} does not compile with `new`: {error}") from None
        return changed

    def lines(self, root: Path) -> str:
        """File and line, and the lines that differ, for a person."""
        source = (root / self.file).read_text()
        start = source.find(self.old)
        number = source.count("\n", 0, start) + 1
        old, new = self.old.split("\n"), self.new.split("\n")
        while old and new and old[0] == new[0]:
            old, new, number = old[1:], new[1:], number + 1
        while old and new and old[-1] == new[-1]:
            old, new = old[:-1], new[:-1]
        changed = [f"    - {line.strip()}" for line in old] + [f"    + {line.strip()}" for line in new]
        return "\n".join([f"{self.name}  {self.file}:{number}  {self.why}", *changed])


def by_hand(folder: Path = BY_HAND) -> list[Mutant]:
    """The mutants that people wrote: <area>.toml, with file, old, new and why each; ValueError at another key."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("mutant", []):
            if set(entry) != {"file", "old", "new", "why"}:
                raise ValueError(f"{path}: a mutant has the keys {sorted(entry)}; expected file, old, new, why")
            mutants.append(Mutant(area=path.stem, origin="by_hand", **entry))
    return mutants


def accepted(path: Path = ACCEPTED) -> dict[str, dict[str, str]]:
    """Survivors that need no test, by name: `reason` (equivalent, speed) and `why`.

    A survivor that is equivalent changes nothing that anybody could see, and does not count; one that costs only speed
    counts as survived, but is listed apart.
    """
    entries = tomllib.loads(path.read_text()) if path.exists() else {}
    for name, entry in entries.items():
        if set(entry) != {"reason", "why"} or entry["reason"] not in REASONS:
            raise ValueError(f"{path}: [{name}] needs `reason`, one of {REASONS}, and `why`")
    return entries


def distinct(mutants: Iterable[Mutant]) -> list[Mutant]:
    """The first of each change."""
    return list({mutant.change: mutant for mutant in reversed(list(mutants))}.values())[::-1]
