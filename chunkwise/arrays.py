"""Array aliases and the one legend of dimensions used in every signature.

Dimensions, lower case, the same letter everywhere:

  b  batch                      k  cameras
  t  step inside a chunk        h w c  image rows, columns, channels
  T  frame of an episode        n  tokens, or samples of one draw
  a  action                     d  width of a layer
  s  proprioceptive state       e  ensemble member

A horizon is never `h`, which is an image's height.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int, Int32, Int64, UInt8

PyTree = Any  # a nested dict of arrays; jaxtyping's own PyTree needs jax, which data code never imports
NumpyTree = Mapping[str, Any]  # nested dict of numpy arrays

__all__ = [
    "Bool",
    "Float",
    "Float32",
    "Float64",
    "Int",
    "Int32",
    "Int64",
    "NumpyTree",
    "PyTree",
    "UInt8",
    "np",
]
