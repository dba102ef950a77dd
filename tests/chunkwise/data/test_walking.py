"""Walking through records: in their order, whoever reads them; one that kills its readers costs its line."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable

import pytest

from chunkwise.data.walking import crash, walk
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError


@dataclasses.dataclass(frozen=True)
class Squares:
    count: int
    deadly: int | None = None
    raising: int | None = None
    refused: int | None = None

    def __len__(self) -> int:
        return self.count

    def open(self) -> Callable[[int], str]:
        return self._look_at

    def _look_at(self, number: int) -> str:
        if number == self.deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == self.raising:
            raise ValueError("odd\nbytes")
        if number == self.refused:
            raise DataError("not this one")
        time.sleep(0.3 if number == 0 else 0)  # the first is done last
        return str(number**2)

    def crashed(self, number: int, found: str) -> str:
        return str(crash("a.bin", found, episode=number))


def test_answers_are_in_the_order_of_the_records() -> None:
    for workers in (None, 3):
        assert list(walk(Squares(5), Hands(workers=workers))) == ["0", "1", "4", "9", "16"]
    assert list(walk(Squares(0), Hands(workers=2))) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_record_whose_reader_raises_costs_its_line(workers: int) -> None:
    found = list(walk(Squares(4, raising=1), Hands(workers=workers)))
    line = "episode 1, a.bin: expected a record that its reader survives, found ValueError: odd bytes"
    assert found == ["0", line, "4", "9"]
    with pytest.raises(DataError, match="not this one"):
        list(walk(Squares(3, refused=2), Hands(workers=workers)))


@pytest.mark.parametrize("deadly", [1, 3])
def test_a_record_that_kills_its_readers_costs_its_line(deadly: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(walk(Squares(4, deadly=deadly), Hands(workers=2)))
    line = f"episode {deadly}, a.bin: expected a record that its reader survives, found the death of 3 processes"
    assert found[deadly] == f"{line} that read it"
    assert [text for number, text in enumerate(found) if number != deadly] == [
        str(n**2) for n in range(4) if n != deadly
    ]
    said = capsys.readouterr()
    assert said.err.count(f"a worker died (killed by SIGSEGV); record {deadly} is done again") == 2
    assert said.out == ""
