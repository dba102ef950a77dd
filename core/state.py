"""TrainState: everything that a step changes, as arrays only."""

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
    """Slowly moving copy of (part of) the weights, or an empty dict where there is none."""

    @classmethod
    def create(cls, params: Any, optimiser: optax.GradientTransformation, target: Any = None) -> "TrainState":
        """Fresh state at step 0. `target` is copied, so that no buffer is shared and the state can be donated."""
        target = {} if target is None else jax.tree.map(jnp.copy, target)
        return cls(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimiser.init(params), target=target)
