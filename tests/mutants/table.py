"""What is printed of the verdicts: a table of areas, and the mutants that survived."""

import dataclasses
from pathlib import Path
from typing import Any

from tests.mutants.mutant import Mutant
from tests.mutants.runner import Verdict


@dataclasses.dataclass(frozen=True)
class Line:
    """A mutant, what the tests said, and why it may survive if it may."""

    mutant: Mutant
    verdict: Verdict
    accepted: dict[str, str] | None

    @property
    def equivalent(self) -> bool:
        """Whether it survived and changes nothing that could be seen."""
        return not self.verdict.killed and self.accepted is not None and self.accepted["reason"] == "equivalent"

    def entry(self) -> dict[str, Any]:
        """JSON values."""
        return (
            {"name": self.mutant.name}
            | dataclasses.asdict(self.mutant)
            | dataclasses.asdict(self.verdict)
            | {"accepted": self.accepted}
        )


def table_of(lines: list[Line], at_least: float) -> tuple[str, bool]:
    """A row an area and one of all, and whether every area has enough of its mutants killed.

    Mutants that survived and are equivalent are not counted, in a column of their own.
    """
    names = list(dict.fromkeys(line.mutant.area for line in lines))
    rows = ["| area | by hand | drawn | killed | of | % | equivalent | timeouts |", "|---|---|---|---|---|---|---|---|"]
    enough = True
    for name in [*names, "all"]:
        here = [line for line in lines if name in (line.mutant.area, "all")]
        counted = [line for line in here if not line.equivalent]
        killed = sum(line.verdict.killed for line in counted)
        percent = 100 * killed / max(len(counted), 1)
        enough &= percent >= at_least
        shares = [_share([line for line in counted if line.mutant.origin == origin]) for origin in ("by_hand", "drawn")]
        timeouts = sum(line.verdict.by == "timeout" for line in here)
        cells = [name, *shares, killed, len(counted), f"{percent:.1f}", len(here) - len(counted), timeouts]
        rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(rows), enough


def _share(lines: list[Line]) -> str:
    """Killed of all."""
    return f"{sum(line.verdict.killed for line in lines)} of {len(lines)}"


def survivors(lines: list[Line], root: Path) -> list[str]:
    """Those that survived: without a reason first, then the accepted ones with theirs."""
    found = sorted((line for line in lines if not line.verdict.killed), key=lambda line: line.accepted is not None)
    texts = []
    for line in found:
        reason = "survived" if line.accepted is None else f"{line.accepted['reason']}: {line.accepted['why']}"
        texts.append(f"{line.mutant.lines(root)}\n    {reason}")
    return texts
