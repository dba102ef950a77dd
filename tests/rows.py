"""What the collector asks of a policy: a row's chunk is the same to the bit, whoever its neighbours and its place."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Int


def assert_rows_stand_alone(
    ask: Callable[[Int[np.ndarray, " b"]], Float32[np.ndarray, "b t a"]], *, contents: int, rows: int
) -> None:
    """Asks for batches of one size whose rows are drawn from some contents, each of which comes at several places.

    Args:
      ask: Returns the chunks of a batch, whose rows have the contents of these numbers.
      contents: How many there are; no two have the same chunk.
      rows: Of each batch.
    """
    rng, known, places = np.random.default_rng(rows), dict[int, np.ndarray](), dict[int, set[int]]()
    for n in range(8):
        chosen = rng.integers(0, contents, rows) if n else np.resize(np.arange(contents), rows)
        for place, (content, chunk) in enumerate(zip(chosen.tolist(), ask(chosen), strict=True)):
            np.testing.assert_array_equal(chunk, known.setdefault(content, chunk), err_msg=f"row {place} of {chosen}")
            places.setdefault(content, set()).add(place)
    assert max(map(len, places.values())) > min(rows, 2) - 1
    assert len({chunk.tobytes() for chunk in known.values()}) == len(known)
