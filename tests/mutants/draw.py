"""Draws mutants: evenly over the functions of an area's files, and over the operators that fit in a function.

What is drawn depends on (seed, area) and on each function by itself, through hashes of names and text: a change of one
function leaves the mutants of the others as they are.
"""

import hashlib
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.operators import Edit, Source


def draw(area: str, files: list[str], count: int, seed: int, root: Path) -> list[Mutant]:
    """`count` different mutants of an area, fewer if its files hold fewer."""
    functions: dict[tuple[str, str], list[Mutant]] = {}
    for file in files:
        text = (root / file).read_text()
        source = Source(text)
        by_function: dict[str, list[Edit]] = {}
        for edit in source.edits():
            by_function.setdefault(edit.function, []).append(edit)
        for function, edits in by_function.items():
            functions[file, function] = _candidates(area, file, source, edits, seed)
    order = sorted(functions, key=lambda name: _hash(seed, area, *name))
    drawn: list[Mutant] = []
    turn = 0
    while len(drawn) < count and any(len(candidates) > turn for candidates in functions.values()):
        drawn += [functions[name][turn] for name in order if len(functions[name]) > turn]
        turn += 1
    return drawn[:count]


def _candidates(area: str, file: str, source: Source, edits: list[Edit], seed: int) -> list[Mutant]:
    """The mutants of one function in the order in which they are drawn: each operator once before one comes again."""
    ranked: list[tuple[int, str, Edit]] = []
    seen: dict[str, int] = {}
    for edit in sorted(edits, key=lambda edit: _hash(seed, area, file, edit.function, *_content(source, edit))):
        turn = seen[edit.operator] = seen.get(edit.operator, -1) + 1
        ranked.append((turn, _hash(seed, area, file, edit.function, edit.operator, turn), edit))
    mutants = []
    for _, _, edit in sorted(ranked, key=lambda entry: entry[:2]):
        mutant = _mutant(area, file, source, edit)
        try:
            mutant.applied(source.data.decode())
        except ValueError:  # an edit that does not compile, such as a statement left out that a loop needs
            continue
        mutants.append(mutant)
    return mutants


def _content(source: Source, edit: Edit) -> tuple[str, ...]:
    """What is changed, without where it stands: the lines, the operator, the place inside them, and the change."""
    start = source.data.rfind(b"\n", 0, edit.start) + 1
    end = source.data.find(b"\n", edit.end)
    lines = source.data[start:end].decode()
    return edit.operator, lines, str(edit.start - start), edit.new.decode()


def _mutant(area: str, file: str, source: Source, edit: Edit) -> Mutant:
    """The edit as whole lines that occur once in the file, so that it is found again where lines before it changed."""
    data = source.data
    start, end = data.rfind(b"\n", 0, edit.start) + 1, data.find(b"\n", edit.end)
    end = len(data) if end < 0 else end
    above = True
    while data.count(data[start:end]) > 1:
        if above and start > 0:
            start = data.rfind(b"\n", 0, start - 1) + 1
        elif end < len(data):
            end = data.find(b"\n", end + 1)
            end = len(data) if end < 0 else end
        above = not above
    new = data[start : edit.start] + edit.new + data[edit.end : end]
    where = edit.function or "module"
    return Mutant(
        area=area,
        file=file,
        old=data[start:end].decode(),
        new=new.decode(),
        why=f"{edit.operator} in {where}",
        origin="drawn",
    )


def _hash(*words: object) -> str:
    """A rank that is the same in every run."""
    return hashlib.sha256(repr(words).encode()).hexdigest()
