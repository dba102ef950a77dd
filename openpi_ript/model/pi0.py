"""pi0 and pi0.5: a flow from noise to a chunk of actions, seen by an action expert that attends to images and prompt.

    x_t = t noise + (1 - t) action,   u = noise - action,   v(x_t, t, observation) is fitted to u

Time is 1 at the noise and 0 at the action, as in openpi's code and weights (the paper's runs the other way). Sources:
pi0, arXiv:2410.24164; pi0.5, arXiv:2504.16054; facts of openpi's published models.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Key, Real

from chunkwise.models.flow_matching import inpainting, straight_path
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.sharding import all_gather_params
from openpi_ript.config.model import ModelConfig, Optimality
from openpi_ript.model import int8
from openpi_ript.model.gemma import EXPERT, LANGUAGE, Gemma, KeysValues
from openpi_ript.model.lora import trainable
from openpi_ript.model.siglip import Siglip

# Wavelengths of the time embedding; time is in [0, 1].
MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0

_SMALL = {"LayerNorm_0", "LayerNorm_1", "encoder_norm", "embedding", "pos_embedding"}
"""Parts of the image encoder whose arithmetic is f32."""

Field = Callable[[Float32[Array, "b t a"], Float32[Array, " b"]], Float32[Array, "b t a"]]
"""Velocity at a point and a time per sample."""


class Observation(NamedTuple):
    """What the policy sees, in the model's own shapes.

    Cameras are in the order of their sorted names, as in openpi (base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb).
    A camera that a robot does not have may be absent, or present and masked out: the result is the same.
    """

    images: Real[Array, "b k h w c"]
    """RGB, 0 to 255, uint8, or float32 where they were augmented; scaled to [-1, 1] on the device."""
    image_mask: Bool[Array, "b k"]
    """False where a sample lacks that camera."""
    state: Float32[Array, "b s"]
    """Normalised, padded with zeros to action_dim; pi0.5 reads it from the prompt and ignores this."""
    tokens: Int32[Array, "b n"]
    """Prompt as PaliGemma tokens, padded."""
    token_mask: Bool[Array, "b n"]
    """False at padding."""


class Context(NamedTuple):
    """An encoded observation: all that a velocity needs of it, computed once for any number of suffixes."""

    cache: KeysValues
    """Keys and values of the prefix in every layer."""
    mask: Bool[Array, "b n"]
    """True at prefix tokens that may be attended to."""
    state: Float32[Array, "b s"]


class PaliGemma(nn.Module):
    """Holds image encoder and transformers under the names of openpi's tree."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        remat = c.remat_policy if c.remat else None
        self.img = Siglip(c.vision, c.language.width, c.dtype, remat, c.scan_unroll)
        sizes, blocks = ((c.language, c.expert), c.vocab_size), (c.attention_block, c.hidden_block)
        self.llm = Gemma(*sizes, c.dtype, remat, c.scan_unroll, *blocks, c.splash)


class Pi0(nn.Module):
    """The policy network. Both kinds, by `config.kind`."""

    config: ModelConfig

    def setup(self) -> None:
        width = self.config.expert.width
        self.PaliGemma = PaliGemma(self.config)
        self.action_in_proj = nn.Dense(width)
        self.action_out_proj = nn.Dense(self.config.action_dim)
        if self.config.kind == "pi0":
            self.state_proj = nn.Dense(width)
            self.action_time_mlp_in = nn.Dense(width)
            self.action_time_mlp_out = nn.Dense(width)
        else:
            self.time_mlp_in = nn.Dense(width)
            self.time_mlp_out = nn.Dense(width)
        if self.config.optimality:
            self.condition_embedding = nn.Embed(len(Optimality), width, embedding_init=nn.initializers.zeros)

    def __call__(
        self,
        observation: Observation,
        x_t: Float32[Array, "b t a"],
        time: Float32[Array, " b"],
        condition: Int[Array, " b"] | None,
    ) -> Float32[Array, "b t a"]:
        """Velocity at x_t: `velocity` after `encode`."""
        return self.velocity(self.encode(observation), x_t, time, condition)

    def encode(self, observation: Observation) -> Context:
        """Runs images and prompt through the language model, and keeps keys and values.

        Raises:
          ValueError: If the images are neither uint8 nor float32, or not of the configured size.
        """
        b, k, *size = observation.images.shape
        expected = [self.config.image_size, self.config.image_size, 3]
        if observation.images.dtype not in (jnp.uint8, jnp.float32) or size != expected:
            raise ValueError(
                f"images are {observation.images.dtype} {size}; expected uint8 {expected}, resized on the host"
            )
        images = observation.images.astype(jnp.float32) / 255.0 * 2.0 - 1.0
        image_tokens = self.PaliGemma.img(images.reshape(b * k, *size))
        per_camera = image_tokens.shape[1]
        tokens = jnp.concatenate(
            [image_tokens.reshape(b, k * per_camera, -1), self.PaliGemma.llm.embed(observation.tokens)], axis=1
        )
        mask = jnp.concatenate([jnp.repeat(observation.image_mask, per_camera, axis=1), observation.token_mask], axis=1)
        # Padding takes no position. Every prefix token sees every other one.
        positions = jnp.cumsum(mask, axis=1) - 1
        _, cache = self.PaliGemma.llm(tokens, None, positions, mask[:, None], None, LANGUAGE)
        return Context(cache=cache, mask=mask, state=observation.state)

    def velocity(
        self,
        context: Context,
        x_t: Float32[Array, "b t a"],
        time: Float32[Array, " b"],
        condition: Int[Array, " b"] | None,
    ) -> Float32[Array, "b t a"]:
        """v(x_t, t | observation, condition), f32.

        Args:
          context: From `encode`.
          x_t: Point on the path.
          time: 0 at the action, 1 at the noise.
          condition: A value of `Optimality` for each sample; None for a model without condition.

        Raises:
          ValueError: If x_t is not of the configured shape, a condition is given to a model without one, or none to a
            model with one.
        """
        chunk = (self.config.action_horizon, self.config.action_dim)
        if x_t.shape[1:] != chunk:
            raise ValueError(
                f"actions are {x_t.shape[1:]}; expected (model.action_horizon, model.action_dim) = {chunk}, padded "
                "with zeros"
            )
        tokens, adaptive = self._embed_suffix(context.state, x_t, time, condition)
        b, n = tokens.shape[:2]
        # The state token sees itself and the prefix; action tokens see everything.
        block = jnp.arange(n) >= n - x_t.shape[1]
        own = jnp.broadcast_to((block[:, None] >= block[None, :])[None], (b, n, n))
        prefix = jnp.broadcast_to(context.mask[:, None], (b, n, context.mask.shape[1]))
        positions = context.mask.sum(axis=1, dtype=jnp.int32)[:, None] + jnp.arange(n, dtype=jnp.int32)[None]
        out, _ = self.PaliGemma.llm(
            tokens, context.cache, positions, jnp.concatenate([prefix, own], axis=2), adaptive, EXPERT
        )
        return self.action_out_proj(out[:, -x_t.shape[1] :].astype(jnp.float32))

    def _embed_suffix(
        self,
        state: Float32[Array, "b s"],
        x_t: Float32[Array, "b t a"],
        time: Float32[Array, " b"],
        condition: Int[Array, " b"] | None,
    ) -> tuple[Float32[Array, "b n d"], Float32[Array, "b d"] | None]:
        """Tokens of the expert, and the condition of its adaptive norms (pi0.5).

        The optimality embedding is added to the action tokens right after a dense layer with a bias, in both kinds:
        zeros leave the pretrained model as it is, and a fixed condition can be folded into that bias
        (`weights.fold_condition`), which gives a model of openpi's own.
        """
        if (condition is not None) != self.config.optimality:
            raise ValueError(
                f"model.optimality is {self.config.optimality} and the condition is {condition}: a model with a "
                "condition needs one (Optimality.NONE for the unconditional branch), one without takes None"
            )
        actions = self.action_in_proj(x_t)
        time_embedding = embed_time(time, self.config.expert.width)
        adaptive = None
        if self.config.kind == "pi0":
            repeated = jnp.broadcast_to(time_embedding[:, None], actions.shape)
            hidden = nn.swish(self.action_time_mlp_in(jnp.concatenate([actions, repeated], axis=-1)))
            actions = self.action_time_mlp_out(hidden)
        else:
            adaptive = nn.swish(self.time_mlp_out(nn.swish(self.time_mlp_in(time_embedding))))
        if condition is not None:
            actions = actions + self.condition_embedding(condition)[:, None]
        if self.config.kind == "pi0":
            return jnp.concatenate([self.state_proj(state)[:, None], actions], axis=1), adaptive
        return actions, adaptive


def as_used(params: Any) -> Any:
    """Returns kept weights as the modules take them, traced: norms, positions, patches and heads in f32.

    The others, all but 0.2 % of pi0's, go into products that are computed in the dtype of the activations, and are cast
    there, a layer at a time: they stay as they are kept.
    """
    flat: Any = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(
        {path: leaf if in_products(path) else leaf.astype(jnp.float32) for path, leaf in flat.items()}
    )


def in_products(path: tuple[str, ...]) -> bool:
    """Whether a parameter is cast to the dtype of the activations where it is used."""
    return path[0] == "PaliGemma" and path[-1] != "scale" and not _SMALL & set(path)


def as_trained(params: Any, config: ModelConfig) -> Any:
    """Returns weights as a run keeps them: in float32, but for frozen ones of products, in model.frozen_dtype.

    In 8 bits are matrices of layers and the table of embeddings; other frozen weights of products are then in bfloat16.
    """
    flat: Any = traverse_util.flatten_dict(params)
    trains: Any = traverse_util.flatten_dict(trainable(params, config))

    def kept(path: tuple[str, ...], leaf: Any) -> Any:
        if not in_products(path) or trains[path]:
            return leaf.astype(jnp.dtype("float32"), copy=False)
        if config.frozen_dtype == "int8":
            return int8.quantised(path, leaf) if int8.can_be(path) else leaf.astype(jnp.dtype("bfloat16"))
        return leaf.astype(jnp.dtype(config.frozen_dtype))

    return traverse_util.unflatten_dict({path: kept(path, leaf) for path, leaf in flat.items()})


def embed_time(time: Float32[Array, " b"], width: int) -> Float32[Array, "b d"]:
    """Sines, then cosines, of the time at `width` / 2 wavelengths from 0.004 to 4, evenly spaced in the logarithm.

    The wavelengths are computed in f32, as in openpi: rounded from f64 they move the gradients by up to 1e-4.
    """
    fraction = jnp.linspace(0.0, 1.0, width // 2)
    period = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** fraction
    angle = time[:, None] * (1.0 / period * 2 * jnp.pi)[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def init_params(model: Pi0, key: Key[Array, ""]) -> Any:
    """Fresh weights as a plain dict; `jax.eval_shape` of this gives the tree's shapes without computing."""
    c = model.config
    observation = Observation(
        images=jnp.zeros((1, 1, c.image_size, c.image_size, 3), jnp.uint8),
        image_mask=jnp.ones((1, 1), bool),
        state=jnp.zeros((1, c.action_dim)),
        tokens=jnp.zeros((1, 1), jnp.int32),
        token_mask=jnp.ones((1, 1), bool),
    )
    condition = jnp.full((1,), Optimality.NONE, jnp.int32) if c.optimality else None
    x_t = jnp.zeros((1, c.action_horizon, c.action_dim))
    variables: Any = model.init(key, observation, x_t, jnp.ones((1,)), condition)
    return variables["params"]


def gathered_outside_layers(params: Any) -> Any:
    """The weights for a loss with FSDP: whole, but for the stacked layers and the table of embeddings.

    The layers gather their weights one at a time (model/gemma.py, model/siglip.py). The table, a sixth of all weights,
    stays split: the devices exchange what a batch looks up of it, 25 MB of full-size pi0 and not 2.1 GB.
    """
    flat = traverse_util.flatten_dict(params)
    split = {"layers", "encoderblock", "embedder"}
    return traverse_util.unflatten_dict({p: x if split & set(p) else all_gather_params(x) for p, x in flat.items()})


def encode(model: Pi0, params: Any, observation: Observation) -> Context:
    """`Pi0.encode` with the given weights."""
    context: Any = model.apply({"params": params}, observation, method=Pi0.encode)
    return context


def velocity(
    model: Pi0,
    params: Any,
    context: Context,
    x_t: Float32[Array, "b t a"],
    time: Float32[Array, " b"],
    condition: Int[Array, " b"] | None,
) -> Float32[Array, "b t a"]:
    """`Pi0.velocity` with the given weights."""
    v: Any = model.apply({"params": params}, context, x_t, time, condition, method=Pi0.velocity)
    return v


def draw_noise_and_time(
    key: Key[Array, ""], actions: Float32[Array, "b t a"]
) -> tuple[Float32[Array, "b t a"], Float32[Array, " b"]]:
    """Normal noise, and times 0.001 + 0.999 Beta(1.5, 1): more of them near the noise (arXiv:2410.24164, app. B).

    Beta(a, 1) is drawn exactly as u^(1/a) with u uniform.
    """
    noise_key, time_key = jax.random.split(key)
    uniform = jax.random.uniform(time_key, actions.shape[:1])
    return jax.random.normal(noise_key, actions.shape), 0.001 + 0.999 * uniform ** (1 / 1.5)


def flow_error(
    model: Pi0,
    params: Any,
    context: Context,
    actions: Float32[Array, "b t a"],
    noise: Float32[Array, "b t a"],
    time: Float32[Array, " b"],
    condition: Int[Array, " b"] | None,
) -> Float32[Array, "b t"]:
    """|v - u|^2 of each step, the mean over action dimensions (those that pad the robot's own included)."""
    x_t, u = straight_path(actions, noise, time[:, None, None])
    return jnp.square(velocity(model, params, context, x_t, time, condition) - u).mean(axis=-1)


def flow_loss(
    model: Pi0,
    params: Any,
    observation: Observation,
    actions: Float32[Array, "b t a"],
    action_is_pad: Bool[Array, "b t"],
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], dict[str, Mean]]:
    """Flow-matching loss of a policy without condition (supervised training): the mean over steps that are real.

    Args:
      observation: Of the chunk's first step.
      actions: Normalised, padded with zeros to action_dim.
      action_is_pad: True past the episode's end; the error of such steps has no part in the loss. The others attend to
        them, as to the steps of a whole chunk: they hold the last action again.
      key: For noise and time.
    """
    context = encode(model, params, observation)
    noise, time = draw_noise_and_time(key, actions)
    error = mean_of(flow_error(model, params, context, actions, noise, time, None), ~action_is_pad)
    return error.value(), {"flow_loss": error}


class Known(NamedTuple):
    """What is known of chunks, normalised, and how much each number counts, 0 to 1."""

    actions: Float32[Array, "b t a"]
    weights: Float32[Array, "b t a"]


def sample_actions(
    model: Pi0,
    params: Any,
    context: Context,
    noise: Float32[Array, "b t a"],
    steps: int | Int[Array, ""],
    known: Known | None = None,
) -> Float32[Array, "b t a"]:
    """Chunks of a policy without condition, from an encoded observation: `integrate` over its velocity."""
    return integrate(lambda x, time: velocity(model, params, context, x, time, None), noise, steps, known)


def integrate(
    field: Field,
    noise: Float32[Array, "b t a"],
    steps: int | Int[Array, ""],
    known: Known | None = None,
) -> Float32[Array, "b t a"]:
    """Euler from noise (t = 1) to action (t = 0).

    Time is accumulated in f32 as in openpi, and not computed as 1 - i / steps (as flow_matching.euler would): after ten
    steps they are 1e-7 apart, and the shortest wavelength of the time embedding turns that into 1e-5 of an action.

    Args:
      field: Velocity at a point and a time per sample.
      noise: Sample at t = 1.
      steps: At least 1; may be traced, so that one compiled sampler serves any number.
      known: What chunks are completed from, for real-time chunking; None: nothing.
    """
    if known is not None:
        field = _completing(field, known)
    dt = jnp.float32(-1.0) / jnp.asarray(steps, jnp.float32)

    def advance(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        x, time = carry
        return x + dt * field(x, time), time + dt

    chunk, _ = jax.lax.fori_loop(0, steps, advance, (noise, jnp.ones(noise.shape[:1], jnp.float32)))
    return chunk


def _completing(field: Field, known: Known) -> Field:
    """The field guided towards what is known. `inpainting` has its time the other way round, noise at 0."""
    guided = inpainting(lambda x, time: -field(x, 1 - time), known.actions, known.weights)
    return lambda x, time: -guided(x, 1 - time)
