"""The search for what fits, against a machine whose memory and speed are a formula."""

import dataclasses
from typing import Any

import pytest

from chunkwise.config.experiment import MeshConfig
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


class Machine:
    """State 800 kB, split by fsdp; a row of a device 3 kB with recomputation, 10 without, 1.3 times as fast."""

    def __init__(self, capacity: float, devices: int = 8) -> None:
        self.capacity, self.devices = capacity, devices
        self.asked: list[tuple[int, bool, int, int]] = []

    def __call__(self, config: Any) -> Made:
        mesh, train, remat = config.mesh, config.train, config.model.remat
        self.asked.append((mesh.fsdp, remat, train.batch_size, train.grad_accum_steps))
        rows = train.batch_size // train.grad_accum_steps // self.devices
        total = 800_000 // mesh.fsdp + rows * (3_000 if remat else 10_000)
        if total > 2 * self.capacity:
            raise MismatchError("RESOURCE_EXHAUSTED")
        seconds = train.batch_size * (1.3 if remat else 1.0) + train.grad_accum_steps * (3 + mesh.fsdp)
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
    rows = {flags.replace("--mesh.fsdp ", "").replace(" --model.remat", ""): one.rows for flags, one in by.items()}
    assert rows == {
        "2 True": 8 * 16,
        "2 False": 8 * 4,
        "4 True": 8 * 64,
        "4 False": 8 * 16,
        "8 True": 8 * 64,
        "8 False": 8 * 32,
    }
    assert by["--mesh.fsdp 2 --model.remat True"].total == 400_000 + 16 * 3_000
    assert by["--mesh.fsdp 2 --model.remat False"].parts == 2, "64 rows, of which 32 fit at a time"
    assert by["--mesh.fsdp 4 --model.remat False"].parts == 1
    assert [one.seconds for one in found] == sorted(one.seconds or 0 for one in found)
    assert found[0].flags == "--mesh.fsdp 4 --model.remat False"
    assert found[0].seconds == 64 + 3 + 4
    assert len(said) == len(machine.asked)
    assert any("no room" in line or "too much" in line for line in said)
    assert len(machine.asked) < 40


def test_a_batch_has_an_end():
    found = search(config(8), 8, Machine(capacity=1e9), lambda line: None)
    assert {one.rows for one in found} == {MOST * 8}


def test_where_nothing_fits_there_is_no_way():
    with pytest.raises(MismatchError, match="not even 8 rows at a time"):
        search(config(), 8, Machine(capacity=50e3), lambda line: None)


def test_a_batch_that_the_devices_cannot_share_is_refused():
    with pytest.raises(ConfigError, match=r"train\.batch_size is 12; expected a multiple of 8 devices"):
        search(config(12), 8, Machine(capacity=450e3), lambda line: None)


def test_a_config_without_recomputation_has_a_way_for_each_mesh():
    plain = waypoints.get_config()
    plain = dataclasses.replace(plain, mesh=MeshConfig(), train=dataclasses.replace(plain.train, batch_size=8))

    def measure(config: Any) -> Made:
        return Made(config.train.batch_size, 64.0, {})

    found = search(plain, 4, measure, lambda line: None)
    assert [one.flags for one in found] == ["--mesh.fsdp 1", "--mesh.fsdp 2", "--mesh.fsdp 4"]
    assert {(one.rows, one.seconds) for one in found} == {(64, None)}
