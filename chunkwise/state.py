"""TrainState: everything that a step changes, as arrays only."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from optax import contrib


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
        if frozen:
            before: Any = _sequence(self.opt_state)
            opt_state = _with_sequence(opt_state, lambda z: z | {name: before.z[name] for name in frozen})
        params: Any = optax.apply_updates(self.params, updates)
        return TrainState(step=self.step + 1, params=params, opt_state=opt_state, target=self.target)

    def starting_from(self, params: Any, *, ema: Any) -> "TrainState":
        """This fresh state with other weights, which may share buffers with nothing; `ema` as in `create`, not copied.

        The weights that a schedule-free optimiser moves are a copy of them, with their shardings.
        """
        opt_state = _with_sequence(self.opt_state, lambda z: _where_kept(z, jax.tree.map(jnp.copy, params)))
        return self.replace(params=params, opt_state=opt_state, ema=ema)

    def averaged(self) -> "TrainState":
        """This state with averaged weights, where there are any, in place of those that train: what acts and is
        evaluated. They are the moving average, or that of a schedule-free optimiser, computed here."""
        if _sequence(self.opt_state) is not None:
            return self.replace(params=average_of(self.opt_state, self.params))
        return self.replace(params=tree_merge(self.params, self.ema)) if self.ema else self


@jax.jit
def average_of(opt_state: Any, params: Any) -> Any:
    """The average that a schedule-free optimiser makes of the weights that train; others as they are.

    Args:
      opt_state: As the optimiser keeps it, or in plain dicts and lists, as a checkpoint has it.
      params: The weights at which gradients are taken.

    Raises:
      ValueError: There is no schedule-free optimiser's state, or it is of weights of other names or shapes.
    """
    free = _sequence(opt_state)
    if free is None:
        raise ValueError("expected the state of a schedule-free optimiser, found that of another")
    trained = _where_kept(free.z, params)
    for z, y in zip(jax.tree.leaves(free.z), jax.tree.leaves(trained), strict=True):
        if z.shape != y.shape:
            raise ValueError(f"expected the average of an array of {y.shape}, found one of {z.shape}")
    average: Any = contrib.schedule_free_eval_params(free, trained)
    return jax.tree.map(lambda x, y: y if _is_masked(x) else x, average, params, is_leaf=_is_masked)


def _sequence(opt_state: Any) -> contrib.ScheduleFreeState | None:
    """What a schedule-free optimiser keeps, wherever in the state of a chain; None for another optimiser."""
    parts = jax.tree.leaves(opt_state, is_leaf=_is_schedule_free)
    found: Any = next((part for part in parts if _is_schedule_free(part)), None)
    return contrib.ScheduleFreeState(**found) if isinstance(found, dict) else found


def _with_sequence(opt_state: Any, change: Callable[[Any], Any]) -> Any:
    """The same optimiser state, the weights that a schedule-free optimiser moves changed; of another one as it is."""

    def changed(part: Any) -> Any:
        return part._replace(z=change(part.z)) if _is_schedule_free(part) else part

    return jax.tree.map(changed, opt_state, is_leaf=_is_schedule_free)


def _where_kept(kept: Any, params: Any) -> Any:
    """The weights without those that an optimiser does not see."""
    return jax.tree.map(lambda z, y: z if _is_masked(z) else y, kept, params, is_leaf=_is_masked)


def _is_schedule_free(part: Any) -> bool:
    fields = contrib.ScheduleFreeState._fields
    return isinstance(part, contrib.ScheduleFreeState) or (isinstance(part, dict) and part.keys() == set(fields))


def _is_masked(part: Any) -> bool:
    return part is None or isinstance(part, optax.MaskedNode)  # a checkpoint has nothing there


def tree_merge(tree: Any, part: Any) -> Any:
    """A nested dict with the leaves that another has of it replaced."""
    if not isinstance(part, dict):
        return part
    return {name: tree_merge(leaf, part[name]) if name in part else leaf for name, leaf in tree.items()}


def part_like(tree: Any, part: Any) -> Any:
    """The leaves of a nested dict at the places at which another has leaves."""
    return {name: part_like(tree[name], leaf) for name, leaf in part.items()} if isinstance(part, dict) else tree
