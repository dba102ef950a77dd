"""TrainState: everything that a step changes, as arrays only."""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax


class TrainState(flax.struct.PyTreeNode):
    """Arrays that a train step reads and replaces; module, optimiser and config are closed over by the step."""

    step: Any
    """Updates applied so far, an int32 scalar. Any, as all fields: a state of shapes or shardings is a state too."""
    params: Any
    """Trained weights, a plain dict."""
    opt_state: Any
    """Optimiser state of `params`."""
    target: Any
    """What else an update reads and replaces: a slowly moving copy of (part of) the weights that the loss needs, or a
    value function with its own optimiser; an empty dict where there is none."""
    ema: Any = flax.struct.field(default_factory=dict)
    """Moving average of (part of) the weights for use, with their names, or an empty dict where there is none;
    chunkwise/train/update.py moves it, no step does."""

    @classmethod
    def create(
        cls, params: Any, optimiser: optax.GradientTransformation, target: Any = None, *, ema: Any = None
    ) -> "TrainState":
        """Fresh state at step 0. `target` and `ema` are copied: no buffer is shared, and the state can be donated."""
        target, ema = (jax.tree.map(jnp.copy, {} if part is None else part) for part in (target, ema))
        opt_state = optimiser.init(params)
        return cls(step=jnp.zeros((), jnp.int32), params=params, opt_state=opt_state, target=target, ema=ema)

    def apply_gradients(
        self, gradient: Any, optimiser: optax.GradientTransformation, *, frozen: Sequence[str] = ()
    ) -> "TrainState":
        """Returns the state after one update, without a moving average: chunkwise/train/update.py moves that.

        Args:
          gradient: Of `params`.
          optimiser: The one that made `opt_state`.
          frozen: Parts of the weights, by their first name, that stay; weight decay moves them even without a gradient.
        """
        updates: Any
        updates, opt_state = optimiser.update(gradient, self.opt_state, self.params)
        updates = updates | {name: jax.tree.map(jnp.zeros_like, updates[name]) for name in frozen}
        params: Any = optax.apply_updates(self.params, updates)
        return TrainState(step=self.step + 1, params=params, opt_state=opt_state, target=self.target)

    def averaged(self) -> "TrainState":
        """This state with the moving average in place of the weights that have one: what acts and is evaluated."""
        return self.replace(params=tree_merge(self.params, self.ema)) if self.ema else self


def tree_merge(tree: Any, part: Any) -> Any:
    """A nested dict with the leaves that another has of it replaced."""
    if not isinstance(part, dict):
        return part
    return {name: tree_merge(leaf, part[name]) if name in part else leaf for name, leaf in tree.items()}


def part_like(tree: Any, part: Any) -> Any:
    """The leaves of a nested dict at the places at which another has leaves."""
    return {name: part_like(tree[name], leaf) for name, leaf in part.items()} if isinstance(part, dict) else tree
