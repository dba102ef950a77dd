"""The search for what fits, against a machine whose memory and speed are a formula."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.experiment import MeshConfig
from chunkwise.config.load import load
from chunkwise.errors import ConfigError, MismatchError
from chunkwise.train.find import MOST, search
from configs.driving import waypoints
from configs.openpi_ript import debug


@dataclasses.dataclass(frozen=True)
class Made:
    total: int
    capacity: float | None
    bounds: dict[str, float]

    @property
    def fits(self) -> bool:
        return self.capacity is None or self.total <= self.capacity


COSTS = {"nothing": (3_000, 1.3), "attention": (4_000, 1.25), "products": (8_000, 1.1), "inputs_on_host": (2_000, 1.4)}
"""Bytes of a row of a device, and seconds of a row, by what is kept of layers; everything kept: 10 kB, 1 s."""


class Machine:
    """State 800 kB, split by fsdp, and rows as `COSTS` says."""

    def __init__(self, capacity: float, devices: int = 8) -> None:
        self.capacity, self.devices = capacity, devices
        self.asked: list[tuple[int, str | None, int, int]] = []

    def __call__(self, config: Any) -> Made:
        mesh, train, model = config.mesh, config.train, config.model
        kept = model.remat_policy if model.remat else None
        self.asked.append((mesh.fsdp, kept, train.batch_size, train.grad_accum_steps))
        of_row, seconds_of_row = (10_000, 1.0) if kept is None else COSTS[kept]
        rows = train.batch_size // train.grad_accum_steps // self.devices
        total = 800_000 // mesh.fsdp + rows * of_row
        if total > 2 * self.capacity:
            raise MismatchError("RESOURCE_EXHAUSTED")
        seconds = train.batch_size * seconds_of_row + train.grad_accum_steps * (3 + mesh.fsdp)
        return Made(total, self.capacity, {"products": seconds, "memory": 1.0})


def config(batch_size: int = 64) -> Any:
    found = debug.get_config()
    return dataclasses.replace(found, train=dataclasses.replace(found.train, batch_size=batch_size, grad_accum_steps=1))


def test_what_fits_is_found_for_each_way_the_fastest_first():
    machine = Machine(capacity=450e3)
    said: list[str] = []
    found = search(config(), 8, machine, said.append)
    by = {one.flags: one for one in found}
    # fsdp 1 needs 800 kB; rows of a device: (450 - 400) / 3 = 16.7, (450 - 100) / 10 = 35 and so on
    policy = "--model.remat --model.remat-policy "
    rows = {flags.replace("--mesh.fsdp ", "").replace(policy, ""): one.rows for flags, one in by.items()}
    assert rows == {
        "2 inputs_on_host": 8 * 16,
        "2 nothing": 8 * 16,
        "2 attention": 8 * 8,
        "2 products": 8 * 4,
        "2 --model.no-remat": 8 * 4,
        "4 inputs_on_host": 8 * 64,
        "4 nothing": 8 * 64,
        "4 attention": 8 * 32,
        "4 products": 8 * 16,
        "4 --model.no-remat": 8 * 16,
        "8 inputs_on_host": 8 * 128,
        "8 nothing": 8 * 64,
        "8 attention": 8 * 64,
        "8 products": 8 * 32,
        "8 --model.no-remat": 8 * 32,
    }
    assert by["--mesh.fsdp 2 --model.remat --model.remat-policy nothing"].total == 400_000 + 16 * 3_000
    assert by["--mesh.fsdp 2 --model.no-remat"].parts == 2, "64 rows, of which 32 fit at a time"
    assert by["--mesh.fsdp 4 --model.no-remat"].parts == 1
    assert [one.seconds for one in found] == sorted(one.seconds or 0 for one in found)
    assert found[0].flags == "--mesh.fsdp 4 --model.no-remat"
    assert found[0].seconds == 64 + 3 + 4
    assert len(said) == len(machine.asked)
    assert any("no room" in line or "too much" in line for line in said)
    assert len(machine.asked) == len(set(machine.asked)) < 65


def test_a_size_is_found_where_rows_add_little_at_first():
    asked: list[int] = []

    def measure(config: Any) -> Made:
        rows = config.train.batch_size
        asked.append(rows)
        return Made(max(600 + rows // 8, 500 + rows), 1_700, {"products": 1.0})

    found = search(plain(), 1, measure, lambda line: None)
    assert [(one.rows, one.total) for one in found] == [(1_024, 1_524)]
    assert asked == [1, 64, 4_096, 1_024]


def test_a_batch_goes_in_more_parts_where_their_sum_needs_room():
    """A row takes 10 of 1,000: 64 fit at a time, and in parts as many as the sum of their gradients leaves room for."""

    def measure(config: Any) -> Made:
        parts = config.train.grad_accum_steps
        return Made(config.train.batch_size // parts * 10 + (summed if parts > 1 else 0), 1_000, {"products": 2.0})

    found = {}
    for summed in (200, 500, 995):
        (found[summed],) = search(plain(128), 1, measure, lambda line: None)
    assert {summed: (one.rows, one.parts, one.seconds) for summed, one in found.items()} == {
        200: (64, 2, 2.0),
        500: (64, 4, 2.0),
        995: (64, None, None),
    }
    assert "own batch: does not fit in any number of parts" in str(found[995])


def test_ways_whose_batch_does_not_fit_come_last():
    def measure(config: Any) -> Made:
        wide = config.mesh.fsdp == 1 and config.train.grad_accum_steps > 1
        return Made(
            2_000 if wide else config.train.batch_size * 1_000 // config.train.grad_accum_steps // 64, 500, {"x": 1}
        )

    found = search(plain(64), 2, measure, lambda line: None)
    assert [(one.flags, one.parts) for one in found] == [("--mesh.fsdp 2", 2), ("--mesh.fsdp 1", None)]


def test_a_batch_has_an_end():
    found = search(config(8), 8, Machine(capacity=1e9), lambda line: None)
    assert {one.rows for one in found} == {MOST * 8}


def test_a_number_of_rows_that_another_setting_refuses_is_no_lack_of_memory():
    """Of the pool's two shards each has as many rows: one row at a time is refused, two are not."""
    base, _ = load(["--config", "configs/qchunk/debug.py", "--data.shards", "2"])
    asked: list[int] = []

    def measure(config: Any) -> Made:
        asked.append(config.train.batch_size)
        return Made(1_000, None, {})

    said: list[str] = []
    assert search(base, 1, measure, said.append)
    assert 1 not in asked
    assert any(line.startswith("--mesh.fsdp 1: 1 rows: refused: ") and "data.shards" in line for line in said)

    def refuses(config: Any) -> Made:
        raise ValueError("rows of a window")

    with pytest.raises(MismatchError, match="no way fits"):
        search(base, 1, refuses, said.append)
    assert any(line.endswith("refused: rows of a window") for line in said)


def test_where_nothing_fits_there_is_no_way():
    with pytest.raises(MismatchError, match="not even 8 rows at a time"):
        search(config(), 8, Machine(capacity=50e3), lambda line: None)


def test_a_batch_that_the_devices_cannot_share_is_refused():
    with pytest.raises(ConfigError, match=r"train\.batch_size is 12; expected a multiple of 8 devices"):
        search(config(12), 8, Machine(capacity=450e3), lambda line: None)


def plain(batch_size: int = 64) -> Any:
    """A config without recomputation."""
    found = waypoints.get_config()
    return dataclasses.replace(found, mesh=MeshConfig(), train=dataclasses.replace(found.train, batch_size=batch_size))


def test_a_config_without_recomputation_has_a_way_for_each_mesh():
    def measure(config: Any) -> Made:
        return Made(config.train.batch_size, 64.0, {})

    found = search(plain(8), 4, measure, lambda line: None)
    assert [one.flags for one in found] == ["--mesh.fsdp 1", "--mesh.fsdp 2", "--mesh.fsdp 4"]
    assert {(one.rows, one.seconds) for one in found} == {(64, None)}


def test_flags_of_a_way_are_those_of_the_command_line():
    found = search(config(), 8, Machine(capacity=450e3), lambda line: None)
    file = str(Path(debug.__file__))
    for one in found:
        read: Any = load(["--config", file, *one.flags.split()])[0]
        assert f"--mesh.fsdp {read.mesh.fsdp} " in one.flags
        kept = f"--model.remat --model.remat-policy {read.model.remat_policy}"
        assert one.flags.endswith(kept if read.model.remat else "--model.no-remat")
