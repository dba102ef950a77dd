import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util

from chunkwise.errors import ConfigError, DataError
from chunkwise.files.budget import LimitError
from openpi_ript.config.model import LoraConfig, Optimality
from openpi_ript.model import int8
from openpi_ript.model.pi0 import Pi0, encode, velocity
from openpi_ript.weights import (
    by_path,
    fit_to_model,
    fold_condition,
    load_openpi,
    load_safetensors,
    save_openpi,
    save_pytorch,
)
from tests.openpi_ript.toy_policy import (
    CHECKPOINTS,
    compiled,
    make_actions,
    make_model,
    make_observation,
    random_params,
    save_safetensors,
)


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Names, dtypes, shapes and bytes."""
    flat, flat_expected = by_path(got), by_path(expected)
    assert flat.keys() == flat_expected.keys()
    for name, leaf in flat_expected.items():
        assert (flat[name].dtype, flat[name].shape) == (leaf.dtype, leaf.shape), name
        assert np.asarray(flat[name]).tobytes() == np.asarray(leaf).tobytes(), name


def small_tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "PaliGemma": {"img": {"head": {"kernel": rng.normal(size=(3, 4)).astype(ml_dtypes.bfloat16)}}},
        "state_proj": {"bias": np.array([0.0, -0.0, np.float32(1e-38)], np.float32)},
    }


@pytest.mark.parametrize(("fixture", "folder"), CHECKPOINTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_openpis_checkpoints_load_and_save_unchanged(fixture: Path, folder: Path, tmp_path: Path) -> None:
    params = load_openpi(folder)
    with np.load(fixture) as recorded:
        prefix = f"{folder.parent.name}/params/"
        names = [name.removeprefix(prefix) for name in recorded.files if name.startswith(prefix)]
        flat = by_path(params)
        assert sorted(flat) == sorted(names)
        for name in names:
            np.testing.assert_array_equal(flat[name], recorded[prefix + name])
    for as_training_run in (False, True):
        out = tmp_path / str(as_training_run)
        save_openpi(params, out, as_training_run=as_training_run)
        assert_same(load_openpi(out), params)


def test_weights_in_eight_bits_are_written_whole(tmp_path: Path) -> None:
    """A channel of 127 and -64 steps of 1/2 is 63.5 and -32."""
    model = make_model("pi0")
    kept = int8.kept_in(jax.tree.map(np.asarray, random_params(model)), "int8")
    (*above, last) = next(name for name in by_path(kept) if name.endswith("/int8")).split("/")[:-1]
    matrix: Any = functools.reduce(lambda tree, name: tree[name], above, kept)[last]
    matrix["int8"] = np.zeros_like(matrix["int8"])
    matrix["step"] = np.full_like(matrix["step"], 0.5)
    matrix["int8"].flat[:2] = [127, -64]
    save_openpi(kept, tmp_path / "params")
    save_pytorch(kept, tmp_path / "model.safetensors", "openpi")
    by_openpi = load_openpi(tmp_path / "params")
    by_torch = load_safetensors(tmp_path / "model.safetensors", model)
    for found in (by_openpi, by_torch):
        assert not [name for name in by_path(found) if name.endswith(("/int8", "/step"))]
        fit_to_model(found, model, jax.random.key(0))
        written = by_path(found)["/".join([*above, last])]
        assert written.dtype == np.float32
        assert written.ravel()[:3].tolist() == [63.5, -32.0, 0.0]


def test_saved_tree_is_openpis_as_orbax_sees_it(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    tree = small_tree()
    save_openpi(tree, tmp_path / "plain")
    save_openpi(tree, tmp_path / "run" / "params", as_training_run=True)
    with ocp.PyTreeCheckpointer() as checkpointer:
        plain = checkpointer.restore(tmp_path / "plain")
        run = checkpointer.restore(tmp_path / "run" / "params")
    assert by_path(plain).keys() == {"params/PaliGemma/img/head/kernel", "params/state_proj/bias"}
    assert by_path(run).keys() == {"params/PaliGemma/img/head/kernel/value", "params/state_proj/bias/value"}
    assert_same(load_openpi(tmp_path / "plain"), tree)
    assert_same(load_openpi(tmp_path / "run"), tree)  # the folder above `params` will do


def test_bad_checkpoints_are_refused(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    with pytest.raises(DataError, match=r"nowhere: expected an openpi checkpoint .*_METADATA"):
        load_openpi(tmp_path / "nowhere")
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "other", {"model": small_tree()})
    with pytest.raises(DataError, match=r"expected the tree \{'params': weights\}, found the keys \['model'\]"):
        load_openpi(tmp_path / "other")
    # One leaf: with several, the reads that are under way when the first fails complain after Orbax's loop is closed.
    save_openpi({"bias": np.ones(300, np.float32)}, tmp_path / "cut")
    for file in (tmp_path / "cut").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(DataError, match=r"cut: expected an openpi checkpoint, reading it failed"):
        load_openpi(tmp_path / "cut")


def test_a_runs_own_folder_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"found none, but a run's folder; `chunkwise export .* OUT/weights.safe"):
        load_openpi(tmp_path)


def test_a_broken_database_is_named_and_orbax_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import orbax.checkpoint as ocp

    save_openpi(small_tree(), tmp_path / "cut")
    monkeypatch.setattr(ocp, "PyTreeCheckpointHandler", lambda: pytest.fail("Orbax was asked"))
    (tmp_path / "cut" / "manifest.ocdbt").write_bytes(b"\x0c\xdb\x3a\x2a" + bytes(200))
    with pytest.raises(DataError, match=r"cut: expected an openpi .*/manifest\.ocdbt.*Error decoding manifest"):
        load_openpi(tmp_path / "cut")
    assert capfd.readouterr().err == ""


def test_a_huge_array_is_refused_by_its_declared_shape(tmp_path: Path) -> None:
    save_openpi(jax.tree.map(jnp.asarray, small_tree()), tmp_path / "huge")  # of numpy arrays it names no shapes
    file = tmp_path / "huge" / "_METADATA"
    file.write_text(
        json.dumps(json.loads(file.read_text())).replace('"write_shape": [', '"write_shape": [1099511627776, ')
    )
    (tmp_path / "huge" / "manifest.ocdbt").write_bytes(bytes(8))  # nor is it looked at
    with pytest.raises(LimitError, match=r"huge/_METADATA: .*shape \[1099511627776, .*--data\.limits\.expansion"):
        load_openpi(tmp_path / "huge")


def test_saving_never_overwrites(tmp_path: Path) -> None:
    save_openpi(small_tree(), tmp_path / "out")
    with pytest.raises(ConfigError, match="out: expected no folder, or an empty one"):
        save_openpi(small_tree(), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    save_openpi(small_tree(), tmp_path / "empty")
    assert_same(load_openpi(tmp_path / "empty"), small_tree())


def test_safetensors_keep_every_byte(tmp_path: Path) -> None:
    save_safetensors(small_tree(), tmp_path / "w.safetensors")
    assert_same(load_safetensors(tmp_path / "w.safetensors"), small_tree())
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    for name in ("bad", "missing"):
        with pytest.raises(DataError, match=f"{name}.safetensors: expected a safetensors file"):
            load_safetensors(tmp_path / f"{name}.safetensors")


def test_checkpoint_gets_fresh_adapters_and_condition_and_acts_as_before() -> None:
    plain = make_model("pi0")
    lora = dataclasses.replace(plain.config.language, lora=LoraConfig(rank=2, alpha=2.0))
    adapted = make_model("pi0", language=lora, expert=lora, optimality=True)
    params = random_params(plain)
    halves = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    fitted = fit_to_model(halves, adapted, jax.random.key(0))
    flat = by_path(fitted)
    added = flat.keys() - by_path(params).keys()
    assert len(added) == 2 * 2 * (3 + 2) + 1  # two halves, two transformers, three attention and two FFN weights
    assert all("lora" in name or name == "condition_embedding/embedding" for name in added)
    assert {leaf.dtype for leaf in flat.values()} == {np.dtype(np.float32)}
    firsts = [leaf for name, leaf in flat.items() if name.endswith("lora_a")]
    np.testing.assert_allclose([leaf.std() for leaf in firsts], 0.01, rtol=0.35)  # 64 entries in the smallest
    assert len({leaf.ravel()[0] for leaf in firsts}) == len(firsts)  # each drawn on its own

    seen, x_t, time = make_observation(plain.config), make_actions(plain.config), jnp.full((3,), 0.5)
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), halves)
    expected = compiled(lambda p: velocity(plain, p, encode(plain, p, seen), x_t, time, None))(rounded)
    condition = jnp.array([Optimality.POSITIVE, Optimality.NEGATIVE, Optimality.NONE])
    got = compiled(lambda p: velocity(adapted, p, encode(adapted, p, seen), x_t, time, condition))(fitted)
    np.testing.assert_array_equal(got, expected)


def test_weights_in_eight_bits_begin_a_training() -> None:
    """As `chunkwise export` writes those of a run with model.frozen_dtype int8: whole, and to the same 8 bits again."""
    model = make_model("pi0")
    kept = int8.kept_in(jax.tree.map(np.asarray, random_params(model)), "int8")
    fitted = fit_to_model(kept, model, jax.random.key(0))
    assert by_path(fitted).keys() == by_path(random_params(model)).keys()
    again = by_path(int8.kept_in(fitted, "int8"))
    name = next(name for name in by_path(kept) if name.endswith("/step"))
    damaged = traverse_util.unflatten_dict(by_path(kept) | {name: np.ones((3, 7), np.float32)}, sep="/")
    with pytest.raises(DataError, match=r"matrices in 8 bits whose steps are not one for a channel"):
        fit_to_model(damaged, model, jax.random.key(0))
    for name, leaf in by_path(kept).items():
        (np.testing.assert_array_equal if name.endswith("/int8") else np.testing.assert_allclose)(again[name], leaf)


def test_weights_that_are_not_finite_and_half_an_adapter_are_refused() -> None:
    adapted = dataclasses.replace(make_model("pi0").config.language, lora=LoraConfig(rank=2, alpha=2.0))
    model = make_model("pi0", language=adapted, expert=adapted)
    params = by_path(jax.tree.map(np.array, random_params(model)))
    half = next(name for name in params if name.endswith("lora_a"))
    with pytest.raises(DataError) as caught:
        fit_to_model(
            traverse_util.unflatten_dict({k: v for k, v in params.items() if k != half}, sep="/"),
            model,
            jax.random.key(0),
        )
    assert str(caught.value).endswith(f"  {half}: missing")
    params["action_out_proj/bias"][:2] = np.nan, -np.inf
    with pytest.raises(DataError, match=r"(?s)not finite, with which no update .*action_out_proj/bias: 2 num"):
        fit_to_model(traverse_util.unflatten_dict(params, sep="/"), model, jax.random.key(0))


def test_checkpoint_of_another_model_is_refused_with_all_differences() -> None:
    model = make_model("pi0")
    params = random_params(model)
    del params["state_proj"]
    params["extra"] = {"kernel": jnp.zeros(2)}
    params["action_out_proj"]["bias"] = jnp.zeros(9)
    with pytest.raises(DataError) as caught:
        fit_to_model(params, model, jax.random.key(0))
    message = str(caught.value)
    for line in (
        "state_proj/bias: missing",
        "state_proj/kernel: missing",
        "extra/kernel: not in the model",
        "action_out_proj/bias: expected (8,), found (9,)",
    ):
        assert line in message


@pytest.mark.parametrize("kind", ["pi0", pytest.param("pi05", marks=pytest.mark.long)])
def test_folded_condition_is_a_model_of_openpis_own(kind: Any) -> None:
    conditioned, plain = make_model(kind, optimality=True), make_model(kind)
    params = random_params(conditioned)
    seen, x_t, time = make_observation(plain.config), make_actions(plain.config), jnp.full((3,), 0.3)

    def run(model: Pi0, condition: jax.Array | None) -> Any:
        return compiled(lambda p: velocity(model, p, encode(model, p, seen), x_t, time, condition))

    folded = fold_condition(params, Optimality.POSITIVE)
    assert by_path(folded).keys() == by_path(random_params(plain)).keys()
    expected = run(conditioned, jnp.full((3,), Optimality.POSITIVE))(params)
    np.testing.assert_allclose(run(plain, None)(folded), expected, rtol=0, atol=1e-5)
    unconditional = run(conditioned, jnp.full((3,), Optimality.NONE))(params)
    assert np.abs(unconditional - expected).max() > 1e-2
    with pytest.raises(DataError, match="expected condition_embedding among the weights"):
        fold_condition(folded, Optimality.POSITIVE)
