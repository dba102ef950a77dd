"""What a training with a config says of a dataset, before it takes anything of it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The notes of a run, in its order, and why it would not begin."""

    notes: tuple[str, ...]
    refusal: str | None
    """The message with which training ends; None where it would begin."""
    exit_code: int = 0
    """With which training ends; 0 where it would begin."""


TAKEN = "training with this config takes this dataset"
"""Said where there is no refusal."""
