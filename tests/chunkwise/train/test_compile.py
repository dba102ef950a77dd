"""What is told of a compiled program: what jax has to be told of a GPU's memory."""

from types import SimpleNamespace
from typing import Any

import pytest

from chunkwise.train.compile import Report, report_of, told_of_share
from chunkwise.train.targets import CHIPS, share_needed, target_named


@pytest.mark.parametrize(
    ("kind", "total", "share"),
    [
        ("l4", 18e9, None),  # three quarters of 24 GB
        ("l4", 18e9 + 1, 0.76),
        ("l4", 20e9, 0.84),  # 20 / 24 = 0.833
        ("l4", 24e9, 1.0),
        ("l4", 24e9 + 1, None),
        ("h100", 68e9, 0.85),
        ("v5e", 16e9, None),  # of 17.2 GB of a TPU, of which jax takes all
    ],
)
def test_the_share_of_a_gpu_that_a_program_needs(kind: str, total: float, share: float | None):
    assert share_needed(CHIPS[kind], total) == share


def test_no_share_of_a_device_that_nobody_knows():
    assert share_needed(None, 1e12) is None


def report(topology: str, total: int) -> Report:
    sizes = SimpleNamespace(
        argument_size_in_bytes=total,
        output_size_in_bytes=0,
        alias_size_in_bytes=0,
        temp_size_in_bytes=0,
        generated_code_size_in_bytes=0,
    )
    compiled = SimpleNamespace(memory_analysis=lambda: sizes, as_text=lambda: "")
    program: Any = SimpleNamespace(compiled=compiled, state={}, batch=0, flops={}, seconds=1.0)
    return report_of(program, config="c", topology=topology, what="update", target=target_named(topology))


@pytest.mark.parametrize(("topology", "told"), [("h100:1", True), ("h200:1", False), ("v5p:1x1x1", False)])
def test_a_program_that_jax_has_no_room_for_by_itself_says_so(topology: str, told: bool):
    """Kills: an update that fits by the report, and that jax refuses since it took three quarters of the card."""
    found = report(topology, 75 * 10**9)
    assert found.fits
    line = (
        "jax takes 0.75 of a GPU's memory by itself, in which this does not fit; run it with "
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.94 or more"
    )
    assert (line in str(found).splitlines()) is told
    assert ("MEM_FRACTION" in str(found)) is told


def test_the_ways_that_need_more_are_told_of_together():
    assert told_of_share(CHIPS["h100"], [60 * 10**9, 75 * 10**9]) == [
        "jax takes 0.75 of a GPU's memory by itself, 60.00 GB; for what is above, XLA_PYTHON_CLIENT_MEM_FRACTION of up "
        "to 0.94"
    ]
    assert told_of_share(CHIPS["h100"], [60 * 10**9]) == []
    assert told_of_share(None, [60 * 10**9]) == []
