"""The digest against hashlib and numpy, and the checksums against every bit of every dtype."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from chunkwise.checkpoint.checksums import (
    checksums,
    digest,
    named_leaves,
    require_same_tree,
    tree_digest,
    tree_spec,
)
from chunkwise.checkpoint.file_sums import seal, verify_files
from chunkwise.errors import MismatchError
from chunkwise.state import TrainState

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
BIAS = np.array([1.5, -2.0], ml_dtypes.bfloat16)
POSITION = {"step": 7, "interaction": {"rounds": [1, 2]}}


def make_state(**changes: Any) -> TrainState:
    """A state whose parts all differ, with a leaf of each kind that training has."""
    parts: dict[str, Any] = {
        "step": jnp.int32(7),
        "params": {"dense": {"kernel": jnp.asarray(KERNEL), "bias": jnp.asarray(BIAS)}},
        "opt_state": {
            "count": jnp.int32(7),
            "mask": jnp.array([True, False]),
            "many": [jnp.int32(i) for i in range(11)],
        },
        "target": {"kernel": jnp.asarray(KERNEL + 1)},
        "ema": {"kernel": jnp.asarray(KERNEL - 1)},
    }
    return TrainState(**parts | changes)


def test_the_digest_is_the_documented_hash():
    """SHA-256 over sorted path, dtype, shape, bytes of the four parts, then the position as JSON with sorted keys."""
    hasher = hashlib.sha256()
    for name, value in (  # in the order of their names
        ("['ema']['kernel']", KERNEL - 1),
        ("['opt_state']['count']", np.array(7, np.int32)),
        *((f"['opt_state']['many'][{i}]", np.array(i, np.int32)) for i in (0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9)),
        ("['opt_state']['mask']", np.array([True, False])),
        ("['params']['dense']['bias']", BIAS),
        ("['params']['dense']['kernel']", KERNEL),
        ("['target']['kernel']", KERNEL + 1),
    ):
        kind = {"f": "float32", "i": "int32", "b": "bool"}.get(value.dtype.kind, "bfloat16")
        hasher.update(f"{name} {kind} {value.shape}".encode())
        hasher.update(value.tobytes())
    hasher.update(json.dumps({"interaction": {"rounds": [1, 2]}, "step": 7}).encode())
    assert digest(make_state(), POSITION) == hasher.hexdigest()
    assert digest(make_state(), POSITION) == "7ca43dec2bd3cf468f1015d230b44330da31fc7738361f8d38476ad1a113b3ee"


CHANGED: dict[str, dict[str, Any]] = {
    "params": {"params": {"dense": {"kernel": jnp.asarray(KERNEL).at[1, 2].add(1e-6), "bias": jnp.asarray(BIAS)}}},
    "params, second leaf": {"params": {"dense": {"kernel": jnp.asarray(KERNEL), "bias": jnp.asarray(BIAS[::-1])}}},
    "a name in params": {"params": {"dense": {"kernel": jnp.asarray(KERNEL), "offset": jnp.asarray(BIAS)}}},
    "a level in params": {"params": {"kernel": jnp.asarray(KERNEL), "bias": jnp.asarray(BIAS)}},
    "no bias": {"params": {"dense": {"kernel": jnp.asarray(KERNEL)}}},
    "opt_state, count": {"opt_state": {"count": jnp.int32(8), "mask": jnp.array([True, False])}},
    "opt_state, mask": {"opt_state": {"count": jnp.int32(7), "mask": jnp.array([True, True])}},
    "opt_state, no list": {"opt_state": {"count": jnp.int32(7), "mask": jnp.array([True, False])}},
    "opt_state, none": {"opt_state": {}},
    "target": {"target": {"kernel": jnp.asarray(KERNEL + 2)}},
    "target, none": {"target": {}},
    "ema": {"ema": {"kernel": jnp.asarray(KERNEL)}},
    "ema, none": {"ema": {}},
    "target and ema exchanged": {"target": {"kernel": jnp.asarray(KERNEL - 1)}, "ema": {"kernel": KERNEL + 1}},
    "dtype": {"target": {"kernel": jax.lax.bitcast_convert_type(jnp.asarray(KERNEL + 1), jnp.int32)}},
    "shape": {"target": {"kernel": jnp.asarray(KERNEL + 1).reshape(3, 2)}},
    "order of elements": {"target": {"kernel": jnp.asarray(KERNEL + 1)[:, ::-1]}},
    "transposed bytes": {"target": {"kernel": jnp.asarray((KERNEL + 1).T.reshape(2, 3))}},
}


def test_every_part_leaf_name_dtype_and_shape_changes_the_digest():
    found = {name: digest(make_state(**change), POSITION) for name, change in CHANGED.items()}
    found["as it is"] = digest(make_state(), POSITION)
    found["step of the position"] = digest(make_state(), POSITION | {"step": 8})
    found["rounds of the position"] = digest(make_state(), POSITION | {"interaction": {"rounds": [2, 1]}})
    assert len(set(found.values())) == len(found)


def test_the_order_in_which_dicts_were_made_does_not_matter():
    params = {"dense": {"bias": jnp.asarray(BIAS), "kernel": jnp.asarray(KERNEL)}}
    position = {"interaction": {"rounds": [1, 2]}, "step": 7}
    assert digest(make_state(params=params), position) == digest(make_state(), POSITION)


def test_leaves_of_an_optimiser_state_have_names_of_their_own():
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    params = {"a": jnp.ones(3), "b": jnp.zeros(2)}
    one = make_state(params=params, opt_state=optimiser.init(params))
    digests = {digest(one, {})}
    leaves, structure = jax.tree.flatten(one.opt_state)
    for i in range(len(leaves)):
        other = [leaf + jnp.ones((), leaf.dtype) if i == j else leaf for j, leaf in enumerate(leaves)]
        digests.add(digest(one.replace(opt_state=jax.tree.unflatten(structure, other)), {}))
    assert len(leaves) == 5  # count, and two moments of two leaves
    assert len(digests) == 1 + len(leaves)
    assert len(named_leaves(one.opt_state)) == len(leaves)


DTYPES = [
    np.dtype(name)
    for name in (
        *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", ml_dtypes.bfloat16, "float32", "float64", ml_dtypes.float8_e4m3fn),
    )
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_flipped_bit_of_an_array_changes_its_checksum(dtype: np.dtype):
    raw = np.random.default_rng(0).integers(0, 256, 7 * dtype.itemsize, np.uint8)
    with jax.enable_x64(True):

        def sum_of(data: np.ndarray) -> int:
            return checksums({"x": jnp.asarray(data.view(dtype))})[0]["['x']"]

        assert jnp.asarray(raw.view(dtype)).dtype == dtype, "or jax has halved it"
        whole = sum_of(raw)
        assert 0 <= whole < 2**32
        for bit in range(8 * len(raw)):
            flipped = raw.copy()
            flipped[bit // 8] ^= 1 << bit % 8
            assert sum_of(flipped) != whole, f"bit {bit}"


def test_every_flipped_truth_changes_the_checksum():
    values = np.array([True, False, False, True, True])
    sums = {checksums({"x": jnp.asarray(values ^ (np.arange(5) == i))})[0]["['x']"] for i in range(6)}
    assert len(sums) == 6


def test_a_checksum_is_the_sum_of_bits_times_odd_numbers():
    """Saves of earlier versions hold these sums."""
    bits = KERNEL.view(np.uint32).astype(object).ravel()
    expected = sum(int(b) * (2 * i + 1) for i, b in enumerate(bits)) % 2**32
    small = sum(int(b) * (2 * i + 1) for i, b in enumerate(BIAS.view(np.uint16)))
    negative = ((2**32 - 3) * 1 + 5 * 3) % 2**32
    tree = {"a": jnp.asarray(KERNEL), "b": jnp.asarray(BIAS), "c": jnp.array([-3, 5], jnp.int32)}
    sums, bad = checksums(tree)
    assert sums == {"['a']": expected, "['b']": small, "['c']": negative}
    assert bad == []


def test_exchanged_elements_change_the_checksum_and_empty_leaves_have_one():
    one, other = (checksums({"x": jnp.array(x)})[0] for x in ([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]))
    assert one != other
    assert checksums({"x": jnp.zeros((0, 3))})[0] == {"['x']": 0}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_leaves_that_are_not_finite_are_named(value: float):
    tree = {"good": jnp.ones(3), "bad": jnp.array([0.0, value]), "n": jnp.int32(3), "mask": jnp.array([True])}
    assert checksums(tree)[1] == ["['bad']"]


def test_the_spec_of_a_tree_is_dtype_and_shape_by_path():
    tree = {"a": {"b": jnp.asarray(BIAS)}, "c": jax.ShapeDtypeStruct((2, 3), jnp.float32), "d": jnp.int32(1)}
    assert tree_spec(tree) == {"['a']['b']": "bfloat16[2]", "['c']": "float32[2, 3]", "['d']": "int32[]"}


@pytest.mark.parametrize("shares", [1, 2, 3])
def test_each_file_of_a_save_is_read_by_one_process(shares: int, tmp_path: Path):
    """A file that changed is found by the process whose share it is, and by no other."""
    names = [f"{letter}.bin" for letter in "abcde"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    seal(tmp_path, lambda: False)
    assert [verify_files(tmp_path, share, shares) for share in range(shares)] == [""] * shares
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(b"other")
        found = [verify_files(tmp_path, share, shares) for share in range(shares)]
        assert [bool(one) for one in found] == [share == number % shares for share in range(shares)]
        assert name in found[number % shares]
        (tmp_path / name).write_bytes(name.encode())


def test_the_digest_of_a_tree_knows_values_names_and_types():
    one = {"a": np.zeros(2, np.float32)}
    others = [
        {"a": np.ones(2, np.float32)},
        {"b": one["a"]},
        {"a": np.zeros(2, np.int32)},
        {"a": np.zeros((2, 1), np.float32)},
    ]
    found = [tree_digest(tree) for tree in (one, *others)]
    assert len(set(found)) == 5
    assert {len(digest) for digest in found} == {64}


def test_another_tree_is_named_with_the_setting_that_makes_it():
    """complex64 is two numbers of 32 bits."""
    tree = {"a": jnp.zeros(2, jnp.float32), "b": jnp.zeros((), jnp.complex64)}
    saved = {"['a']": "float32[2]", "['b']": "complex64[]"}
    require_same_tree(saved, tree)
    with pytest.raises(
        MismatchError, match=r"another tree of arrays:\n  \['a'\]: saved 'float32\[3\]', now 'float32\[2\]'"
    ):
        require_same_tree(saved | {"['a']": "float32[3]"}, tree)
    setting = r"arrays \(JAX_ENABLE_X64 was on where it was made and is off here: turn it on\):"
    for wide in ("float64[2]", "uint64[]", "complex128[]"):
        with pytest.raises(MismatchError, match=setting):
            require_same_tree(saved | {"['a']": wide}, tree)
    other = {"a": np.zeros(2), "b": tree["b"]}
    with pytest.raises(MismatchError, match=r"X64 was off where it was made and is on here: turn it off"):
        require_same_tree(saved, other)
