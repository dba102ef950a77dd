"""Names and layouts of pi0's weights in PyTorch: openpi's `PI0Pytorch`, and LeRobot's pi0 and pi05 policies.

A tensor of theirs is an array of ours with its axes in another order, and some of them made one; layers, and what ours
stacks besides, are tensors of their own. LeRobot has openpi's names behind "model.". Two names hold nothing of ours:
the heads of the language model and of the expert, which are not used. The former is the table of tokens in openpi's
class; in LeRobot's it is a tensor of its own, which stays behind as the table is trained.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from chunkwise.errors import ConfigError, DataError

Flavour = Literal["openpi", "lerobot"]
PREFIX = {"openpi": "", "lerobot": "model."}
INSIDE = "paligemma_with_expert."
TABLE = f"{INSIDE}paligemma.model.language_model.embed_tokens.weight"
TABLE_AS_HEAD = f"{INSIDE}paligemma.lm_head.weight"
"""openpi's files have the table under this name alone, LeRobot's have both names."""
UNUSED = f"{INSIDE}gemma_expert.lm_head.weight"

Axes = tuple[tuple[int, ...], ...]
"""Of an array of ours, in the order of the tensor's; those of one group become one."""
SAME: Axes = ((0,),)
TURNED: Axes = ((1,), (0,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tensor:
    """A tensor of theirs, and where it lies in an array of ours."""

    name: str
    place: tuple[int, ...]
    """Index of the leading axes that ours stacks."""
    axes: Axes


_DENSE = {"kernel": ("weight", TURNED), "bias": ("bias", SAME)}
_VISION = f"{INSIDE}paligemma.model.vision_tower.vision_model"
_VISION_LAYER = {
    "LayerNorm_0/scale": ("layer_norm1.weight", SAME),
    "LayerNorm_0/bias": ("layer_norm1.bias", SAME),
    "LayerNorm_1/scale": ("layer_norm2.weight", SAME),
    "LayerNorm_1/bias": ("layer_norm2.bias", SAME),
    "MlpBlock_0/Dense_0/kernel": ("mlp.fc1.weight", TURNED),
    "MlpBlock_0/Dense_0/bias": ("mlp.fc1.bias", SAME),
    "MlpBlock_0/Dense_1/kernel": ("mlp.fc2.weight", TURNED),
    "MlpBlock_0/Dense_1/bias": ("mlp.fc2.bias", SAME),
    "MultiHeadDotProductAttention_0/out/kernel": ("self_attn.out_proj.weight", ((2,), (0, 1))),
    "MultiHeadDotProductAttention_0/out/bias": ("self_attn.out_proj.bias", SAME),
}
for _ours, _theirs in (("query", "q"), ("key", "k"), ("value", "v")):
    _at = f"MultiHeadDotProductAttention_0/{_ours}"
    _VISION_LAYER[f"{_at}/kernel"] = (f"self_attn.{_theirs}_proj.weight", ((1, 2), (0,)))
    _VISION_LAYER[f"{_at}/bias"] = (f"self_attn.{_theirs}_proj.bias", ((0, 1),))
_WHOLE = {
    "PaliGemma/img/embedding/kernel": (f"{_VISION}.embeddings.patch_embedding.weight", ((3,), (2,), (0,), (1,))),
    "PaliGemma/img/embedding/bias": (f"{_VISION}.embeddings.patch_embedding.bias", SAME),
    "PaliGemma/img/pos_embedding": (f"{_VISION}.embeddings.position_embedding.weight", ((0, 1), (2,))),
    "PaliGemma/img/Transformer/encoder_norm/scale": (f"{_VISION}.post_layernorm.weight", SAME),
    "PaliGemma/img/Transformer/encoder_norm/bias": (f"{_VISION}.post_layernorm.bias", SAME),
    "PaliGemma/img/head/kernel": (f"{INSIDE}paligemma.model.multi_modal_projector.linear.weight", TURNED),
    "PaliGemma/img/head/bias": (f"{INSIDE}paligemma.model.multi_modal_projector.linear.bias", SAME),
    "PaliGemma/llm/embedder/input_embedding": (TABLE, ((0,), (1,))),
}
_NORMS = {"pre_attention_norm": "input_layernorm", "pre_ffw_norm": "post_attention_layernorm", "final_norm": "norm"}
_NORM_LEAVES = {
    "scale": ("weight", SAME),
    "Dense_0/kernel": ("dense.weight", TURNED),
    "Dense_0/bias": ("dense.bias", SAME),
}
_HEADS_OUT: Axes = ((0, 2), (1,))
_PRODUCTS: dict[str, tuple[tuple[str, ...], Axes]] = {
    "attn/q_einsum/w": (("self_attn.q_proj.weight",), _HEADS_OUT),
    "attn/kv_einsum/w": (("self_attn.k_proj.weight", "self_attn.v_proj.weight"), _HEADS_OUT),
    "attn/attn_vec_einsum/w": (("self_attn.o_proj.weight",), ((2,), (0, 1))),
    "mlp/gating_einsum": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), TURNED),
    "mlp/linear": (("mlp.down_proj.weight",), TURNED),
}
"""Of a layer of either transformer; where ours stacks two, both of theirs."""


def is_pytorch(names: Any) -> bool:
    """Whether tensors of these names are of openpi's or LeRobot's PyTorch model."""
    return any(name.removeprefix(PREFIX["lerobot"]).startswith(INSIDE) for name in names)


def to_pytorch(params: Mapping[str, np.ndarray], flavour: Flavour) -> dict[str, np.ndarray]:
    """Returns the tensors that openpi's, or LeRobot's, model loads strictly; bytes are kept.

    Args:
      params: By path, "a/b/c", of a model without adapters and condition.
      flavour: Whose names.

    Raises:
      ConfigError: There is an adapter or a condition among them, for which there is no name.
    """
    tensors: dict[str, np.ndarray] = {}
    for path, array in params.items():
        for tensor in _tensors(path, array.shape):
            part = np.asarray(array)[tensor.place]
            flat = [axis for group in tensor.axes for axis in group]
            shape = [math.prod(part.shape[axis] for axis in group) for group in tensor.axes]
            tensors[tensor.name] = np.ascontiguousarray(part.transpose(flat)).reshape(shape)
    table = tensors[TABLE]
    width = tensors["action_in_proj.weight"].shape[0]
    tensors[TABLE_AS_HEAD] = table
    tensors[UNUSED] = np.zeros((len(table), width), table.dtype)
    if flavour == "openpi":
        del tensors[TABLE]
    return {PREFIX[flavour] + name: tensor for name, tensor in sorted(tensors.items())}


def from_pytorch(tensors: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns weights by path; bytes and dtypes are kept.

    Args:
      tensors: By openpi's names, or LeRobot's.
      shapes: Of each weight that is wanted, by path.

    Raises:
      DataError: A name is missing or left over, or a tensor is of another shape; the message lists all of them.
    """
    given = {name.removeprefix(PREFIX["lerobot"]): tensor for name, tensor in tensors.items()}
    problems = _take_heads(given)
    params: dict[str, np.ndarray] = {}
    for path, shape in shapes.items():
        wanted = list(_tensors(path, shape))
        parts: list[np.ndarray] = []
        for tensor in wanted:
            part = given.pop(tensor.name, None)
            inner = shape[len(tensor.place) :]
            expected = tuple(math.prod(inner[axis] for axis in group) for group in tensor.axes)
            if part is None:
                problems.append(f"{tensor.name}: missing, of shape {list(expected)}")
            elif part.shape != expected:
                problems.append(f"{tensor.name}: expected shape {list(expected)}, found {list(part.shape)}")
            else:
                flat = [axis for group in tensor.axes for axis in group]
                parts.append(part.reshape([inner[axis] for axis in flat]).transpose(np.argsort(flat)))
        if len(parts) == len(wanted):
            params[path] = np.stack(parts).reshape(shape) if wanted[0].place else parts[0]
    problems += [f"{name}: not in the model" for name in given]
    if problems:
        raise DataError(
            "the PyTorch weights are not of this model; set model.kind and the model's sizes as in the run that made "
            "them:",
            *(f"  {problem}" for problem in sorted(problems)),
        )
    return params


def _take_heads(given: dict[str, Shaped[np.ndarray, "..."]]) -> list[str]:
    """Takes the two heads out of tensors, one of which may be the table of tokens; returns what is wrong with them.

    Where there are both, LeRobot's class embeds tokens by the table, and so is done here.
    """
    given.pop(UNUSED, None)
    head = given.pop(TABLE_AS_HEAD, None)
    if head is None:
        return []
    table = given.setdefault(TABLE, head)
    if table.shape == head.shape:
        return []
    return [f"{TABLE_AS_HEAD}: expected the shape {list(table.shape)} of {TABLE}, found {list(head.shape)}"]


def _tensors(path: str, shape: tuple[int, ...]) -> Iterator[_Tensor]:
    """Tensors of an array of ours, in the order of the axes that it stacks.

    Raises ConfigError for adapters and the condition.
    """
    if path in _WHOLE:
        name, axes = _WHOLE[path]
        yield _Tensor(name=name, place=(), axes=axes)
        return
    block, layers = "PaliGemma/img/Transformer/encoderblock/", "PaliGemma/llm/layers/"
    if path.startswith(block) and path.removeprefix(block) in _VISION_LAYER:
        name, axes = _VISION_LAYER[path.removeprefix(block)]
        for i in range(shape[0]):
            yield _Tensor(name=f"{_VISION}.encoder.layers.{i}.{name}", place=(i,), axes=axes)
        return
    expert = "_1" in path
    model = f"{INSIDE}gemma_expert.model" if expert else f"{INSIDE}paligemma.model.language_model"
    own = path.replace("_1", "", 1)
    norm, _, leaf = own.removeprefix(layers).removeprefix("PaliGemma/llm/").partition("/")
    if norm in _NORMS and leaf in _NORM_LEAVES:
        name, axes = _NORM_LEAVES[leaf]
        if norm == "final_norm":
            yield _Tensor(name=f"{model}.norm.{name}", place=(), axes=axes)
            return
        for i in range(shape[0]):
            yield _Tensor(name=f"{model}.layers.{i}.{_NORMS[norm]}.{name}", place=(i,), axes=axes)
        return
    if own.removeprefix(layers) in _PRODUCTS and path.startswith(layers):
        names, axes = _PRODUCTS[own.removeprefix(layers)]
        for i in range(shape[0]):
            for j, name in enumerate(names):
                yield _Tensor(name=f"{model}.layers.{i}.{name}", place=(i, j) if len(names) > 1 else (i,), axes=axes)
        return
    module, _, leaf = path.partition("/")
    if leaf in _DENSE and module.endswith(("_proj", "_mlp_in", "_mlp_out")):
        name, axes = _DENSE[leaf]
        yield _Tensor(name=f"{module}.{name}", place=(), axes=axes)
        return
    raise ConfigError(
        f"{path}: expected weights that PyTorch's pi0 has a name for; fold a condition into a bias first "
        "(weights.fold_condition), and train without adapters (lora) what is to go there"
    )
