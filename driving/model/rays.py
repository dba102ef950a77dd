"""Where the tokens of a camera look, from its matrices: the model reads how its cameras are mounted."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

WIDTH = 6
"""Numbers of a ray: direction, then where it begins, in the vehicle frame: x forward, y left, z up."""


def rays(
    intrinsics: Float[Array, "*b 3 3"],
    extrinsics: Float[Array, "*b 4 4"],
    known: Bool[Array, "*b"],
    image: tuple[int, int],
    grid: tuple[int, int],
) -> Float[Array, "*b gh gw 6"]:
    """Returns the ray through the middle of each token: R K^-1 (u, v, 1) as a unit vector, and the camera's place, m.

    Args:
      intrinsics: K, in pixels of the image; its upper left corner is (0, 0).
      extrinsics: Camera (x right, y down, z ahead) to the vehicle, whose rotation is R.
      known: Of which cameras both are; a ray of another is 0.
      image: Height and width.
      grid: Rows and columns of tokens.
    """
    (height, width), (rows, columns) = image, grid
    v = (jnp.arange(rows, dtype=jnp.float32) + 0.5) * (height / rows)
    u = (jnp.arange(columns, dtype=jnp.float32) + 0.5) * (width / columns)
    pixels = jnp.stack([*jnp.meshgrid(u, v), jnp.ones((rows, columns))], axis=-1)
    identity = jnp.eye(3).reshape(*(1,) * (intrinsics.ndim - 2), 3, 3)
    inverse = jnp.linalg.inv(jnp.where(known[..., None, None], intrinsics, identity))
    towards = jnp.einsum("...ij,...jk,rck->...rci", extrinsics[..., :3, :3], inverse, pixels)
    direction = towards / jnp.linalg.norm(towards, axis=-1, keepdims=True)
    place = jnp.broadcast_to(extrinsics[..., None, None, :3, 3], direction.shape)
    return jnp.where(known[..., None, None, None], jnp.concatenate([direction, place], axis=-1), 0.0)
