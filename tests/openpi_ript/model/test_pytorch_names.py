"""PyTorch's weights: names, shapes and actions that were recorded from openpi's own class.

LeRobot's are in tests/openpi_ript/policies/test_lerobot_policies.py.
"""

import json
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from chunkwise.errors import ConfigError, DataError
from openpi_ript.config import GemmaConfig, LoraConfig, ModelConfig, Optimality, SiglipConfig
from openpi_ript.model.pi0 import Observation, Pi0, encode, sample_actions
from openpi_ript.model.pytorch_names import TABLE, TABLE_AS_HEAD, UNUSED, from_pytorch, to_pytorch
from openpi_ript.policies import saved
from openpi_ript.weights import by_path, fit_to_model, load_safetensors, model_shapes, save_pytorch
from tests.openpi_ript.robots.openpi_cases import pytorch_inputs, weight
from tests.openpi_ript.toy_policy import OWN, compiled

Kind = Literal["pi0", "pi05"]
TOWER: dict[str, Any] = {"depth": 3, "mlp_dim": 20, "num_heads": 4, "num_kv_heads": 1, "head_dim": 6}


def make_model(kind: Kind, **changes: Any) -> Pi0:
    """The sizes of record_pytorch.py."""
    sizes: dict[str, Any] = {"vocab_size": 48, "image_size": 42, "action_dim": 7, "action_horizon": 6}
    settings: dict[str, Any] = {"prompt_tokens": 9, "dtype": "float32", "remat": False} | sizes | changes
    settings |= {"language": GemmaConfig(width=24, **TOWER)} if "language" not in changes else {}
    vision, expert = SiglipConfig(width=12, depth=2, mlp_dim=20, num_heads=2), GemmaConfig(width=12, **TOWER)
    return Pi0(ModelConfig(kind=kind, vision=vision, expert=expert, **settings))


def drawn(model: Pi0) -> dict[str, np.ndarray]:
    return {name: weight(name, leaf.shape) for name, leaf in model_shapes(model).items()}


def names_of(kind: Kind) -> dict[str, tuple[int, ...]]:
    with np.load(OWN / "pytorch.npz") as recorded:
        shapes = json.loads(recorded[f"openpi/{kind}/names"].tobytes())
    return {name: tuple(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_names_and_shapes_are_those_of_the_classes(kind: Kind) -> None:
    got = to_pytorch(drawn(make_model(kind)), "openpi")
    assert {name: tensor.shape for name, tensor in got.items()} == names_of(kind)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@pytest.mark.parametrize("project", ["openpi", "lerobot"])
def test_weights_come_back_to_the_bit(project: Literal["openpi", "lerobot"], kind: Kind, tmp_path: Path) -> None:
    model = make_model(kind)
    params = drawn(model)
    file = tmp_path / "run/model.safetensors"
    file.parent.mkdir()
    save_pytorch(traverse_util.unflatten_dict(params, sep="/"), file, project)
    (file.parent / "config.json").write_text('{"type": "pi0"}')  # LeRobot's, and no run of ours
    assert not saved.is_run(file.parent)
    for place in (file, file.parent):
        got = by_path(saved.read_stored_weights(place, model))
        assert got.keys() == params.keys()
        for name, array in params.items():
            assert got[name].dtype == array.dtype
            np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_several_key_heads_come_back_too() -> None:
    """No model of openpi's has them; a tensor is then all heads' rows, one head after another."""
    q, kv = np.arange(2 * 4 * 3 * 5.0).reshape(2, 4, 3, 5), np.arange(2 * 2 * 2 * 3 * 5.0).reshape(2, 2, 2, 3, 5)
    ours = {"PaliGemma/llm/layers/attn/q_einsum/w": q, "PaliGemma/llm/layers/attn/kv_einsum/w": kv}
    heads = {"PaliGemma/llm/embedder/input_embedding": np.ones((2, 3)), "action_in_proj/kernel": np.ones((7, 4))}
    tensors = to_pytorch(ours | heads, "openpi")
    inside = "paligemma_with_expert.paligemma.model.language_model.layers.1.self_attn"
    np.testing.assert_array_equal(tensors[f"{inside}.v_proj.weight"][5:], kv[1, 1, 1].T)
    np.testing.assert_array_equal(tensors[f"{inside}.q_proj.weight"][10:15], q[1, 2].T)
    got = from_pytorch(tensors, {name: array.shape for name, array in (ours | heads).items()})
    for name, array in ours.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_tensors_act_here_as_in_openpis_own_class(kind: Kind, tmp_path: Path) -> None:
    """Within 2e-5 of the largest action: PyTorch's and XLA's float32, and another form of SigLIP's GELU."""
    model, file = make_model(kind), tmp_path / "model.safetensors"
    save_file({name: weight(name, shape) for name, shape in names_of(kind).items()}, file)
    params = fit_to_model(saved.read_stored_weights(file, model), model, jax.random.key(0))
    seen = pytorch_inputs()
    noise = jnp.asarray(seen.pop("noise"))
    observed = Observation(**{name: jnp.asarray(x) for name, x in seen.items()})

    @compiled
    def act(params: Any) -> jax.Array:
        return sample_actions(model, params, encode(model, params, observed), noise, 10)

    with np.load(OWN / "pytorch.npz") as recorded:
        expected = recorded[f"openpi/{kind}/actions"]
    np.testing.assert_allclose(act(params), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_names_that_are_missing_or_left_over_are_all_named(tmp_path: Path) -> None:
    model, file = make_model("pi0"), tmp_path / "model.safetensors"
    save_pytorch(traverse_util.unflatten_dict(drawn(model), sep="/"), file, "lerobot")
    tensors = load_file(file)
    layer = "model.paligemma_with_expert.gemma_expert.model.layers.1.mlp.up_proj.weight"
    del tensors[layer], tensors["model.state_proj.bias"]
    tensors |= {"model.time_mlp_in.bias": np.zeros(3), "model.action_in_proj.bias": np.zeros(5)}
    save_file(tensors, file)
    with pytest.raises(DataError) as raised:
        load_safetensors(file, model)
    lines = [line.strip() for line in str(raised.value).splitlines()[1:]]
    assert lines == [
        "action_in_proj.bias: expected shape [12], found [5]",
        f"{layer.removeprefix('model.')}: missing, of shape [20, 12]",
        "state_proj.bias: missing, of shape [12]",
        "time_mlp_in.bias: not in the model",
    ]
    with pytest.raises(DataError, match=r"found PyTorch's; say which model they are of"):
        load_safetensors(file)


def test_the_table_of_tokens_has_two_names() -> None:
    model = make_model("pi0")
    params, shapes = drawn(model), {name: leaf.shape for name, leaf in model_shapes(model).items()}
    both = {name.removeprefix("model."): x for name, x in to_pytorch(params, "lerobot").items()}
    np.testing.assert_array_equal(both[TABLE], both[TABLE_AS_HEAD])
    assert not both[UNUSED].any()
    for left_out in (TABLE, TABLE_AS_HEAD, UNUSED):
        got = from_pytorch({name: x for name, x in both.items() if name != left_out}, shapes)
        np.testing.assert_array_equal(got["PaliGemma/llm/embedder/input_embedding"], both[TABLE])
    got = from_pytorch(both | {TABLE_AS_HEAD: both[TABLE] + 1}, shapes)  # LeRobot trains the table and not the head
    np.testing.assert_array_equal(got["PaliGemma/llm/embedder/input_embedding"], both[TABLE])
    with pytest.raises(DataError, match=r"lm_head.weight: expected the shape \[48, 24\] of .*embed_tokens.*\[47, 24\]"):
        from_pytorch(both | {TABLE_AS_HEAD: both[TABLE][1:]}, shapes)


def test_what_pytorch_has_no_names_for_is_refused() -> None:
    condition = make_model("pi0", optimality=True)
    with pytest.raises(ConfigError, match=r"condition_embedding/embedding: expected .*fold_condition"):
        to_pytorch(drawn(condition), "openpi")
    adapted = make_model("pi0", language=GemmaConfig(width=24, lora=LoraConfig(rank=2, alpha=2.0), **TOWER))
    with pytest.raises(ConfigError, match=r"lora_a: expected weights that PyTorch's pi0 has a name for"):
        to_pytorch(drawn(adapted), "lerobot")
    plain = drawn(make_model("pi0"))
    wanted = {name: leaf.shape for name, leaf in model_shapes(make_model("pi0")).items()}
    fitted = fit_to_model(
        traverse_util.unflatten_dict(from_pytorch(to_pytorch(plain, "openpi"), wanted), sep="/"),
        condition,
        jax.random.key(0),
    )
    assert not fitted["condition_embedding"]["embedding"][Optimality.POSITIVE].any()
