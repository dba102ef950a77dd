"""Bytes sent between devices: of programs written out here, and of one that this machine compiles for eight."""

import subprocess
import sys

import pytest

from chunkwise.train.exchanges import bytes_sent

ENTRY = "ENTRY %main (p: f32[4,8]) -> f32[32,8] {\nBODY\n}\n"
GROUPS = "channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        (f"  %g = f32[32,8]{{1,0}} all-gather(%p), {GROUPS}", "all-gather", 32 * 8 * 4 * 7 / 8),
        (f"  %g = bf16[32,8]{{1,0}} all-gather(%p), {GROUPS}", "all-gather", 32 * 8 * 2 * 7 / 8),
        (f"  %r = f32[4,8]{{1,0}} all-reduce(%p), {GROUPS}, to_apply=%add", "all-reduce", 2 * 4 * 8 * 4 * 7 / 8),
        (f"  %r = (f32[4]{{0}}, f32[8]{{0}}) all-reduce(%p, %q), {GROUPS}", "all-reduce", 2 * 12 * 4 * 7 / 8),
        (f"  %s = f32[4,8]{{1,0}} reduce-scatter(%p), {GROUPS}", "reduce-scatter", 4 * 8 * 4 * 7),
        ("  %s = f32[4,8]{1,0} reduce-scatter(%p), replica_groups=[4,2]<=[8]", "reduce-scatter", 4 * 8 * 4 * 1),
        ("  %c = f32[4,8]{1,0} collective-permute(%p), source_target_pairs={{0,1}}", "collective-permute", 4 * 8 * 4),
        (
            f"  %s = (f32[4,8]{{1,0}}, f32[32,8]{{1,0}}) all-gather-start(%p), {GROUPS}",
            "all-gather",
            32 * 8 * 4 * 7 / 8,
        ),
        (f"  %s = f32[4,8]{{1,0}} all-reduce-start(%p), {GROUPS}", "all-reduce", 2 * 4 * 8 * 4 * 7 / 8),
        (
            "  %c = (bf16[4,8]{1,0}, bf16[4,8]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p), "
            "source_target_pairs={{0,1}}",
            "collective-permute",
            4 * 8 * 2,
        ),
        ("  %s = f32[4,8]{1,0} add(%p, %p)", None, 0),
    ],
)
def test_an_exchange_sends_what_the_others_lack(line: str, kind: str | None, size: float):
    assert bytes_sent(ENTRY.replace("BODY", line)) == ({} if kind is None else {kind: pytest.approx(size)})


def test_in_a_loop_it_is_sent_as_often_as_the_loop_runs():
    body = f"%body (q: f32[4,8]) -> f32[4,8] {{\n  %r = f32[4,8]{{1,0}} all-reduce(%q), {GROUPS}\n}}\n"
    loop = '  %w = f32[4,8] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"18"}}'
    assert bytes_sent(body + ENTRY.replace("BODY", loop)) == {"all-reduce": 18 * 2 * 4 * 8 * 4 * 7 / 8}


CONDITION = """%c (q: (s32[], f32[4,8])) -> pred[] {
  %limit.1 = s32[]{:T(128)} constant(7)
  %q = (s32[]{:T(128)}, f32[4,8]) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%q), index=0
  %other = s32[]{:T(128)} get-tuple-element(%q), index=1
  ROOT %lt = pred[]{:T(512)} compare(%count, %limit.1), direction=LT
}
"""


def test_a_loop_whose_condition_alone_knows_its_length():
    """As the compiler for TPUs writes it; the loop over updates ends at a number that comes in."""
    body = f"%body (q: f32[4,8]) -> f32[4,8] {{\n  %r = f32[4,8]{{1,0}} all-reduce(%q), {GROUPS}\n}}\n"
    program = CONDITION + body + ENTRY.replace("BODY", "  %w = f32[4,8] while(%p), condition=%c, body=%body")
    once = 2 * 4 * 8 * 4 * 7 / 8
    assert bytes_sent(program) == {"all-reduce": 7 * once}
    assert bytes_sent(program.replace("(%count, %limit.1)", "(%count, %other)")) == {"all-reduce": once}
    twice = program.replace("(%count, %limit.1)", "(%count, %other)").replace(
        "\n  %w", "\n  %v = f32[4,8] while(%p), condition=%c, body=%body\n  %w"
    )
    with pytest.raises(ValueError, match="found 2 unknown"):
        bytes_sent(twice)


TWICE = """%cond (q: (f32[4,8], u32[])) -> pred[] {
  %seven = u32[]{:T(128)} constant(7)
  %q = (f32[4,8], u32[]{:T(128)}) parameter(0)
  %i = u32[]{:T(128)} get-tuple-element(%q), index=1
  ROOT %lt = pred[]{:T(512)} compare(%i, %seven), direction=LT
}

%body (q: (f32[4,8], u32[])) -> (f32[4,8], u32[]) {
  %one = u32[]{:T(128)} constant(1)
  %two = u32[]{:T(128)} constant(2)
  %q.1 = (f32[4,8], u32[]{:T(128)}) parameter(0)
  %x = f32[4,8] get-tuple-element(%q.1), index=0
  %i.1 = u32[]{:T(128)} get-tuple-element(%q.1), index=1
  %other = u32[]{:T(128)S(6)} add(%i.1, %one)
  %next = u32[]{:T(128)} add(%i.1, %two)
  %c = f32[4,8]{1,0} collective-permute(%x), source_target_pairs={{0,1}}
  ROOT %t = (f32[4,8], u32[]{:T(128)}) tuple(%c, %next)
}

"""


def test_a_loop_that_goes_up_by_two():
    """As the compiler for TPUs makes them of a product and the exchange of its operand, two turns in one."""
    program = TWICE + ENTRY.replace("BODY", "  %w = (f32[4,8], u32[]) while(%t), condition=%cond, body=%body")
    once = 4 * 8 * 4
    assert bytes_sent(program) == {"collective-permute": 4 * once}
    assert bytes_sent(program.replace("tuple(%c, %next)", "tuple(%c, %other)")) == {"collective-permute": 7 * once}
    assert bytes_sent(program.replace("tuple(%c, %next)", "tuple(%c, %fused)")) == {"collective-permute": 7 * once}


PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from chunkwise.train.exchanges import bytes_sent
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("d",), ()))
x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=split)
print(bytes_sent(jax.jit(lambda x: x, out_shardings=whole).lower(x).compile().as_text()))
print(bytes_sent(jax.jit(lambda x: x.sum(0), out_shardings=whole).lower(x).compile().as_text()))
"""


def test_what_the_compiler_makes_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    gathered, summed = done.stdout.splitlines()
    assert gathered == str({"all-gather": 64 * 32 * 4 * 7 / 8})
    assert summed == str({"all-reduce": 2 * 32 * 4 * 7 / 8})
