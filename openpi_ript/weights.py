"""Weights in openpi's own checkpoint format and as safetensors, ours and PyTorch's, and their fit to a model of ours.

An openpi checkpoint is an Orbax folder (usually named `params`) that holds the tree {"params": weights}. A training run
of openpi adds one level: every leaf path ends in "value". This module names Orbax because that layout is openpi's and
not that of our train checkpoints, which chunkwise/checkpoint/ keeps; it needs Orbax's older interface, as openpi does.
"""

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Key

from chunkwise.checkpoint.orbax_files import require_arrays, require_database, require_declared, require_metadata
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget
from chunkwise.files.durable import make_folders, publish, scratch_file, scratch_name
from chunkwise.files.trouble import root_cause
from openpi_ript.config.model import Optimality
from openpi_ript.model import int8
from openpi_ript.model.lora import A_INIT
from openpi_ript.model.pi0 import Pi0, init_params
from openpi_ript.model.pytorch_names import Flavour, from_pytorch, is_pytorch, to_pytorch

VALUE = "value"
CONDITION = "condition_embedding"


def load_openpi(folder: str | Path) -> dict[str, Any]:
    """Weights of an openpi checkpoint as a plain dict of numpy arrays, dtypes as stored; both flavours.

    Args:
      folder: The Orbax folder, or the one above it that holds it as `params`.

    Raises:
      DataError: If there is no such checkpoint, it can't be read, or costs more than a limit.
    """
    import orbax.checkpoint as ocp

    path = _orbax_folder(Path(folder).resolve())
    try:
        require_metadata(path)
        require_declared(path)
        require_database(path)
        handler: Any = ocp.PyTreeCheckpointHandler()  # the checkpointer's own `metadata` hides why there are none
        tree = handler.metadata(path).tree
        require_arrays(path, jax.tree.leaves(tree))
        with ocp.PyTreeCheckpointer() as checkpointer:
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            stored = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    except budget.LimitError:
        raise
    except Exception as error:  # a damaged folder shows as almost any type
        raise DataError(f"{path}: expected an openpi checkpoint, reading it failed: {root_cause(error)}") from error
    if list(stored) != ["params"]:
        raise DataError(f"{path}: expected the tree {{'params': weights}}, found the keys {sorted(stored)}")
    flat = traverse_util.flatten_dict(stored["params"])
    if all(key[-1] == VALUE for key in flat):
        flat = {key[:-1]: leaf for key, leaf in flat.items()}
    return traverse_util.unflatten_dict(flat)


def save_openpi(params: Mapping[str, Any], folder: str | Path, *, as_training_run: bool = False) -> None:
    """Writes an openpi checkpoint: the folder appears whole or not at all.

    Args:
      params: Weights; names, shapes, dtypes and bytes are kept. A matrix in 8 bits (model.frozen_dtype int8), which
        openpi does not have, is written whole, in float32.
      folder: Must not exist, or be empty. openpi looks for it under the name `params`.
      as_training_run: End every leaf path in "value", as openpi's training does.

    Raises:
      ConfigError: If the folder is not empty.
    """
    import orbax.checkpoint as ocp

    path = Path(folder).resolve()
    if path.exists():
        if not path.is_dir() or any(path.iterdir()):
            raise ConfigError(f"{path}: expected no folder, or an empty one, found files; choose another")
        shutil.rmtree(path)
    make_folders(path.parent)
    flat = traverse_util.flatten_dict(int8.whole(dict(params), np.float32))
    if as_training_run:
        flat = {(*key, VALUE): leaf for key, leaf in flat.items()}
    scratch = scratch_name(path)
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(scratch, {"params": traverse_util.unflatten_dict(flat)})
        publish(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def load_safetensors(file: str | Path, model: Pi0 | None = None) -> dict[str, Any]:
    """Weights from a safetensors file, dtypes as stored.

    Args:
      file: Tensors named by path, "a/b/c"; or those of openpi's or LeRobot's PyTorch model.
      model: That PyTorch's tensors are of; other files do not need it.

    Raises:
      DataError: If the file is missing or damaged, or its tensors are not those of PyTorch's model; the message lists
        every name that is missing or left over.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        budget.regular(file)
        tensors = load_file(Path(file))
        if not is_pytorch(tensors):
            return traverse_util.unflatten_dict(tensors, sep="/")
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: expected a safetensors file, reading it failed: {error}") from error
    if model is None:
        raise DataError(f"{file}: expected tensors named by path, found PyTorch's; say which model they are of")
    wanted = {name: leaf.shape for name, leaf in model_shapes(model).items() if not _may_be_fresh(name)}
    return traverse_util.unflatten_dict(from_pytorch(tensors, wanted), sep="/")


def save_pytorch(params: Mapping[str, Any], file: str | Path, flavour: Flavour) -> None:
    """Writes weights as openpi's PyTorch model or LeRobot's policies read them (model.safetensors), bytes as they are,
    matrices in 8 bits whole, in float32.

    The file appears whole or not at all.

    Args:
      params: Of a model without adapters; a condition is folded first (`fold_condition`).
      file: To write.
      flavour: openpi, what its `PI0Pytorch` loads; lerobot, its pi0 and pi05 policies.

    Raises:
      ConfigError: There are adapters or a condition among them.
    """
    from safetensors.numpy import save_file

    whole = int8.whole(dict(params), np.float32)
    tensors = to_pytorch({name: np.asarray(leaf) for name, leaf in by_path(whole).items()}, flavour)
    make_folders(Path(file).parent)
    with scratch_file(Path(file)) as scratch:
        scratch.touch()
        mode = scratch.stat().st_mode
        save_file(tensors, scratch, metadata={"format": "pt"})
        scratch.chmod(mode)  # safetensors lets nobody else read it


def fit_to_model(params: Mapping[str, Any], model: Pi0, key: Key[Array, ""]) -> dict[str, Any]:
    """Loaded weights as the model's tree: f32, with fresh adapters and condition where the checkpoint has none.

    Both start as zeros in effect, so the result acts as the pretrained model. Matrices in 8 bits, as a run with
    model.frozen_dtype int8 exports them, become whole; such a run rounds them to the same 8 bits again.

    Args:
      params: From `load_openpi` or `load_safetensors`.
      model: What they are to run in.
      key: For the fresh weights.

    Raises:
      DataError: If anything else is missing, too much, of another shape, or not finite; the message lists all of it.
    """
    try:
        shapes, flat = model_shapes(model), by_path(int8.whole(dict(params), np.float32))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the checkpoint has matrices in 8 bits whose steps are not one for a channel: {error}"
        ) from error
    fresh = {name for name in shapes if name not in flat and _may_be_fresh(name) and not _half_of_adapter(name, flat)}
    problems = [f"{name}: missing" for name in sorted(shapes.keys() - flat.keys() - fresh)]
    problems += [f"{name}: not in the model" for name in sorted(flat.keys() - shapes.keys())]
    problems += [
        f"{name}: expected {shapes[name].shape}, found {flat[name].shape}"
        for name in sorted(shapes.keys() & flat.keys())
        if shapes[name].shape != flat[name].shape
    ]
    if problems:
        raise DataError(
            f"the checkpoint is not of this model (model.kind {model.config.kind}); set the model's sizes, its "
            "adapters (lora) and optimality as in the run that made it:",
            *(f"  {problem}" for problem in problems),
        )
    fitted = {name: np.asarray(flat[name], shapes[name].dtype) for name in shapes if name not in fresh}
    if broken := [name for name, leaf in fitted.items() if not np.isfinite([leaf.min(), leaf.max()]).all()]:
        raise DataError(
            "the checkpoint holds weights that are not finite, with which no update could begin:",
            *(f"  {name}: {np.count_nonzero(~np.isfinite(fitted[name]))} numbers" for name in sorted(broken)),
        )
    fitted |= {name: _fresh_leaf(name, shapes[name].shape, key) for name in fresh}
    return traverse_util.unflatten_dict(fitted, sep="/")


def fold_condition(params: Mapping[str, Any], condition: Optimality) -> dict[str, Any]:
    """Weights of a model without condition that acts as this one does under `condition`, exactly.

    The embedding is added to the action tokens after a dense layer, so it goes into that layer's bias; openpi's own
    code then runs the post-trained policy.

    Raises:
      DataError: If the weights have no condition.
    """
    if CONDITION not in params:
        raise DataError(f"expected {CONDITION} among the weights, found {sorted(params)}")
    folded = {name: value for name, value in params.items() if name != CONDITION}
    layer = "action_time_mlp_out" if "action_time_mlp_out" in folded else "action_in_proj"
    shift = params[CONDITION]["embedding"][condition]
    return folded | {layer: {**folded[layer], "bias": folded[layer]["bias"] + shift}}


def by_path(params: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of a tree by their path, "a/b/c"."""
    flat: Any = traverse_util.flatten_dict(dict(params), sep="/")
    return flat


def model_shapes(model: Pi0) -> dict[str, Any]:
    """Shape and dtype of each of the model's weights by path, without computing any."""
    return by_path(jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0)))


def _may_be_fresh(name: str) -> bool:
    """Adapters and the condition, which openpi's pretrained checkpoints lack."""
    return name.endswith(("lora_a", "lora_b")) or name.startswith(f"{CONDITION}/")


def _half_of_adapter(name: str, flat: Mapping[str, Any]) -> bool:
    """Whether the other half of an adapter is there, which beside a fresh one would not act as it did."""
    other = {"a": "b", "b": "a"}.get(name[-1], "") if name.endswith(("lora_a", "lora_b")) else ""
    return bool(other) and name[:-1] + other in flat


def _fresh_leaf(name: str, shape: tuple[int, ...], key: Key[Array, ""]) -> np.ndarray:
    """A first half of an adapter at random, by its name; zeros for its second half and for the condition."""
    if not name.endswith("lora_a"):
        return np.zeros(shape, np.float32)
    return np.asarray(A_INIT(jax.random.fold_in(key, zlib.crc32(name.encode())), shape, np.float32))


def _orbax_folder(path: Path) -> Path:
    """The folder itself or its `params`, whichever is an Orbax tree."""
    for folder in (path, path / "params"):
        if (folder / "_METADATA").is_file():
            return folder
    hint = ""
    if (path / "config.json").is_file():
        hint = f", but a run's folder; `chunkwise export {path} OUT` writes OUT/weights.safetensors, which may be named"
    raise DataError(
        f"{path}: expected an openpi checkpoint (an Orbax folder with the file _METADATA), found none{hint}"
    )
